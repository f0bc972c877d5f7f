"""What a run wrote is read after its end was: Ctrl-C then is no order to stop."""

import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from ipexctl.act.context import Context
from ipexctl.act.interrupts import Interrupts
from ipexctl.act.run_control import BACK, LOST, REMOVED, OutputFrame
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.act.ssh import Links
from ipexctl.model.errors import Exit, Failure, Interrupted, Kind
from ipexctl.model.events import Event, Message, RunEnded, Workflow
from ipexctl.model.hosts import Host
from ipexctl.model.launch import Running
from ipexctl.protocol import frames, journal
from ipexctl.verbs.run.watch import RunRemovedError, RunWatcher

OVER = OutputFrame(frames.JOURNAL, journal.encode_record(journal.RunEnd("r1", "done")))
REST = [OutputFrame(frames.OUT, b"a line\n")] * 3


class Scripted(RunWatcher):
    """Reads these frames; None is a Ctrl-C just before the next, long after the last one, "again" one at once."""

    script: tuple[OutputFrame | str | None, ...] = ()
    running_still = False

    def _look_for_processes(self) -> Workflow[bool]:
        yield from ()
        return self.running_still

    def _read_frames(self, *, once: bool = False, samples: bool = True) -> Generator[OutputFrame | None, None, None]:
        for frame in self.script:
            if not isinstance(frame, OutputFrame):
                self.refused_at -= 0.0 if frame == "again" else 100.0
                self.context.interrupts.handle_signal(signal.SIGINT)
            else:
                yield frame


def watch(tmp_path: Path, *script: OutputFrame | str | None) -> tuple[Scripted, list[Event], bool]:
    links = Links(connect_timeout=1.0, accept_new=False, ask=None)
    head = RemoteRunDir(Host("node0", "node0"), "/runs/r1", "python3")
    running = Running("r1", "node0", ("node0",), {}, "train.py")
    watcher = Scripted(Context(links, tmp_path, tmp_path, 1), running, "n0nce", {"node0": head})
    watcher.script = script
    events: list[Event] = []
    following = watcher.follow()
    while True:
        try:
            events.append(next(following))
        except StopIteration as stop:
            return watcher, events, stop.value


def codes(events: list[Event]) -> list[str]:
    return [event.code for event in events if isinstance(event, Message) and event.code]


@pytest.mark.parametrize("pressed", [False, True])
def test_one_ctrl_c_after_the_end_changes_no_code(tmp_path: Path, pressed: bool) -> None:
    watcher, events, detached = watch(
        tmp_path, OVER, *REST, *([None] if pressed else []), *REST, OutputFrame(frames.END)
    )
    assert not detached
    assert watcher.run_ended is not None
    assert (watcher.run_ended.reason, watcher.exit, watcher.pending_order) == ("done", Exit.OK, None)
    assert codes(events) == (["left"] if pressed else [])


def test_the_second_ctrl_c_leaves_the_rest_on_the_head_and_is_130(tmp_path: Path) -> None:
    watcher, events, detached = watch(tmp_path, OVER, None, *REST, None, *REST, OutputFrame(frames.END))
    assert detached, "or the directory with the rest would be removed"
    assert (watcher.run_ended, int(watcher.exit)) == (None, 130)
    assert "ipexctl attach r1" in str(events[-2])
    assert isinstance(events[-1], RunEnded), "or the command would end with: run r1 goes on"


def test_a_storm_of_ctrl_c_is_one(tmp_path: Path) -> None:
    storm = [each for frame in REST for each in (frame, "again")]
    watcher, events, detached = watch(tmp_path, OVER, None, *storm, OutputFrame(frames.END))
    assert (detached, watcher.refusals, codes(events)) == (False, 1, ["left"])


def test_a_run_whose_files_another_command_removed_is_over(tmp_path: Path) -> None:
    """With its end, where that was read before."""
    removed = OutputFrame(REMOVED)
    with pytest.raises(RunRemovedError, match="run r1 is over: another command watched it to its end"):
        watch(tmp_path, *REST, removed)
    watcher, _, detached = watch(tmp_path, OVER, removed)
    assert watcher.run_ended is not None
    assert (watcher.run_ended.reason, detached) == ("done", False)


def test_a_run_whose_files_were_removed_while_its_ranks_are_running_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripted, "running_still", True)
    watcher, events, detached = watch(tmp_path, *REST, OutputFrame(REMOVED))
    assert watcher.run_ended is events[-1]
    assert (watcher.run_ended.reason, detached) == ("lost", False)
    assert watcher.run_ended.detail == "its files on node0 were removed while it went on"


def test_a_run_whose_files_went_with_the_connection_is_lost(tmp_path: Path) -> None:
    """Its host may have started again with an empty disk: its hosts are searched as after any loss."""
    watcher, events, detached = watch(tmp_path, OutputFrame(LOST, b"cut"), OutputFrame(BACK), OutputFrame(REMOVED))
    assert watcher.run_ended is events[-1]
    assert (watcher.run_ended.reason, detached) == ("lost", False)
    assert watcher.run_ended.detail.startswith("node0 has none of its files since the connection was lost at ")


class Rebooted(Scripted):
    """Of a run whose files are gone from node0, and which node1 leads after some looks, if it has any."""

    looks: int = 0

    def _read_frames(self, *, once: bool = False, samples: bool = True) -> Generator[OutputFrame | None, None, None]:
        yield from [OutputFrame(REMOVED)] if self.running.head == "node0" else [OVER, OutputFrame(frames.END)]

    def _read_description_failure(self, host: str) -> Failure | None:
        self.looks -= 1
        if self.looks == 0:
            return None
        return Failure(host, Kind.STEP, "cannot be read", code="agent" if self.looks > 0 else REMOVED)


@pytest.mark.parametrize("looks", [0, 3])
def test_a_head_that_lost_its_disk_is_not_the_end_of_a_run_that_others_go_on_with(tmp_path: Path, looks: int) -> None:
    links = Links(connect_timeout=1.0, accept_new=False, ask=None)
    names = ("node0", "node1")
    run_dirs = {name: RemoteRunDir(Host(name, name), "/runs/r1", "python3") for name in names}
    running = Running("r1", "node0", names, {}, "train.py", leaders=names)
    watcher = Rebooted(Context(links, tmp_path, tmp_path, 1), running, "n0nce", run_dirs)
    watcher.looks = looks
    if not looks:
        with pytest.raises(RunRemovedError):
            list(watcher.follow())
        return
    list(watcher.follow())
    assert (watcher.running.head, watcher.run_ended and watcher.run_ended.reason) == ("node1", "done")


def test_signals_count_for_nothing_while_what_they_ask_for_is_done() -> None:
    interrupts = Interrupts()
    with interrupts.raise_on_signal(), interrupts.ignore_signals(60.0):
        interrupts.handle_signal(signal.SIGINT)
    assert interrupts.pop_pending() is None
    with interrupts.raise_on_signal(), interrupts.ignore_signals(0.0), pytest.raises(Interrupted):
        interrupts.handle_signal(signal.SIGINT)
