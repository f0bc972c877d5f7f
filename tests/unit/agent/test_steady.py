"""While all ranks run and write little, keeper, guard and wrappers wake up rarely: each time they take a rank's core.
Ends do not wait for that. The pauses here are minutes long where a test would otherwise pass in spite of one."""

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ipexctl.act.context import Context
from ipexctl.act.run_control import RunFollower
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.act.ssh import Links
from ipexctl.protocol import frames, messages, paths, rank_records
from ipexctl.protocol.run_spec import RankSpec
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import files, procs, rpc
from ipexctl.remote.agent.guard import Guard
from ipexctl.remote.agent.output_relay import OutputRelay
from tests.unit.agent.runs import SPEC, TIMINGS, keeping
from tests.unit.agent.test_watching import at
from tests.waiting import wait

LONG = 600.0  # seconds: longer than any test may take
RARE = TIMINGS._replace(early=0.0, pace=LONG)

# -- the wrapper


class Noted(OutputRelay):
    """What is passed on, piece by piece."""

    def __init__(self, timings: Timings, place: Path) -> None:
        super().__init__(os.devnull, b"", timings)
        self.pieces: list[bytes] = []
        self.passed = place / "passed"  # made with the first piece

    def write(self, stream: str, data: bytes) -> None:
        self.pieces += [data] if data else []
        self.passed.touch()


def relay(place: Path, timings: Timings, lines: str) -> list[bytes]:
    """The pieces of a script with these lines; ``passed`` in it says whether one has been passed on."""
    output = Noted(timings, place)
    program = f"import os, sys, time\npassed = lambda: os.path.exists(sys.argv[1])\n{lines}"
    script = [sys.executable, "-c", program, str(output.passed)]
    reader, writer = os.pipe()
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        output.relay(child, reader, lambda: None)
        assert child.returncode == 0
    for fd in (reader, writer, output.pipe):
        os.close(fd)
    return output.pieces


TWENTY = "for n in range(20): os.write(1, b'%d\\n' % n); time.sleep(0.01)\n"
WRITTEN = b"".join(b"%d\n" % n for n in range(20))


def test_lines_gather_until_the_script_ends(tmp_path: Path) -> None:
    assert relay(tmp_path, RARE, TWENTY) == [WRITTEN]


def test_without_descriptors_of_processes_they_gather_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    pieces = relay(tmp_path, RARE._replace(pace=1.0), TWENTY)
    assert b"".join(pieces) == WRITTEN
    assert len(pieces) < 5


def test_in_the_beginning_a_line_is_passed_on_at_once(tmp_path: Path) -> None:
    lines = "print('first', flush=True)\nwhile not passed(): time.sleep(0.01)\nprint('second')"
    pieces = relay(tmp_path, RARE._replace(early=LONG), lines)
    assert b"".join(pieces) == b"first\nsecond\n"


def test_where_much_is_written_nothing_gathers(tmp_path: Path) -> None:
    # Hundreds of times what a pipe holds: a wait before each piece would take many minutes.
    pieces = relay(tmp_path, RARE._replace(pace=2.0), "os.write(1, b'x' * (1 << 25))")
    assert b"".join(pieces) == b"x" * (1 << 25)


def test_what_was_written_before_the_launcher_gave_a_rank_up_is_passed_on_first(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    lines = f"os.write(1, b'x' * 9); os.close({writer}); time.sleep(0.2)"
    child = subprocess.Popen(
        [sys.executable, "-c", f"import os, time; {lines}"],
        pass_fds=[writer],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    output = Noted(RARE._replace(pace=0.1), tmp_path)
    with child:
        output.relay(child, reader, lambda: output.pieces.append(b"dropped"))
    assert output.pieces == [b"x" * 9, b"dropped"]


# -- the keeper and its watchers


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    made = Context(Links(config=None), tmp_path / "state", tmp_path / "cache")
    yield made
    made.links.close()


def test_a_watcher_sleeps_until_the_keeper_wakes_it(tmp_path: Path, context: Context) -> None:
    with keeping(tmp_path, timings=TIMINGS._replace(idle=LONG, silent=LONG)) as kept:
        site: RemoteRunDir = at(kept)
        follower = RunFollower(context, site, timings=kept.spec.timings)
        try:
            wait(lambda: kept.state().watchers == 1)
            before = follower.offsets[frames.JOURNAL]
            kept.join()
            wait(lambda: follower.offsets[frames.JOURNAL] > before and follower.read_frame(0.0) is None)
            wait(lambda: follower.offsets[frames.JOURNAL] == (kept.directory / paths.JOURNAL).stat().st_size)
        finally:
            follower.close()


# -- the guard


@contextmanager
def guarding(place: Path, timings: Timings) -> Iterator[tuple[Guard, rpc.Wire]]:
    """The guard of a host with ranks 0 and 1, and the keeper's side of its connection."""
    (place / paths.RANKS).mkdir()
    ours, theirs = socket.socketpair()
    wire, keeper = rpc.Wire(ours), rpc.Wire(theirs)
    spec = SPEC._replace(size=2, ranks={0: RankSpec(0), 1: RankSpec(1)}, timings=timings)
    yield Guard(str(place), spec, wire, 0o022), keeper
    wire.close()
    keeper.close()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this Python has no descriptors of processes")
def test_rounds_are_rare_once_all_ranks_run_and_none_of_them_ends_unseen(tmp_path: Path) -> None:
    timings = Timings(early=5.0, steady=30.0)
    with guarding(tmp_path, timings) as (guard, _), subprocess.Popen(["sleep", "300"]) as wrapper:

        def pause(now: float) -> float:
            assert guard.do_round(now)
            guard.list_wakeup_sources()
            return guard.compute_pause(now)

        begun = guard.last
        files.write_record(str(tmp_path), files.BEGIN, rank_records.RankBegun(0, wrapper.pid, 0))
        assert pause(begun + 6.0) == timings.tick, "rank 1 has not begun"
        files.write_record(str(tmp_path), files.BEGIN, rank_records.RankBegun(1, wrapper.pid, 0))
        assert pause(begun + 7.0) == timings.tick, "it has only just begun"
        assert pause(begun + 13.0) == timings.steady
        guard.ends.clear()
        assert guard.compute_pause(begun + 13.0) == timings.tick, "nothing wakes it"
        wrapper.kill()


class FaultyGuard(Guard):
    def do_round(self, now: float) -> bool:
        raise LookupError(f"planted, after {now:.0f} s")


def test_a_fault_of_a_guard_reaches_the_keeper(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    wire, keeper = rpc.Wire(ours), rpc.Wire(theirs)
    child = os.fork()
    if child == 0:
        with suppress(LookupError):
            FaultyGuard(str(tmp_path), SPEC._replace(head=None, wait=True), wire, 0o022).watch()
        os._exit(0)
    os.waitpid(child, 0)  # not another test's
    joined, message = keeper.receive()
    assert isinstance(joined, messages.Joined)
    assert isinstance(message, messages.AgentFailed)
    assert message.error.startswith("LookupError: planted, after ")
    wire.close()
    keeper.close()


def test_a_process_that_is_gone_has_no_descriptor() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert procs.open_end(process.pid) is None


def test_the_last_words_of_a_guard_are_not_taken_back_for_what_it_has_not_read() -> None:
    """Else the kernel resets the connection, and what was lost on the way is not sent again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = rpc.Wire(socket.create_connection(listener.getsockname()))
        theirs, _ = listener.accept()
    keeper = rpc.Wire(theirs)
    keeper.send(messages.Ping(1.0, 1.0, 1.0))
    assert select.select([wire], [], [], 10.0)[0], "it has come, and nobody reads it"
    wire.send(messages.Cleaned([]))

    def end() -> None:
        list(wire.finish(10.0))
        wire.close()

    ending = threading.Thread(target=end)
    ending.start()
    theirs.settimeout(10.0)
    assert b"Cleaned" in b"".join(iter(lambda: theirs.recv(1000), b"")), "to an end, which is no reset"
    keeper.close()
    ending.join(5.0)
    assert not ending.is_alive()
