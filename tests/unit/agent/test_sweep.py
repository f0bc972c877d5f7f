"""After the end of a run its hosts are searched: over a network that loses packets more than once, if it ended well."""

import signal
from collections import Counter
from pathlib import Path
from time import sleep
from typing import Literal

import pytest

from ipexctl.act.context import Context
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.model.errors import Failure, Interrupted, Kind
from ipexctl.model.events import CleanupChecked, HostFailed, Message, RunEnded
from ipexctl.model.hosts import Command, Completed, Host, LinkError
from ipexctl.model.launch import Running
from ipexctl.protocol.messages import KINDS, ProcessesLeft
from ipexctl.verbs.run.watch import RunWatcher
from tests.fakes import FakeOpener

HOSTS = {name: RemoteRunDir(Host(name, name), f"/root/runs/r1-{name}", "python3") for name in "ab"}


def test_ranks_that_a_run_to_detach_from_waits_for_are_named_again_and_again(tmp_path: Path) -> None:
    running = Running("r1", "a", ("a", "b", "b"), {}, "serve.py", "serve.py")
    watcher = RunWatcher(
        Context(FakeOpener(lambda *_: Completed(0)), tmp_path, tmp_path), running, "nonce", HOSTS, True
    )
    journal = JournalReader("nonce", running)
    watcher.ready, watcher.patience, journal.ready = "up", 0.0, {1}
    assert [*watcher.report_unready(journal)] == [], "mpirun has not started"
    journal.launched = True
    text = "1 of 3 ready: rank 0 on a, rank 2 on b have not given the sign 'up' (waiting; Ctrl-C ends the run)"
    assert [*watcher.report_unready(journal)] == [Message(text, code="unready")]
    watcher.patience, journal.ready = 60.0, {1, 2}
    assert [*watcher.report_unready(journal)] == []
    watcher.awaited -= 61.0
    [message] = watcher.report_unready(journal)
    assert "2 of 3 ready: rank 0 on a has not given" in str(message)
    assert watcher.patience == 120.0


def test_a_run_that_goes_on_long_after_it_was_to_be_killed_is_left_by_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that never said that it ended, and always something, held the command by any number of Ctrl-C."""
    monkeypatch.setattr("ipexctl.verbs.run.watch._KILL_PATIENCE", 0.2)
    context = Context(FakeOpener(lambda *_: Completed(0)), tmp_path, tmp_path)
    watcher = RunWatcher(context, Running("r1", "a", ("a",), {}, "train.py", "train.py"), "nonce", HOSTS)
    monkeypatch.setattr(context.interrupts, "pop_pending", lambda: Interrupted(signal.SIGINT))
    monkeypatch.setattr(watcher, "_read_frames", lambda: (None for _ in range(200) if not sleep(0.01)))  # type: ignore[func-returns-value]
    events = [event for event in watcher.follow() if not isinstance(event, Message)]
    assert [str(event.failure.what) for event in events if isinstance(event, HostFailed)] == [
        "no answer (the run goes on 0 s after it was to be killed); run r1 may still be running"
    ]


@pytest.mark.parametrize(
    ("reason", "cuts", "lost", "unchecked"),
    [
        ("done", 0, set(), ()),
        ("done", 2, set(), ()),
        ("done", 9, set(), ("b",)),
        ("done", 2, {"b"}, ("b",)),
        ("lost", 1, set(), ("b",)),
    ],
)
def test_a_connection_that_is_cut_does_not_make_a_run_that_ended_well_a_lost_one(
    tmp_path: Path, reason: Literal["done", "lost"], cuts: int, lost: set[str], unchecked: tuple[str, ...]
) -> None:
    """Exit 6, of all ranks ended well, in as many runs as a packet was lost in the wrong moment."""
    asked: Counter[str] = Counter()

    def answer(host: Host, command: Command) -> Completed:
        if command.argv[0] != "ipexctl-find_processes.sh":
            return Completed(0)
        asked[host.name] += 1
        if host.name == "b" and asked["b"] <= cuts:
            raise LinkError(Failure("b", Kind.UNREACHABLE, "the connection was lost", code="lost"))
        return Completed(0, KINDS.write(ProcessesLeft([])))

    context = Context(FakeOpener(answer), tmp_path / "state", tmp_path / "cache")
    watcher = RunWatcher(context, Running("r1", "a", ("a", "b"), {}, "train.py", "train.py"), "nonce", HOSTS)
    watcher.run_ended, watcher.lost_hosts = RunEnded("r1", reason), lost
    [proof] = [event for event in watcher.prove_ended() if isinstance(event, CleanupChecked)]
    assert proof.unchecked == unchecked
    assert asked["a"] == 1
