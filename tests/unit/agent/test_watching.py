"""A watcher and its link: a real keeper, the watcher's process beside it, and who listens to it over a link."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.act import agent, run_control
from ipexctl.act.context import Context
from ipexctl.act.run_control import RunFollower
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.act.ssh import Links
from ipexctl.model.hosts import Host
from ipexctl.protocol.frames import END, JOURNAL, WatchFrame, pack_frame
from ipexctl.protocol.journal import HostBack, encode_record
from ipexctl.protocol.messages import FilesGrown
from ipexctl.protocol.paths import AGENT, ERR, KEEPER, ROLE
from ipexctl.protocol.rank_records import RankStarted
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import procs
from tests.fakes import SingleByteChannel
from tests.stopwatch import Stopwatch
from tests.unit.agent.runs import TIMINGS, Kept, keeping, remote
from tests.waiting import wait

IMPATIENT = TIMINGS._replace(silent=2.0)
HERE = Host("here", "localhost", vars={"local": "yes"})


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with keeping(tmp_path) as kept:
        yield kept


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Kept]:
    """Whose watchers wait two seconds for their controller."""
    with keeping(tmp_path, timings=IMPATIENT) as kept:
        yield kept


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    made = Context(Links(config=None), tmp_path / "state", tmp_path / "cache")
    yield made
    made.links.close()


def at(kept: Kept, agent_is: str = "") -> RemoteRunDir:
    """The run as its head's place, with its agent, or with another program of that name."""
    site = RemoteRunDir(HERE, str(kept.directory), sys.executable)
    (kept.directory / AGENT).write_bytes(agent.build_archive())
    role = kept.directory / ROLE
    role.write_bytes(f"#!/bin/sh\n{agent_is}\n".encode() if agent_is else site.wrap_agent())
    role.chmod(0o700)
    return site


def watchers(kept: Kept) -> list[int]:
    """The processes that watch this run."""
    result = []
    for pid in procs.list_processes():
        with suppress(OSError):  # it has ended
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"watch" in words and os.fsencode(kept.directory) in words:
                result.append(pid)
    return result


def write_record(kept: Kept) -> None:
    """The journal has something to watch."""
    with (kept.directory / "journal.jsonl").open("ab") as journal:
        journal.write(encode_record(HostBack("a")))


def test_a_watcher_that_hangs_is_a_lost_link_and_another_goes_on_where_it_stood(kept: Kept, context: Context) -> None:
    write_record(kept)
    watch = RunFollower(context, at(kept), timings=Timings(silent=3.0, quiet=4.0))
    try:
        wait(lambda: watch.offsets[JOURNAL])  # of the journal
        assert [frame and frame.kind for frame in (watch.read_frame(60.0) for _ in range(3))] == ["h", "j", "c"]
        time.sleep(4.0)
        assert watch.read_frame(0.1) is None, "a run that says nothing is no lost link"
        [hanging] = watchers(kept)
        os.kill(hanging, signal.SIGSTOP)
        try:
            silent, lost, back = (watch.read_frame(60.0) for _ in range(3))
            while back == silent:  # the other one is not there yet either, on a busy machine
                back = watch.read_frame(60.0)
        finally:
            os.kill(hanging, signal.SIGKILL)
        assert silent == run_control.OutputFrame("silent", b"3")
        assert lost == run_control.OutputFrame("lost", b"no sign of life for 4 s")
        assert back == run_control.OutputFrame("back")
        assert watch.offsets[JOURNAL] == (kept.directory / "journal.jsonl").stat().st_size
    finally:
        watch.close()


def test_a_frame_that_comes_by_single_bytes_costs_no_more_than_its_bytes(tmp_path: Path) -> None:
    frames = [WatchFrame(JOURNAL, 0, b"x" * 500_000), WatchFrame(END, 0, b"end")]
    channel = SingleByteChannel(b"".join(map(pack_frame, frames)))
    link = SimpleNamespace(host=HERE, stream=lambda command: channel)
    context: Any = SimpleNamespace(links=SimpleNamespace(open=lambda host: link))
    stopwatch = Stopwatch()
    watch = RunFollower(context, RemoteRunDir(HERE, str(tmp_path), sys.executable))
    try:
        read = b""
        while len(read) < 500_000:
            frame = watch.read_frame(60.0)
            assert frame
            assert frame.kind == JOURNAL
            assert len(frame.data) <= 1 << 16, "a Ctrl-C waited for a minute where a host sent 4 MiB of records at once"
            read += frame.data
        assert read == b"x" * 500_000
        assert watch.read_frame(60.0) == run_control.OutputFrame(END, b"end")
    finally:
        watch.close()
    assert stopwatch.read() < 4.0


def test_where_every_watcher_hangs_it_is_given_up(kept: Kept, context: Context) -> None:
    watch = RunFollower(context, at(kept, "exec sleep 30"), timings=Timings(quiet=1.0, give_up=2.0))
    try:
        assert watch.read_frame(60.0) == run_control.OutputFrame("lost", b"no sign of life for 1 s")
        assert watch.read_frame(60.0) == run_control.OutputFrame("gave-up", b"no sign of life for 1 s")
    finally:
        watch.close()


def test_where_the_directory_is_gone_the_run_is_over_at_once(kept: Kept, context: Context, tmp_path: Path) -> None:
    site = at(kept)
    kept.directory.rename(tmp_path / "away")
    watch = RunFollower(context, site, timings=Timings(give_up=30.0))
    try:
        assert watch.read_frame(20.0) == run_control.OutputFrame("removed")
    finally:
        watch.close()
        (tmp_path / "away").rename(kept.directory)


def test_letting_go_does_not_wait_for_a_watcher_that_hangs(kept: Kept, context: Context) -> None:
    mark = kept.directory / "hangs"
    watch = RunFollower(context, at(kept, f"echo $$ >{mark}.new; mv {mark}.new {mark}; exec sleep 1000"))
    wait(mark.exists)
    watch.close()
    os.kill(int(mark.read_text()), signal.SIGKILL)  # it has hung all the while


# Whoever listens to the watcher's process shows it by a byte now and then.


def alone(kept: Kept, **more: Any) -> subprocess.Popen[bytes]:
    """The watcher's process, impatient, without a controller; its input is open."""
    words = remote("watch", str(kept.directory), "0", "0", "0")
    process = kept.start(words, stdout=subprocess.PIPE, **more)
    wait(lambda: kept.state().watchers == 1)
    return process


def beats(process: subprocess.Popen[bytes], seconds: float) -> None:
    assert process.stdin is not None
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        process.stdin.write(b".")
        process.stdin.flush()
        time.sleep(0.2)


def test_a_watcher_ends_when_its_controller_falls_silent(impatient: Kept) -> None:
    process = alone(impatient)
    beats(process, 4.0)
    assert impatient.state().watchers == 1
    assert process.wait(60.0) == 0
    wait(lambda: impatient.state().watchers == 0)


def test_a_controller_that_never_writes_is_taken_to_be_there(impatient: Kept) -> None:
    process = alone(impatient)
    time.sleep(4.0)
    assert process.poll() is None
    assert impatient.state().watchers == 1


def test_a_watcher_that_comes_before_the_keeper_has_written_where_it_is_counts_as_one(kept: Kept) -> None:
    address, hidden = kept.directory / KEEPER, kept.directory / "hidden"
    address.rename(hidden)
    process = kept.start(remote("watch", str(kept.directory), "0", "0", "0"), stdout=subprocess.PIPE)
    wait(lambda: process.pid in watchers(kept))
    time.sleep(1.0)  # it has looked for the file
    assert kept.state().watchers == 0
    hidden.rename(address)
    wait(lambda: kept.state().watchers == 1)


def test_what_is_written_wakes_who_watches(tmp_path: Path) -> None:
    speaks = ["/bin/sh", "-c", "read word; echo $word; exec sleep 300"]
    with keeping(tmp_path, head={"mpiexec": ["/bin/sh", "-c", f"{shlex.join(speaks)} < {tmp_path}/word"]}) as kept:
        os.mkfifo(tmp_path / "word")
        guard, watcher = kept.join(), kept.connect("watch", "test")
        wait(lambda: kept.state().state == "running")
        while watcher.wait(0.5):
            pass  # of the journal, which grows as the run begins
        journal = (kept.directory / "journal.jsonl").read_bytes()
        (tmp_path / "word").write_text("hello\n")
        assert watcher.wait(60.0) == FilesGrown()
        assert (kept.directory / "journal.jsonl").read_bytes() == journal, "it is the output that has grown"
        assert any(b"hello" in part.read_bytes() for part in kept.directory.glob(f"{ERR}*"))
        guard.close()


def test_a_lease_holds_although_the_last_watcher_vanished_in_much_output(tmp_path: Path) -> None:
    loud = ["/bin/sh", "-c", "yes | head -c 3000000; exec sleep 300"]
    with keeping(tmp_path, timings=IMPATIENT._replace(lease=6.0), head={"mpiexec": loud}) as kept:
        guard = kept.join()
        guard.send(RankStarted(0, "a", 1, 2, [], time.time()))
        process = alone(kept)
        beats(process, 8.0)  # longer than the lease; nobody reads what it says, so it waits in the middle of writing
        assert kept.state().state == "running"
        journal = kept.directory / "journal.jsonl"
        wait(lambda: "watcher lost: nobody watched for 6 s" in journal.read_text())
        assert process.wait(60.0) == 0


def test_a_screen_that_stands_still_is_a_watcher_all_the_same(impatient: Kept, context: Context) -> None:
    timings = Timings(beat=0.3)
    watch = RunFollower(context, at(impatient), timings=timings)
    try:
        wait(lambda: impatient.state().watchers == 1)
        first = watchers(impatient)
        time.sleep(4.0)
        assert impatient.state().watchers == 1
        assert watchers(impatient) == first
        os.kill(first[0], signal.SIGSTOP)  # and a head that stood still finds what was said meanwhile
        time.sleep(3.0)
        os.kill(first[0], signal.SIGCONT)
        time.sleep(1.0)
        assert watchers(impatient) == first
    finally:
        watch.close()
    wait(lambda: impatient.state().watchers == 0)


@pytest.mark.fault("G5")
def test_a_controller_that_stood_still_goes_on_where_it_was(impatient: Kept, context: Context) -> None:
    write_record(impatient)
    timings = Timings(beat=5.0)  # too rare for this watcher: as if it were stopped in between
    watch = RunFollower(context, at(impatient), timings=timings)
    try:
        kinds: list[str] = []

        def is_lost() -> bool:
            frame = watch.read_frame(0.3)
            kinds.extend([frame.kind] if frame and frame.kind != "t" else [])
            return "lost" in kinds

        wait(is_lost)
        assert kinds == ["h", "j", "c", "lost"]
        assert watch.offsets[JOURNAL] == (impatient.directory / "journal.jsonl").stat().st_size
    finally:
        watch.close()
