"""The keeper against hosts that hypothesis plays: joins, losses, deaths, stops, clock jumps, messages that are late,
doubled or missing, in any order. Every history ends in *done*, and the report has an end or a loss for every rank.

`make fuzz` plays other histories each time; ``IPEXCTL_HISTORIES=100000`` so many.
"""

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.journal_events import JournalReader
from ipexctl.decide.run.report import make_report
from ipexctl.model.errors import Exit
from ipexctl.model.events import CleanupChecked, Ended, Stamped, Started
from ipexctl.model.launch import Running
from ipexctl.protocol import frames, journal, messages
from ipexctl.protocol.rank_records import RankEnded, RankStarted
from ipexctl.remote.agent import keeper_state as ks
from ipexctl.remote.agent.keeper_steps import next_step
from tests.unit.agent.test_keeper_state import CLOCK, HOST_OF, NODES, TWO, check_states

hosts = st.sampled_from(sorted(NODES))
ranks = st.sampled_from(sorted(HOST_OF))
WAYS: tuple[dict[str, Any], ...] = (
    {"status": 0}, {"status": 0}, {"status": 3}, {"signal": 9}, {"signal": 15, "stopped": True}, {"lost": True},
    {"abort": 7},
)  # fmt: skip


class KeeperAndHosts(RuleBasedStateMachine):
    """Guards answer what the keeper sends them, as long as they are connected; what is on its way is in ``mail``."""

    def __init__(self) -> None:
        super().__init__()
        self.steady, self.skew = 0.0, 0.0
        self.run = ks.KeeperRun(TWO, self.now)
        self.states, self.notes, self.closed = [self.run.state], [], []  # type: ignore[var-annotated]
        self.mail: list[ks.FromGuard] = []
        self.alive: set[str] = set()  # hosts with a guard
        self.living: set[int] = set()  # ranks
        self.born: set[int] = set()
        self.reported: dict[int, RankEnded] = {}  # ends that were delivered

    @property
    def now(self) -> ks.Moment:
        return ks.Moment(self.steady, CLOCK + self.steady + self.skew)

    def feed(self, what: ks.Input) -> None:
        actions = next_step(self.run, what, self.now)
        self.states.append(self.run.state)
        for action in actions:
            if isinstance(action, ks.Note):
                self.notes.append(action.record)
            elif isinstance(action, ks.Close):
                self.closed.append(action.end)
                self.notes.append(action.end)
            elif isinstance(action, ks.Disconnect):
                self.alive.discard(action.host)
            elif isinstance(action, ks.Send):
                for host in (
                    sorted(self.alive) if not action.host else [action.host] if action.host in self.alive else []
                ):
                    self.answer(host, action.message)

    def answer(self, host: str, message: messages.Message) -> None:
        if isinstance(message, messages.Kill):
            for rank in sorted(self.living):
                if HOST_OF[rank] == host:
                    self.living.discard(rank)
                    self.mail.append(ks.FromGuard(host, RankEnded(rank, host, signal=9, at=self.now.clock)))
        elif isinstance(message, messages.Finish):
            self.mail.append(ks.FromGuard(host, messages.Cleaned([])))
        elif isinstance(message, messages.Begin):
            self.mail.append(ks.FromGuard(host, messages.Begun(message.layout.number)))
        elif isinstance(message, messages.Ping):
            self.mail.append(ks.FromGuard(host, messages.Pong(message.sent, self.now.clock)))
        elif isinstance(message, messages.ReportStacks):
            self.mail.append(ks.FromGuard(host, messages.StacksReported()))

    def deliver(self, sent: ks.FromGuard) -> None:
        if sent.host in self.alive and self.run.state is not ks.RunPhase.DONE:
            if isinstance(sent.message, RankEnded):
                self.reported.setdefault(sent.message.rank, sent.message)
            self.feed(sent)

    @rule(host=hosts)
    def join(self, host: str) -> None:
        if host not in self.run.lost and self.run.state is ks.RunPhase.GATHERING:
            self.alive.add(host)
            self.feed(ks.GuardConnected(host, self.now.clock))
            self.mail.append(ks.FromGuard(host, messages.Joined()))

    @rule(fails=st.booleans())
    @precondition(lambda self: self.run.state is ks.RunPhase.LAUNCHING)
    def launch(self, fails: bool) -> None:
        self.feed(ks.LauncherFailed("no mpirun") if fails else ks.LauncherStarted(99, 4000))

    @rule(rank=ranks)
    @precondition(lambda self: self.run.launched)
    def start_rank(self, rank: int) -> None:
        host = HOST_OF[rank]
        if host in self.alive and rank not in self.born:
            self.born.add(rank)
            self.living.add(rank)
            self.mail.append(ks.FromGuard(host, RankStarted(rank, host, 1, 2, [], self.now.clock)))

    @rule(rank=ranks, how=st.sampled_from(WAYS), off=st.floats(-5, 5))
    @precondition(lambda self: self.living)
    def end_rank(self, rank: int, how: dict[str, Any], off: float) -> None:
        if rank in self.living:
            self.living.discard(rank)
            self.mail.append(
                ks.FromGuard(HOST_OF[rank], RankEnded(rank, HOST_OF[rank], at=self.now.clock + off, **how))
            )

    @rule(at=st.integers(0, 30), doubled=st.booleans())
    @precondition(lambda self: self.mail)
    def arrive(self, at: int, doubled: bool) -> None:
        at %= len(self.mail)
        self.deliver(self.mail[at] if doubled else self.mail.pop(at))

    @rule(at=st.integers(0, 30))
    @precondition(lambda self: self.mail)
    def miss(self, at: int) -> None:
        self.mail.pop(at % len(self.mail))

    @rule(host=hosts)
    def lose(self, host: str) -> None:
        if host in self.alive:
            self.alive.discard(host)
            self.feed(ks.GuardLost(host, "gone"))

    @rule(host=hosts)
    @precondition(lambda self: self.run.launched)
    def end_proxy(self, host: str) -> None:
        self.mail.append(ks.FromGuard(host, messages.ProxyEnded("")))

    @rule(status=st.integers(-15, 255))
    @precondition(lambda self: self.run.launched)
    def end_launcher(self, status: int) -> None:
        self.feed(ks.LauncherEnded(status))

    @rule(seconds=st.floats(0, 40), watched=st.booleans())
    def wait(self, seconds: float, watched: bool) -> None:
        self.steady += seconds
        self.feed(ks.Tick(watched))

    @rule(seconds=st.floats(-1e7, 1e7))
    def jump(self, seconds: float) -> None:
        """Somebody sets the head's clock."""
        self.skew += seconds

    @rule(kill=st.booleans())
    def stop(self, kill: bool) -> None:
        self.feed(messages.KillRun("why") if kill else messages.StopRun("why"))

    @rule(some=st.sampled_from([journal.Stall([0], True, True, 9.0, {}), journal.Straggling([0], 3, 9.0)]))
    def doubt(self, some: Any) -> None:
        self.feed(some)

    def teardown(self) -> None:
        self.feed(messages.StopRun("enough"))
        for _ in range(6):
            for sent in [self.mail.pop(0) for _ in range(len(self.mail))]:
                self.deliver(sent)
            self.steady += 60.0
            self.feed(ks.Tick(watched=False))
        check_states(self.states)
        assert self.run.state is ks.RunPhase.DONE
        assert len(self.closed) == 1
        assert self.closed[0].reason
        self.judge()

    def judge(self) -> None:
        """What the user is told of it."""
        names = tuple(HOST_OF[rank] for rank in sorted(HOST_OF))
        log, fold = JournalReader("n", Running("r", "a", names, {}, "x.py", "x.py")), RunFold()
        lines = b"".join(journal.KINDS.write(record) + b"\n" for record in self.notes)
        events = [Started("run", "x.py", tuple(NODES)), *log.read(frames.JOURNAL, lines), *log.end()]
        events += [log.over] if log.over else []
        events += [CleanupChecked("r", tuple(NODES), {}, ()), Ended("run", Exit.OK)]
        for event in events:
            fold.handle_event(Stamped(CLOCK, event))
        report = make_report(fold.state)
        assert report.run is not None
        launched = any(isinstance(record, journal.Launched) for record in self.notes)
        assert not launched or {row.rank for row in report.run.ranks} == set(HOST_OF), "every rank is accounted for"
        assert log.unreadable == 0
        good = {rank for rank, end in self.reported.items() if end.status == 0}
        for row in report.run.ranks:
            assert row.state != "ok" or row.rank in good, "an end that nobody reported is no good one"
        assert report.exit is not Exit.OK or good == set(HOST_OF), "0 only when all of it worked"


TestKeeperAndHosts = KeeperAndHosts.TestCase
TestKeeperAndHosts.settings = settings(
    max_examples=int(os.environ.get("IPEXCTL_HISTORIES", settings.default.max_examples if settings.default else 100)),
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
