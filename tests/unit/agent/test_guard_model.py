"""The guard of one host against a keeper, ranks and a process table that hypothesis plays: the real `Guard` on a real
sealed connection, its records in a real directory; its processes and its steady clock are the test's. Orders come late,
twice or damaged, ranks end in all ways or not at all, the keeper goes away, the host stands still. Every history ends,
cleans once, and has one end for each rank.

`make fuzz` plays other histories each time; ``IPEXCTL_HISTORIES=10000`` so many.
"""

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ipexctl.protocol import messages, paths, rank_records
from ipexctl.protocol.messages import KINDS
from ipexctl.protocol.rank_records import RankEnded, RankStarted
from ipexctl.protocol.run_spec import RankSpec
from ipexctl.protocol.seal import KEEPER, Greeting
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import files, rpc
from ipexctl.remote.agent.guard import Guard
from ipexctl.remote.agent.procs import Process
from tests.unit.agent.runs import SPEC

RANKS = range(3)
PART = SPEC._replace(
    host="b", label="h1.ipexctl", size=len(RANKS), ranks={rank: RankSpec(rank) for rank in RANKS}, head=None,
    timings=Timings(orderly=0.0, flush=0.0),
)  # fmt: skip
LEASE = PART.timings.node_lease
GREETING = Greeting("challenge", "nonce", paths.Role.GUARD, "b", 0.0)
FIRST_PID = 1 << 23  # more than the kernel gives to anybody
ORDERS = (messages.Ping(1.0), messages.RanksPort(4000), messages.Terminate(), messages.Kill())
TURN = st.integers(0, 5)  # what ends a history happens at 0: then most live long enough to have ranks
GOOD, BAD, KILLED = {"status": 0}, {"status": 3}, {"signal": 9}


class Table:
    """The host's processes. Their parents do not die with them; what is ``deaf`` no signal ends."""

    def __init__(self) -> None:
        self.next = FIRST_PID
        self.living: dict[int, Process] = {}
        self.deaf: set[int] = set()
        self.on_kill: Callable[[int], None] = lambda pid: None  # what others do when it is killed

    def born(self, parent: int) -> int:
        self.next += 1
        self.living[self.next] = Process(self.next, self.next, parent, "S")
        return self.next

    def end(self, pid: int) -> None:
        if pid in self.living and pid not in self.deaf:
            del self.living[pid]


class PlayedWire(rpc.Wire):
    """The guard's side of the connection; when it heard last is of the test's clock."""

    steady = 0.0

    def receive(self) -> Iterator[rpc.Received]:
        before = self.heard
        for message in super().receive():
            self.heard = before = self.steady
            yield message
        self.heard = before


class PlayedGuard(Guard):
    """`Guard` on the test's processes; it notes how often it ended its part."""

    table: Table
    cleanings = 0
    finished = False  # in order, and not alone

    def finish_run(self, stay: bool = False) -> None:
        self.finished = True
        super().finish_run(stay)
        assert not self.proxies, "their ends would wake it again and again"

    def find_process(self, pid: int, proc: str = "/proc") -> Process | None:
        return self.table.living.get(pid)

    def send_signal(self, processes: Iterable[Process], number: int) -> None:
        for process in processes:
            if number == signal.SIGKILL:
                self.table.end(process.pid)
                self.table.on_kill(process.pid)

    def reap(self) -> None:
        """The host's processes are none of the test's."""

    def start_proxy(self, words: list[str]) -> None:
        pid = self.table.born(os.getpid())
        self.proxies.add(pid)

    def list_launcher_processes(self, all_now: object = None) -> set[int]:
        return set(self.proxies)

    def find_rank_processes(self, spare: Iterable[int] = ()) -> list[Process]:
        out = self.list_launcher_processes().union(spare)
        return [process for process in self.table.living.values() if process.pid not in out]

    def kill_all(self, patience: float, spare: Iterable[int] = ()) -> list[Process]:
        out = set(spare)
        if patience == self.spec.timings.wipe:
            assert out >= {process.pid for process in self.ranks.alive.values()}, (
                "wrappers end, and tell, by themselves"
            )
        self.cleanings += patience in (self.spec.timings.last_wipe, self.spec.timings.leave)
        for pid in [pid for pid in self.table.living if pid not in out]:
            self.table.end(pid)
        return [process for process in self.table.living.values() if process.pid not in out]


class GuardAndKeeper(RuleBasedStateMachine):
    """What the keeper has sent and has not arrived is in ``mail``; ``scripts`` are the ranks' own processes."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="ipexctl-guard-"))
        self.directory = self.place / "run"
        (self.directory / paths.RANKS).mkdir(parents=True)
        ours, theirs = socket.socketpair()
        self.wire, self.link = PlayedWire(ours), rpc.Wire(theirs)
        self.wire.start_sealing(PART.token, "caller", GREETING)
        self.link.start_sealing(PART.token, KEEPER, GREETING)
        self.wire.heard = self.wire.steady = self.steady = 0.0
        self.guard = PlayedGuard(str(self.directory), PART, self.wire, 0o022)
        self.guard.last = self.guard.heard = 0.0
        self.guard.table = self.table = Table()
        self.guard.start_proxy([])
        self.mail: list[tuple[int, bytes]] = []  # a line and its number, or -1 where it was altered
        self.sent = self.arrived = 0  # lines
        self.result: list[object] = []  # what the keeper received
        self.wrappers: dict[int, int] = {}
        self.scripts: dict[int, int] = {}
        self.records: dict[int, RankEnded] = {}  # ends that wrappers wrote, and that can be read
        self.lost = False  # the keeper: gone, or a line that is not its next one has arrived
        self.over = self.in_order = False
        self.table.on_kill = self.record_kill

    @initialize(in_order=st.booleans())
    def choose_end(self, in_order: bool) -> None:
        """Whether the keeper asks for the end, if it is still there."""
        self.in_order = in_order

    # what the keeper does

    def say(self, message: messages.Message) -> None:
        if self.link.open and self.link.sending:
            self.mail.append((self.sent, self.link.sending.seal(KINDS.write(message)) + b"\n"))
            self.sent += 1

    @rule(order=st.sampled_from(ORDERS), times=st.integers(1, 2))
    def order(self, order: messages.Message, times: int) -> None:
        for _ in range(times):
            self.say(order)

    @rule()
    def start_proxy(self) -> None:
        self.say(messages.StartProxy(["hydra_pmi_proxy"]))

    @rule(turn=TURN)
    def ask_to_finish(self, turn: int) -> None:
        if not turn:
            self.say(messages.Finish())

    @rule(count=st.integers(1, 9))
    @precondition(lambda self: self.mail)
    def arrive(self, count: int) -> None:
        self.deliver(count)
        self.look(0.2)

    def deliver(self, count: int) -> None:
        for number, line in self.mail[:count]:
            if self.link.open:
                with suppress(OSError):  # the guard has ended
                    self.link.sock.sendall(line)
                self.lost |= number != self.arrived
                self.arrived += 1
        del self.mail[:count]

    @rule(at=st.integers(0, 9), how=st.sampled_from(["lost", "doubled", "altered"]), turn=TURN)
    @precondition(lambda self: self.mail)
    def damage(self, at: int, how: str, turn: int) -> None:
        """Somebody on the way."""
        if turn:
            return
        at %= len(self.mail)
        mail, altered = self.mail[at], (-1, self.mail[at][1][:-2] + b"?\n")
        self.mail[at : at + 1] = {"lost": [], "doubled": [mail, mail], "altered": [altered]}[how]

    @rule(turn=TURN)
    def leave(self, turn: int) -> None:
        if not turn:
            self.lost = True
            self.link.close()
            self.mail.clear()

    # what happens on the host

    @rule(rank=st.sampled_from(RANKS), readable=st.booleans())
    def start_rank(self, rank: int, readable: bool) -> None:
        if rank in self.wrappers or self.over or not self.guard.proxies:
            return
        wrapper = self.wrappers[rank] = self.table.born(min(self.guard.proxies))
        script = self.scripts[rank] = self.table.born(wrapper)
        self.write(files.BEGIN, rank_records.RankBegun(rank, wrapper, 0))
        if readable:
            self.write(files.START, RankStarted(rank, "b", wrapper, script, [], 1.0))
        else:
            (self.directory / files.build_record_path(rank, files.START)).write_bytes(b'{"kind": ')

    def write(self, kind: str, record: rank_records.RankRecord) -> None:
        if self.directory.exists():
            files.write_record(str(self.directory), kind, record)

    @rule(rank=st.sampled_from(RANKS), how=st.sampled_from([GOOD, BAD, KILLED, None]), readable=st.booleans())
    def end_rank(self, rank: int, how: dict[str, int] | None, readable: bool) -> None:
        """Its script ends, then its wrapper, with a record of it, one that nobody can read, or none."""
        if self.wrappers.get(rank) not in self.table.living:
            return
        self.table.end(self.scripts[rank])
        if how is not None and readable:
            self.records[rank] = RankEnded(rank, "b", at=2.0, **how)  # type: ignore[arg-type]
            self.write(files.END, self.records[rank])
        elif how is not None and self.directory.exists():
            (self.directory / files.build_record_path(rank, files.END)).write_bytes(b"[1")
        self.table.end(self.wrappers[rank])

    def record_kill(self, pid: int) -> None:
        """The wrapper of a script that was killed tells, and ends."""
        for rank in (rank for rank, script in self.scripts.items() if script == pid not in self.table.living):
            if self.wrappers[rank] in self.table.living:
                self.records[rank] = RankEnded(rank, "b", at=3.0, signal=9)
                self.write(files.END, self.records[rank])
                self.table.end(self.wrappers[rank])

    @rule(rank=st.sampled_from(RANKS))
    def fork(self, rank: int) -> None:
        """A stray, or one of many."""
        if self.scripts.get(rank) in self.table.living.keys() - self.table.deaf:
            self.table.born(self.scripts[rank])

    @rule(rank=st.sampled_from(RANKS))
    def get_stuck(self, rank: int) -> None:
        """Its script waits for a dead disk."""
        if self.scripts.get(rank) in self.table.living:
            self.table.deaf.add(self.scripts[rank])

    @rule()
    def end_proxy(self) -> None:
        for pid in self.guard.proxies & self.table.living.keys():
            self.table.end(pid)

    # time

    @rule(seconds=st.floats(0.1, 5.0), pinged=st.booleans())
    def wait(self, seconds: float, pinged: bool) -> None:
        if pinged:
            heard = [message.steady for message in self.result if isinstance(message, messages.Pong)]
            self.say(messages.Ping(1.0, max(heard, default=0.0)))
            self.deliver(len(self.mail))
        self.look(seconds)

    @rule(seconds=st.floats(LEASE + 0.1, 1e6), turn=TURN)
    def stand_still(self, seconds: float, turn: int) -> None:
        """The host was suspended: the others have given it up, whatever has arrived meanwhile."""
        if not turn:
            self.deliver(len(self.mail))
            before = self.over
            self.look(seconds)
            assert before or (self.over and not self.guard.finished)

    def look(self, seconds: float) -> None:
        if self.over:
            return
        self.steady += seconds
        self.wire.steady = self.steady
        self.over = not self.guard.do_round(self.steady)
        if self.link.open:
            self.result += self.link.receive()
        assert self.over or not self.lost, "it ends at once where the keeper is lost"

    def teardown(self) -> None:
        """The keeper asks for the end, or says nothing more: then it ends after the lease."""
        try:
            if self.in_order and not self.over:
                self.say(messages.Finish())
                self.deliver(len(self.mail))
                self.look(0.2)
                assert self.over
            for _ in range(6):
                self.look(LEASE / 4)
            assert self.over
            if self.link.open:
                self.result += self.link.receive()
            self.judge()
        finally:
            self.wire.close()
            self.link.close()
            shutil.rmtree(self.place)

    def judge(self) -> None:
        assert self.guard.cleanings == 1
        left = self.table.living.keys()
        assert left <= self.table.deaf, "nothing is left but what no signal ends"
        cleaned = [message for message in self.result if isinstance(message, messages.Cleaned)]
        ends = [message for message in self.result if isinstance(message, RankEnded)]
        assert len({end.rank for end in ends}) == len(ends), "one end for each rank"
        for end in ends:
            recorded = end._replace(ending=False) == self.records.get(end.rank)
            assert end.lost or recorded, "an end that nobody recorded is a loss"
            assert not end.ending or self.guard.ranks.ending_since is not None
            assert end.rank not in self.records or not end.lost, "a recorded end is no loss"
        if cleaned:
            assert cleaned == self.result[-1:], "the last word, once"
            assert {pid for pid, _ in cleaned[0].left} == left
            assert {end.rank for end in ends} == set(PART.ranks), "every rank is accounted for"
            assert self.directory.exists() == bool(left)
        elif left and not self.guard.finished:
            assert self.directory.exists(), "who asks for the run finds it"
        assert bool(left) or not self.directory.exists(), "its files are gone where nothing else is left"


TestGuardAndKeeper = GuardAndKeeper.TestCase
TestGuardAndKeeper.settings = settings(
    max_examples=int(os.environ.get("IPEXCTL_HISTORIES", settings.default.max_examples if settings.default else 100)),
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


def test_the_end_of_a_rank_says_whether_its_guard_had_begun_to_end_the_ranks() -> None:
    host = GuardAndKeeper()
    for rank in RANKS:
        host.start_rank(rank, readable=True)
    host.look(0.2)
    host.end_rank(0, BAD, readable=True)
    host.say(messages.Terminate())
    host.deliver(1)
    host.look(0.2)  # the guard reads the order before the record
    assert host.guard.ranks.ending_since is not None
    for rank, seconds in ((1, -0.001), (2, 0.0)):
        host.write(files.END, RankEnded(rank, "b", status=3, at=host.guard.ranks.ending_since + seconds))
    host.look(0.2)
    assert {end.rank: end.ending for end in host.result if isinstance(end, RankEnded)} == {0: False, 1: False, 2: True}
    host.wire.close()
    host.link.close()
    shutil.rmtree(host.place)
