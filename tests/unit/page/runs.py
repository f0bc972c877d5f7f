"""Runs as streams of events, for the pages: good, failed, hanging, with a lost host; 2 ranks or 64, a minute or a
day."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from ipexctl.decide.page.build import build_page
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.answers.doctor import HostSpeed, LinkSpeed, SpeedCheck
from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.errors import Exit, Failure, Kind
from ipexctl.model.events import Stamped
from ipexctl.model.facts import Facts, Interface
from ipexctl.model.launch import PlannedHost, PlannedLaunch, PlannedVariable, RankPlacement
from ipexctl.model.page import DoctorRecord, RunPage
from ipexctl.model.reports import Finding
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.unit.show.streams import START, facts, fold_state, names

GIB = 1 << 30
KINDS = ("good", "failed", "hang", "lost")
EVIL = '</title></p><script>alert("rank")</script><img src=x onerror=alert(1)> \x1b[2J\u202e {{ 7 * 7 }}'
STAGES = ("start", "python", "torch", "rendezvous", "connected", "first collective", "running")
STACK = (
    "Current thread 0x00007f (most recent call first):\n"
    '  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce\n'
    '  File "/work/train.py", line 88 in step\n'
)


def make_launch(hosts: tuple[str, ...], per_host: int, run: str = "1122-070000-k7") -> PlannedLaunch:
    """A plan with pinned ranks; one variable differs between hosts."""
    placements, width = [], 112 // per_host
    for number, host in enumerate(hosts):
        for local in range(per_host):
            cpus = tuple(range(local * width, (local + 1) * width))
            rank = number * per_host + local
            nodes = (0 if cpus[0] < 56 else 1,)
            placements.append(RankPlacement(rank, host, local, cpus[1:], cpus[:1], nodes))
    planned = {}
    for number, host in enumerate(hosts):
        env = {
            "OMP_NUM_THREADS": PlannedVariable(str(width - 1), "one thread per core of the rank"),
            "CCL_WORKER_COUNT": PlannedVariable("1", "one core of each rank is left to oneCCL"),
            "FI_TCP_IFACE": PlannedVariable("ens1f0" if number else "ens1f1", "the interface of the default route"),
        }
        planned[host] = PlannedHost(host, "ens1f0", f"10.0.0.{number + 1}", "/work", "/env/bin/python", (), env)
    return PlannedLaunch(
        run, "train.py", len(placements), "ccl", "oneccl_bind_pt is installed", "Intel MPI 2021.18.1", ("mpiexec",), {},
        ("python", "-u", "train.py"), None, planned, tuple(placements), (),
    )  # fmt: skip


def make_facts() -> Facts:
    return replace(
        facts(),
        interfaces=(Interface("ens1f0", ("10.0.0.1/24",), 9000, 100_000, True, True),),
        socket_cpus={"0": tuple(range(56)), "1": tuple(range(56, 112))},
    )


def make_doctor(hosts: tuple[str, ...]) -> DoctorRecord:
    """What doctor measured before: one link is slower than the others."""
    pairs = []
    for at, first in enumerate(hosts):
        for second in hosts[at + 1 :]:
            slow = {first, second} == {*hosts[:2]}
            pairs.append(LinkSpeed(first, second, 9e-6 if slow else 2.1e-6, 2.4e9 if slow else 11.6e9))
    finding = Finding(
        "NET004", "warning", hosts[:2], "MTU 9000 set, 1500 passes", "ping -M do", "ip link set eth1 mtu 1500"
    )
    speeds = tuple(HostSpeed(host, 56, "2.8.0", 3100.0, 21_000.0, 480e9, "triad") for host in hosts)
    return DoctorRecord(START - 3600, hosts, (finding,), SpeedCheck(speeds, tuple(pairs)), START - 3600)


def make_run(
    kind: str = "good",
    ranks: int = 4,
    hosts: int = 2,
    seconds: float = 60.0,
    every: float = 1.0,
    script: str = "train.py",
    words: str = EVIL,
) -> Iterator[Stamped]:
    """The events of a run: a step of each rank and a sample of each host ``every`` so many seconds. A rank prints
    ``words``."""
    where = names(hosts)
    per_host = ranks // hosts
    of_rank = tuple(where[rank // per_host] for rank in range(ranks))
    at = START
    yield Stamped(at, e.Started("run", script, where))
    for host in where:
        yield Stamped(at + 0.5, e.FactsRead(host, make_facts()))
    yield Stamped(at + 1, e.Planned("run", f"{script}: {ranks} ranks on {hosts} hosts", make_launch(where, per_host)))
    yield Stamped(at + 2, e.RunStarted("1122-070000-k7", where[0], of_rank, f"python -u {script}", at + 2))
    begun = at + 2
    for number, stage in enumerate(STAGES):
        for rank, host in enumerate(of_rank):
            moment = begun + 0.2 + number * 1.1 + 0.03 * (rank % 7)
            yield Stamped(moment + 0.05, e.RankStage(rank, host, stage, moment))
    bad = ranks - 1  # the rank that fails, hangs, or whose host is lost
    stop = begun + seconds * (0.6 if kind in ("failed", "hang", "lost") else 1.0)
    moment, step = begun + 9, 0
    while moment < stop:
        step += 1
        for host in where:
            yield Stamped(moment, make_sample(host, of_rank, moment, every, step))
        for rank, host in enumerate(of_rank):
            loss = 2.5 * math.exp(-step / (0.3 * seconds / every)) + 0.1 + 0.02 * ((rank * 7 + step) % 5)
            pace = (0.8 if rank == 1 and ranks > 2 else 1.0) / every
            text = f"loss {loss:.4f} {pace:.2f} it/s\n"
            yield Stamped(moment, e.Output(rank, host, "out", text.encode()))
        if step == 3:
            yield Stamped(moment, e.Output(0, of_rank[0], "err", f"UserWarning: {words}\n".encode()))
        moment += every
    for stamped in END[kind](of_rank, where, bad, stop, begun + seconds):
        event = stamped.event
        if isinstance(event, e.RankEnded):
            event = replace(
                event, error=event.error.replace(EVIL, words), traceback=event.traceback.replace(EVIL, words)
            )
        yield replace(stamped, event=event)


def make_sample(host: str, of_rank: tuple[str, ...], at: float, every: float, step: int) -> e.HostSample:
    mine = [rank for rank, name in enumerate(of_rank) if name == host]
    number = of_rank.index(host)
    wave = math.sin(step / 19 + number) + 0.6 * math.sin(step / 2.3 + 2 * number) + 0.3 * math.sin(step * 1.7 + number)
    samples = tuple(e.RankSample(rank, 26.5 + wave / 2 - rank % 3 / 4, int((9 + wave / 9) * GIB)) for rank in mine)
    return e.HostSample(
        host, at, every, 25.0 * len(mine) + wave, 112, int((40 + step / 300 + wave / 4) * GIB), 503 * GIB,
        received={"lo": 1 << 40, "ens1f0": int((300 + 12 * wave) * 1e6 * every)},
        sent={"lo": 1 << 40, "ens1f0": int((290 - 9 * wave) * 1e6 * every)},
        read=int((1 + wave * wave) * (1 << 20)), celsius=61.0 + 2 * wave - number / 2, mhz=2900.0 + 20 * wave,
        joules=540.0 * every, pressure={"cpu": 0.02 + abs(wave) / 90, "memory": 0.0}, ranks=samples,
    )  # fmt: skip


def end_well(of_rank: tuple[str, ...], where: tuple[str, ...], bad: int, at: float, last: float) -> Iterator[Stamped]:
    for rank, host in enumerate(of_rank):
        yield Stamped(at + 0.2, e.RankEnded(rank, host, 0, at=at + 0.1))
    yield from finish(where, at + 1, "done", Exit.OK)


def end_failed(of_rank: tuple[str, ...], where: tuple[str, ...], bad: int, at: float, last: float) -> Iterator[Stamped]:
    trace = f'Traceback (most recent call last):\n  File "train.py", line 41, in <module>\nValueError: {EVIL}\n'
    yield Stamped(at + 0.2, e.Output(bad, of_rank[bad], "err", trace.encode()))
    ended = e.RankEnded(bad, of_rank[bad], 1, at=at + 0.1, error=f"ValueError: {EVIL}", traceback=trace)
    yield Stamped(at + 0.3, ended)
    for rank, host in enumerate(of_rank[:bad]):
        yield Stamped(at + 1, e.RankEnded(rank, host, None, 15, at + 0.9, "stopped"))
    yield from finish(where, at + 2, "rank", Exit.RANK, f"rank {bad} on {of_rank[bad]} failed")


def end_hanging(
    of_rank: tuple[str, ...], where: tuple[str, ...], bad: int, at: float, last: float
) -> Iterator[Stamped]:
    everyone = tuple(range(len(of_rank)))
    yield Stamped(at + 20, e.Stalled(everyone, 20.0, "all", {str(rank): "S" for rank in everyone}))
    warning = f"no progress for 20 s: all {len(everyone)} ranks silent"
    yield Stamped(at + 20, e.Message(warning, "warning", code="stalled"))
    for rank in everyone:
        text = (
            STACK
            if rank != bad
            else 'Current thread 0x1 (most recent call first):\n  File "/work/data.py", line 41 in read\n'
        )
        yield Stamped(at + 20.4, e.RankStack(rank, of_rank[rank], 100 + rank, "S", "", text))
    lines = f"{bad} of {len(everyone)} ranks wait in all_reduce, rank {bad} does not\n  rank {bad}  data.py:41 read"
    yield Stamped(at + 20.5, e.StallCompared((bad,), lines))
    yield Stamped(at + 30, e.Message("stopping (again to kill)", "warning", code="stop"))
    for rank, host in enumerate(of_rank):
        yield Stamped(at + 31, e.RankEnded(rank, host, None, 15, at + 31, "stopped"))
    yield from finish(where, at + 32, "stopped", Exit.INT, "SIGINT")


def end_lost(of_rank: tuple[str, ...], where: tuple[str, ...], bad: int, at: float, last: float) -> Iterator[Stamped]:
    """A host is lost; the run starts again without it."""
    lost = of_rank[bad]
    yield Stamped(at + 3, e.HostFailed(Failure(lost, Kind.LOST, "lost (silent for 30 s)", code="lost")))
    left = tuple(host for host in of_rank if host != lost) or of_rank[:1]
    for rank, host in enumerate(of_rank):
        cause = "lost" if host == lost else "stopped"
        yield Stamped(at + 4, e.RankEnded(rank, host, None, 0 if host == lost else 15, at + 4, cause))  # type: ignore[arg-type]
    yield Stamped(at + 5, e.RunEnded("1122-070000-k7", "lost", f"{lost} was lost", at + 5))
    again = at + 8
    yield Stamped(again, e.RunStarted("1122-070100-k8", left[0], left, "python -u train.py", again))
    for number, stage in enumerate(STAGES):
        for rank, host in enumerate(left):
            yield Stamped(again + 0.3 + number, e.RankStage(rank, host, stage, again + 0.2 + number))
    end = max(last, again + 9)
    for rank, host in enumerate(left):
        yield Stamped(again + 8, e.Output(rank, host, "out", b"step 1 loss 0.5 1.0 it/s\n"))
        yield Stamped(end, e.RankEnded(rank, host, 0, at=end))
    yield from finish(where, end + 1, "done", Exit.LOST)


def finish(
    where: tuple[str, ...], at: float, reason: Literal["done", "rank", "stopped", "lost"], exit: Exit, detail: str = ""
) -> Iterator[Stamped]:
    yield Stamped(at, e.RunEnded("1122-070000-k7", reason, detail, at))
    yield Stamped(at + 0.5, e.CleanupChecked("1122-070000-k7", where, {}))
    yield Stamped(at + 0.6, e.Answer(RunAnswer("1122-070000-k7", reason, False)))
    yield Stamped(at + 0.7, e.Ended("run", exit if exit is Exit.INT else Exit.OK))


END = {"good": end_well, "failed": end_failed, "hang": end_hanging, "lost": end_lost}


def fold_page(stream: Iterable[Stamped], doctor: DoctorRecord | None = None) -> RunPage:
    """The page of these events as a value."""
    state = fold_state(stream)
    return build_page(state, make_report(state, read_known_errors), doctor, read_known_errors)
