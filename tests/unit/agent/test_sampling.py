"""Samples on their way: a real keeper, a real guard and its sampler, and who watches."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.model import events as e
from ipexctl.model.launch import Running
from ipexctl.protocol import frames, messages, paths, rank_records
from ipexctl.protocol.samples import KINDS, HostSample, RankSample
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import files, procs, rpc, sampling
from tests.unit.agent.runs import PLAIN, SPEC, TIMINGS, Kept, keeping, remote
from tests.waiting import wait

QUICK = TIMINGS._replace(grace=0.2, kill=0.2, sample=0.05)
BURN = "import time\nwhile True: sum(range(10000)), time.sleep(0.001)"


@dataclass
class Watched:
    """The run's files, read as a controller reads them: from where the last reading ended."""

    kept: Kept
    offsets: dict[str, int] = field(default_factory=lambda: {"j": 0, "o": 0, "e": 0, "s": 0})
    log: JournalReader = field(
        default_factory=lambda: JournalReader("n0nce", Running("r1", "a", ("a",), {}, "train.py"))
    )

    def read(self) -> list[e.Event]:
        words = [str(offset) for offset in self.offsets.values()]
        words.insert(3, "once")
        done = subprocess.run(
            remote("watch", str(self.kept.directory), *words), stdout=subprocess.PIPE, env=PLAIN, timeout=60, check=True
        )
        events, at = list[e.Event](), 0
        while at < len(done.stdout):
            frame, at = frames.unpack_frame(done.stdout, at)
            assert frame is not None
            if frame.kind in self.offsets:
                assert frame.offset == self.offsets[frame.kind]
                self.offsets[frame.kind] += len(frame.data)
                events += self.log.read(frame.kind, frame.data)
        return events


@contextmanager
def rank(kept: Kept) -> Iterator[procs.Process]:
    """A guard, and a wrapper and its script, as the guard learns of them."""
    guard = start_guard(kept)
    wait(lambda: b"Launched" in (kept.directory / paths.JOURNAL).read_bytes())
    program = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {BURN!r}]).pid, flush=True); input()"
    )
    wrapper = kept.start([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert wrapper.stdout is not None
    script = int(wrapper.stdout.readline())
    try:
        files.write_record(str(kept.directory), files.BEGIN, rank_records.RankBegun(0, wrapper.pid, 0))
        files.write_record(
            str(kept.directory), files.START, rank_records.RankStarted(0, "a", wrapper.pid, script, [], time.time())
        )
        yield guard
    finally:
        os.kill(script, signal.SIGKILL)


def start_guard(kept: Kept) -> procs.Process:
    """A guard of the kept run; it goes on in the background."""
    done = subprocess.run(
        remote("guard", str(kept.directory), "127.0.0.1", str(kept.port)), stdout=subprocess.PIPE, env=PLAIN, timeout=60
    )
    assert b"GuardReady" in done.stdout
    wait(lambda: len(find("guard", kept)) == 1 and bool(find("meter", kept)) == (kept.spec.timings.sample > 0))
    [guard] = find("guard", kept)
    return guard


def find(role: str, kept: Kept) -> list[procs.Process]:
    """The processes of this role."""
    words = {role.encode(), os.fsencode(kept.directory)}
    every = procs.list_processes()
    return [every[pid] for pid in every if words <= {*procs.read_file(f"/proc/{pid}/cmdline").split(b"\0")}]


def children(process: procs.Process) -> list[procs.Process]:
    return [each for each in procs.list_processes().values() if each.parent == process.pid]


def stop(kept: Kept) -> None:
    link = kept.connect(paths.Role.ORDER, "test")
    link.send(messages.StopRun("test"))
    wait(lambda: kept.over)
    link.close()


def test_samples_reach_the_watcher_and_the_last_one_at_the_end(tmp_path: Path) -> None:
    with keeping(tmp_path, timings=QUICK) as kept, rank(kept) as guard:
        watched, events = Watched(kept), list[e.Event]()
        [sampler] = children(guard)
        wait(lambda: [each.pid for each in find("meter", kept)] == [sampler.pid])
        assert [each.pid for each in find("guard", kept)] == [guard.pid]

        def read_samples() -> list[e.HostSample]:
            events.extend(watched.read())
            return [each for each in events if isinstance(each, e.HostSample)]

        def busy() -> list[e.RankSample]:
            uses = [use for sample in read_samples() for use in sample.ranks]
            return [use for use in uses if use.rank == 0 and use.cpu > 0 and use.rss]

        wait(busy)
        words = [*("0",) * 3, frames.ONCE, frames.NO_SAMPLES]
        bare = subprocess.run(
            remote("watch", str(kept.directory), *words), stdout=subprocess.PIPE, env=PLAIN, timeout=60, check=True
        )
        assert b"Launched" in bare.stdout
        assert b"HostSample" not in bare.stdout, "logs have no use for them"
        stop(kept)
        last = read_samples()[-1]
        assert (last.host, last.cores > 0, last.memory > 0) == ("a", True, True)
        assert not list(kept.directory.glob("*.crash"))
        wait(lambda: not procs.is_still_alive(sampler) and not procs.is_still_alive(guard))


def test_a_run_without_samples_has_no_sampler_and_no_file_of_them(tmp_path: Path) -> None:
    with keeping(tmp_path, timings=QUICK._replace(sample=0.0)) as kept, rank(kept) as guard:
        wait(lambda: "RankStarted" in (kept.directory / paths.JOURNAL).read_text())
        assert not children(guard)
        stop(kept)
        assert not list(kept.directory.glob(paths.SAMPLES + "*"))
        wait(lambda: not procs.is_still_alive(guard))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_sampler_that_dies_or_stands_still_ends_nothing(tmp_path: Path, number: int) -> None:
    with keeping(tmp_path, timings=QUICK._replace(last_sample=0.3)) as kept, rank(kept) as guard:
        [sampler] = children(guard)
        os.kill(sampler.pid, number)
        time.sleep(0.5)
        assert procs.is_still_alive(guard)
        assert kept.state().state == "running"
        stop(kept)
        assert kept.end()["reason"] == "stopped"
        wait(lambda: not procs.is_still_alive(sampler) and not procs.is_still_alive(guard))


def test_with_its_guard_the_sampler_dies(tmp_path: Path) -> None:
    with keeping(tmp_path, timings=QUICK) as kept:
        guard = start_guard(kept)
        [sampler] = children(guard)
        os.kill(guard.pid, signal.SIGKILL)
        wait(lambda: not procs.is_still_alive(sampler))


def test_the_keeper_stores_what_is_the_hosts_own_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr("ipexctl.remote.agent.rpc.time.time", lambda: real() - 500)  # the clock of both hosts
    two = {"a": SPEC.head_spec.hosts["a"], "b": SPEC.head_spec.hosts["a"]._replace(ranks=[1])}
    with keeping(tmp_path, timings=QUICK._replace(clean=0.2), head={"hosts": two}, size=2) as kept:
        links = {host: kept.join(host) for host in two}
        sent = HostSample("other", time.time(), 5.0, 1.0, 2, 3, 4, ranks=[RankSample(0, 1.0, 5), RankSample(1, 2.0, 6)])
        links["b"].send(sent)
        log = JournalReader("n0nce", Running("r1", "a", ("a", "b"), {}, "train.py"))
        events: list[e.Event] = []
        watched = Watched(kept, log=log)

        def is_sampled() -> bool:
            events.extend(watched.read())
            return any(isinstance(each, e.HostSample) for each in events)

        wait(is_sampled)
        stop(kept)
    [sample] = [each for each in events if isinstance(each, e.HostSample)]
    assert (sample.host, sample.ranks) == ("b", (e.RankSample(1, 2.0, 6),))
    assert abs(sample.at - real()) < 400, "by the head's clock"


def test_a_sampler_slows_down_and_never_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its pauses, which it asks `select` for; the test lets no time pass."""
    steady, pauses = [100.0], list[float]()

    def select(
        read: list[int], write: list[int], odd: list[int], pause: float
    ) -> tuple[list[int], list[int], list[int]]:
        pauses.append(round(pause, 3))
        steady[0] += pause
        return (read if len(pauses) == 14 else [], [], [])

    monkeypatch.setattr("ipexctl.remote.agent.sampling.select.select", select)
    monkeypatch.setattr("ipexctl.remote.agent.sampling.time.monotonic", lambda: steady[0])
    monkeypatch.setattr(sampling, "DOUBLING_SAMPLES", 3)
    spec = SPEC._replace(timings=Timings(sample=5.0), workdir=str(tmp_path))
    guard, sampler = map(rpc.Wire, socket.socketpair())
    sampling.sample_host(str(tmp_path), spec, sampler)
    seconds = [sample.seconds for sample in guard.receive() if isinstance(sample, HostSample)]
    assert pauses == [5, 5, 5, 10, 10, 10, 20, 20, 20, 40, 40, 40, 60, 60]
    assert seconds == pauses


def test_lines_of_samples_that_are_none_are_gaps() -> None:
    log = JournalReader("n0nce", Running("r1", "a", ("a",), {}, "train.py"))
    lines = [b"{}", b"[1", b"", b"\xff", b'{"kind": "HostSample", "host": "a"}', b'{"kind": "FilePoints"}']
    foreign = KINDS.write(HostSample("x", 1.0, 1.0, 1.0, 1, 1, 1)) + b"\n"
    assert not list(log.read(frames.SAMPLES, b"\n".join(lines) + b"\n" + foreign))
    line = KINDS.write(HostSample("a", 1.0, 1.0, 1.0, 1, 1, 1)) + b"\n"
    assert not list(log.read(frames.SAMPLES, line[:20]))
    assert list(log.read(frames.SAMPLES, line[20:])) == [e.HostSample("a", 1.0, 1.0, 1.0, 1, 1, 1)]
    assert not log.unreadable
