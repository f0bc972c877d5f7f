"""Streams of events as real verbs make them, for tests and for looking at screens:

python -m tests.unit.show.streams live run 8      # a terminal of your own
python -m tests.unit.show.streams plain install 256
"""

import random
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from ipexctl.decide.planning.install import ANOTHER_PATH
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.answers import UnknownAnswer
from ipexctl.model.answers.doctor import DoctorAnswer, DoctorHost, NetworkCheck
from ipexctl.model.answers.install import InstallAnswer
from ipexctl.model.errors import Exit, Failure, Kind
from ipexctl.model.events import Event, Stamped
from ipexctl.model.facts import Facts, Installed, NumaNode, Python
from ipexctl.model.reports import CommandReport, Finding, LostOutput, StallPlace
from ipexctl.model.run_state import RunState
from ipexctl.model.stack import StackMpi, StackSummary
from ipexctl.store.record import RunRecord

START = 1_763_631_060.0
GIB = 1 << 30


def names(count: int) -> tuple[str, ...]:
    width = max(len(str(count)), 2)
    return tuple(f"xeon{n:0{width}d}" for n in range(1, count + 1))


def facts(odd: bool = False) -> Facts:
    """The facts that a screen reads."""
    packages = {"torch": "2.8.0", "intel-extension-for-pytorch": "2.8.0", "oneccl-bind-pt": "2.8.0"}
    return Facts(
        arch="x86_64",
        uarch="Cascade Lake" if odd else "Sapphire Rapids",
        model_name="Intel(R) Xeon(R) Platinum 8480+",
        isa_level="AVX512_VNNI" if odd else "AMX",
        sockets=2,
        cores_per_socket=28 if odd else 56,
        threads_per_core=2,
        numa=(NumaNode(0, tuple(range(56)), 263_000_000), NumaNode(1, tuple(range(56, 112)))),
        mem_total_kb=527_000_000,
        distribution="Debian GNU/Linux 12",
        glibc="2.36",
        flags=frozenset({"avx2", "avx512f"}),
        pythons=(Python("/usr/bin/python3", "3.11.2"),),
        installed=Installed("/home/me/.local/share/ipexctl/venv", True, "3.11.2", packages),
    )


def checked(
    hosts: Iterable[DoctorHost], findings: Iterable[Finding] = (), isa: str | None = None, advice: tuple[str, ...] = ()
) -> DoctorAnswer:
    network = NetworkCheck(0, (), None, None, None, (), {})
    return DoctorAnswer(tuple(hosts), tuple(findings), isa, advice, network)


def doctor(count: int = 8, seed: int = 0) -> Iterator[Stamped]:
    """All hosts alike but one; one host does not answer where there are more than eight."""
    chance = random.Random(seed)
    hosts = names(count)
    odd = hosts[min(4, count - 1)]
    at = START
    yield Stamped(at, e.Started("doctor", f"{count} hosts from hosts (node0 = {hosts[0]})", hosts))
    order = list(hosts)
    chance.shuffle(order)
    for host in order:
        at += chance.random() * 2 / count
        yield Stamped(at, e.StepStarted(host, "connect"))
    dark = hosts[-1] if count > 8 else ""
    for host in order:
        at += chance.random() * 2 / count
        if host == dark:
            failure = Failure(host, Kind.UNREACHABLE, "no answer within 10 s (10.0.0.9:22)", code="timeout")
            yield Stamped(at, e.HostFailed(failure))
            continue
        yield Stamped(at, e.StepStarted(host, "probe"))
        yield Stamped(at, e.FactsRead(host, facts(host == odd)))
        yield Stamped(at, e.StepEnded(host, "probe"))
    findings = [
        Finding(
            "CPU002",
            "error",
            (odd,),
            "lowers the cluster to AVX512_VNNI (bf16 would be emulated there)",
            "flags without avx512_bf16 and amx_bf16",
            f"leave it out (--limit '!{odd}'), or cap all hosts: run --isa common",
        ),
        Finding("NET004", "warning", hosts[:2], "MTU 9000 set, 1500 passes", "", "ip link set eth1 mtu 1500"),
        Finding("EOL001", "info", (), "has IPEX, which ended with 2.8: this stack works, there will be no newer one"),
    ]
    for finding in findings:
        yield Stamped(at, e.FindingReported(finding))
    every = (DoctorHost(host, facts(host == odd)) for host in hosts if host != dark)
    advice = "bf16 on 7 hosts; 4 ranks a host (one per NUMA half), 27 cores each, 1 for CCL"
    yield Stamped(at, e.Answer(checked(every, findings, "AVX512_VNNI", (advice,))))
    yield Stamped(at, e.Ended("doctor", Exit.UNREACHABLE if dark else Exit.STEP))


def install(count: int = 8, seed: int = 1) -> Iterator[Stamped]:
    """Wheels travel to every host at its own speed; one host has no space."""
    chance = random.Random(seed)
    hosts = names(count)
    at = START
    title = "torch 2.8.0 · intel_extension_for_pytorch 2.8.0 · impi-rt 2021.18.1 · Python 3.11"
    yield Stamped(at, e.Started("install", title, hosts))
    yield Stamped(at, e.PhaseStarted(2, 4, "send the wheels"))
    total = int(1.2 * GIB)
    full = hosts[min(4, count - 1)]
    for host in hosts:
        yield Stamped(at, e.StepStarted(host, "upload wheels"))
    speed = {host: chance.uniform(80e6, 400e6) for host in hosts}
    done = dict.fromkeys(hosts, 0.0)
    waiting = set(hosts)
    while waiting:
        at += 0.2
        for host in sorted(waiting):
            done[host] += speed[host] * 0.2
            if host == full and done[host] > total / 3:
                waiting.discard(host)
                yield Stamped(at, e.StepEnded(host, "upload wheels", "failed", "no space left on device"))
                what = "no space left: need 3.4 GiB, 614 MiB free in /home"
                yield Stamped(at, e.HostFailed(Failure(host, Kind.STEP, what, ANOTHER_PATH, "no-space")))
            elif done[host] >= total:
                waiting.discard(host)
                yield Stamped(at, e.StepEnded(host, "upload wheels", "changed", "1.2 GiB"))
                yield Stamped(at, e.StepStarted(host, "verify"))
                yield Stamped(at + 0.1, e.StepEnded(host, "verify", "ok", "AMX · bf16 step 3 ms"))
            else:
                yield Stamped(at, e.Progress(host, "upload wheels", int(done[host]), total, "B", "from here"))
    yield Stamped(at, e.Planned("install", "xeon01: uv pip install …"))
    good = [host for host in hosts if host != full]
    mpi = StackMpi("impi-rt", "2021.18.1")
    stack = StackSummary("ipex-2.8", "2.8.0", "2.8.0", None, None, "impi", "3.11", mpi)
    answer = InstallAnswer(tuple(good), {full: "no space left"}, "/home/me/env", "ab12", stack, False, "…", (), ())
    yield Stamped(at, e.Answer(answer))
    yield Stamped(at, e.Ended("install", Exit.STEP))


def run(
    count: int = 4, ppn: int = 2, steps: int = 60, seed: int = 2, fails: int | None = None, rate: float = 2.0
) -> Iterator[Stamped]:
    """A training run: stages, losses on rank 0, bars on all ranks, warnings; rank ``fails`` raises half-way."""
    chance = random.Random(seed)
    hosts = names(count)
    ranks = tuple(host for host in hosts for _ in range(ppn))
    at = START
    yield Stamped(at, e.Started("run", "train_ddp.py", hosts))
    yield Stamped(at, e.Planned("run", "mpirun -n 8 …\n"))
    for host in hosts:
        yield Stamped(at, e.StepStarted(host, "sync"))
        yield Stamped(at, e.FilesLeftOut({"data/": "data"}))
        at += 0.05
        yield Stamped(at, e.StepEnded(host, "sync", "changed", "3 files"))
    isas = dict.fromkeys(hosts, "AMX")
    yield Stamped(at, e.RunStarted("1031-k7", hosts[0], ranks, "mpirun -n 8 …", 0.0, "", "gloo", "bf16", isas))
    for stage in ("start", "python", "torch", "rendezvous", "running"):
        for rank, host in enumerate(ranks):
            at += chance.random() / len(ranks)
            yield Stamped(at, e.RankStage(rank, host, stage, at - 0.01))
    for rank, host in enumerate(ranks):
        yield Stamped(at, e.Output(rank, host, "out", b"Downloading tokenizer\xe2\x80\xa6\n"))
    yield Stamped(at, e.Output(ranks.index(hosts[-1]), hosts[-1], "err", _WARNING))
    ended: set[int] = set()
    for step in range(1, steps + 1):
        at += 1 / rate
        for rank, host in enumerate(ranks):
            if fails == rank and step > steps // 2:
                yield Stamped(at, e.Output(rank, host, "err", _TRACEBACK))
                error = "RuntimeError: loss is NaN at step 31"
                end = e.RankEnded(rank, host, 1, 0, at - 0.02, "", error, _TRACEBACK.decode())
                yield Stamped(at, end)
                ended.add(rank)
                continue
            line = f"step {step} loss {2.0 / (1 + step / 10):.3f} rank {rank}\n".encode()
            yield Stamped(at, e.Output(rank, host, "out", line))
            bar = f"\rtrain: {100 * step // steps:3d}%|{'█' * (step * 10 // steps):10s}| {step}/{steps}".encode()
            yield Stamped(at, e.Output(rank, host, "err", bar, partial=True))
        if ended:
            break
    at += 1
    for rank, host in enumerate(ranks):
        if rank not in ended:
            stopped = bool(ended)
            status, number = (None, 15) if stopped else (0, 0)
            cause: Any = "stopped" if stopped else ""
            yield Stamped(at, e.RankEnded(rank, host, status, number, at, cause))
    yield Stamped(at, e.RunEnded("1031-k7", "rank" if ended else "done"))
    at += 0.3
    yield Stamped(at, e.CleanupChecked("1031-k7", hosts, {}))
    yield Stamped(at, e.FailuresIgnored("train"))
    yield Stamped(at, e.Ended("run", Exit.RANK if ended else Exit.OK))


def training(slow: int = 5, steps: int = 40, rate: float = 2.31) -> Iterator[Stamped]:
    """8 ranks on 4 hosts that print figures, one of them at half the pace of the others; harmless lines; samples."""
    hosts, at = names(4), START
    ranks = tuple(host for host in hosts for _ in range(2))
    yield Stamped(at, e.Started("run", "train_ddp.py", hosts))
    for host in hosts:
        yield Stamped(at, e.FactsRead(host, facts()))
    at += 1
    isas = dict.fromkeys(hosts, facts().isa_level or "")
    yield Stamped(at, e.RunStarted("1120-093101-7c1f", hosts[0], ranks, "", 0.0, "", "impi", "bf16", isas))
    for delay, stage in ((0.1, "python"), (0.6, "torch"), (2.0, "rendezvous"), (1.2, "running")):
        at += delay
        for rank, host in enumerate(ranks):
            yield Stamped(at, e.RankStage(rank, host, stage, at))
    for rank, host in enumerate(ranks):
        yield Stamped(at, e.Output(rank, host, "err", _KERNEL * 3))
    yield Stamped(at, e.Output(6, hosts[3], "err", _WARNING))
    begun, done = at, dict.fromkeys(range(len(ranks)), 0)
    while min(done.values()) < steps // 2:
        at += 0.1
        for rank, host in enumerate(ranks):
            pace = rate / 2 if rank == slow else rate
            if (step := int((at - begun) * pace)) > done[rank]:
                done[rank] = step
                line = f"step {step} loss {2 / (1 + step / 9) + rank / 500:.4f} {pace:.2f} it/s\n"
                yield Stamped(at, e.Output(rank, host, "out", line.encode()))
        if round((at - begun) * 10) % 50 == 0:
            for number, host in enumerate(hosts):
                busy = [27.4, 13.1 if 2 * number + 1 == slow else 27.3]
                own = tuple(e.RankSample(2 * number + n, cpu, (31 + n) * GIB) for n, cpu in enumerate(busy))
                yield Stamped(at, e.HostSample(host, at, 5.0, 55.0, 112, 70 * GIB, 503 * GIB, ranks=own))


def stopping(*codes: str) -> Iterator[Stamped]:
    """`training`, of which the user asked that it ends: "stop" is the first Ctrl-C, "kill" the second."""
    messages = {"stop": "stopping (again to kill)", "kill": "killing"}
    for stamped in training():
        if stamped.at > START + 20:
            break
        yield stamped
    yield from stamp([e.Message(messages[code], "warning", code=code) for code in codes], START + 20)


_KERNEL = b"""[W1120 09:31:04.000000000 OperatorEntry.cpp:218] Warning: Warning only once for all operators
  Overriding a previously registered kernel for the same operator and the same dispatch key
"""
_WARNING = b"UserWarning: lr_scheduler.step() before optimizer.step()\n"
_TRACEBACK = b"""Traceback (most recent call last):
  File "train_ddp.py", line 88, in <module>
    main()
  File "train_ddp.py", line 61, in main
    raise RuntimeError(f"loss is NaN at step {step}")
RuntimeError: loss is NaN at step 31
"""


def hostile() -> Iterator[Stamped]:
    """Everything a rank, a host name and an error text can do to a terminal."""
    evil = "xe\x1b[2Jon[/bold]\u202e"
    at = START
    yield Stamped(at, e.Started("run", "[bold red]title[/foo]\x1b]0;pwned\x07", (evil,)))
    yield Stamped(at, e.StepStarted(evil, "[link=https://evil]step[/link]"))
    yield Stamped(at, e.Progress(evil, "step\x1b[?1049h", 3, 9, "fi\x9bles", ":smile:\x1b[5n"))
    yield Stamped(at, e.StepEnded(evil, "step", "failed", "what\x1bP\nsecond[/]"))
    yield Stamped(at, e.Message("said \x9b31m [@click=x]", "warning", evil))
    yield Stamped(at, e.RunStarted("r\x1bc", evil, (evil, evil), "mpirun"))
    yield Stamped(at, e.RankStage(0, evil, "sta\x1b[31mge", at))
    yield from (Stamped(at, event) for event in (e.CaughtUp(), e.Resumed(at)))
    yield Stamped(at, e.StallCompared((1,), "rank 1 \x1b[2J on [/x]"))
    yield Stamped(at, e.PlacesSampled((StallPlace((0,), "a.py:1\x1b[2J", "[/x]"),)))
    yield Stamped(at, e.Stalled((0, 1), 60.0, "all", {"0": "D\x1b[2J", "1": "[/x]"}))
    yield Stamped(at, e.RankStack(1, evil, 7, "D\x1b", "nfs\x1b[2J", 'File "\x1b]0;x\x07", line 1 in [/f]\n'))
    for data in HOSTILE:
        for stream in ("out", "err"):
            at += 0.01
            yield Stamped(at, e.Output(0, evil, "out" if stream == "out" else "err", data, not data.endswith(b"\n")))
    yield Stamped(at, e.LauncherOutput("err", b"\x1b]52;c;cHduZWQ=\x07\n"))
    yield Stamped(
        at, e.FindingReported(Finding("X\x1b[H1", "error", (evil,), "ti\x1btle[/x]", "ev\x9bidence", "f\x1bix"))
    )
    end = e.RankEnded(0, evil, 3, 0, at, "", "Err\x1b[2J: [/x]", "Traceback\x1b]0;x\x07\n  [/x]\n")
    yield Stamped(at, end)
    yield Stamped(at, e.RankEnded(1, evil, None, 9, at))
    yield Stamped(at, e.RunEnded("r\x1bc", "rank", "de\x1btail"))
    yield Stamped(at, e.CleanupChecked("r\x1bc", (evil,), {evil: (1, 2)}))
    yield Stamped(at, e.HostFailed(Failure(evil, Kind.LOST, "wh\x1bat[/x]", "hi\x1bnt", "co\x1bde")))
    yield Stamped(at, e.Answer(UnknownAnswer({"k\x1bey": "v\x1bal", "rows": [{"a\x1b": "[/b]\x9b"}]})))
    yield Stamped(at, e.Ended("run", Exit.RANK))


HOSTILE = (
    b"clear \x1b[2J\x1b[H cursor \x1b[10A\n",
    b"title \x1b]0;pwned\x07 link \x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\\n",
    b"clip \x1b]52;c;cHduZWQ=\x07 dcs \x1bP$q\x1b\\ query \x1b[6n\x1b[c alt \x1b[?1049h\n",
    b"c1 \x9b31m utf8 \xc2\x9b31m bell \x07 nul \x00 back \x08\x08\n",
    b"split \x1b",
    b"[2J over two\n",
    b"never ended \x1b]0;x\n",
    "bidi \u202e\u2066 evil \u200f\n".encode(),
    b"\x1b[31mred stays open\n",
    b"[/foo]\n[bold red]x\n[link=https://evil]ok[/link]\n[@click=...]\n:smile:\n\\[x]\n[\n",
    bytes(range(256)) + b"\n",
    "€".encode()[:1],
    "€".encode()[1:] + "😀".encode()[:3],
    "😀".encode()[3:] + b"\n",
)


def stamp(events: list[Event], start: float = START, step: float = 0.1) -> list[Stamped]:
    return [Stamped(start + index * step, event) for index, event in enumerate(events)]


def fold(events: Iterable[Stamped], *, lost: LostOutput | None = None) -> CommandReport:
    """The report of a whole stream."""
    return make_report(fold_state(events), lost=lost)


def save(record: RunRecord, events: Iterable[Stamped], *, report: bool = True) -> RunRecord:
    """Writes a whole stream, and its report, into a record."""
    stream = list(events)
    for stamped in stream:
        record.handle_event(stamped)
    record.close(fold(stream) if report else None)
    return record


def feed(sink: Any, events: Iterable[Stamped]) -> RunState:
    """Hands events to a sink, each with what is known after it, as the loop does."""
    feeder = Feeder(sink)
    for stamped in events:
        feeder.handle_event(stamped)
    return feeder.state


class Feeder:
    """Hands single events to a sink in the same way."""

    def __init__(self, sink: Any) -> None:
        self._sink, self._fold = sink, RunFold()
        self.state = self._fold.state

    def handle_event(self, stamped: Stamped) -> None:
        self._fold.handle_event(stamped)
        self._sink.handle_event(stamped, self.state)


def fold_state(events: Iterable[Stamped]) -> RunState:
    """What is known after a whole stream."""
    fold = RunFold()
    for stamped in events:
        fold.handle_event(stamped)
    return fold.state


def main() -> None:
    """Plays a stream in real time: MODE VERB HOSTS [SPEED]."""
    from ipexctl.show.pipe import Pipe
    from ipexctl.show.sinks import JsonAnswer, JsonLines, Plain

    mode, verb, count, *rest = sys.argv[1:]
    speed = float(rest[0]) if rest else 1.0
    out, err = Pipe(sys.stdout), Pipe(sys.stderr)
    sink: Any
    if mode == "live":
        from ipexctl.show.live import Live

        sink = Live(out, on_detach=sys.exit)
    else:
        sink = {"plain": Plain(out, err), "json": JsonLines(out), "answer": JsonAnswer(out, err)}[mode]
    stream = {
        "doctor": lambda: doctor(int(count)),
        "install": lambda: install(int(count)),
        "run": lambda: run(int(count)),
        "fail": lambda: run(int(count), fails=3),
        "hostile": hostile,
    }[verb]()
    fold, before = RunFold(), START
    for stamped in stream:
        time.sleep(max(stamped.at - before, 0) / speed)
        before = stamped.at
        fold.handle_event(stamped)
        sink.handle_event(stamped, fold.state)
    report = make_report(fold.state)
    sink.close(report)
    sys.exit(report.exit)


if __name__ == "__main__":
    main()
