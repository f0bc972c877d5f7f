"""All that is known of a command and of the runs it starts or watches. One fold of the events makes it
(`decide.run.fold`) and nothing else changes it; each view and the report read it.

Memory grows with hosts, ranks and steps, not with the output and the length of a run. Times are stamps, Unix seconds of
the controller's clock, but where ``own`` says that they are of a host's."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from ipexctl.model import events as e
from ipexctl.model.answers import AnyAnswer
from ipexctl.model.errors import Exit, Failure
from ipexctl.model.facts import Facts
from ipexctl.model.launch import PlannedLaunch
from ipexctl.model.reports import Finding, HostStep, LostLoss, RankResult, SeparateWorlds, SlowHost, StallPlace

if TYPE_CHECKING:
    from ipexctl.model.answers.tune import TriedLaunch

LineKey = tuple[int, e.Stream]  # a rank's stream
Points = tuple[tuple[float, float], ...]  # (time, value), in order of time


class NewLines(NamedTuple):
    """Whole lines of one stream, with their newlines: of one that redrew itself its last state. No rank: mpirun's."""

    rank: int | None
    host: str
    stream: e.Stream
    data: bytes


class OpenLine(NamedTuple):
    """A line that has not ended, as it stands; ``redraws``: it is a bar."""

    host: str
    data: bytes
    redraws: bool


class FigureValue(NamedTuple):
    """A value that a rank printed; ``step`` is the last that it reported before."""

    rank: int
    host: str
    stream: e.Stream
    name: str
    step: int | None
    value: float


@dataclass(slots=True)
class Series:
    """A figure over time, as the least and the greatest point of each of at most ``columns`` columns of time."""

    columns: int
    begin: float = 0.0
    width: float = 0.05  # seconds of a column
    extremes: dict[int, list[tuple[float, int, float]]] = field(default_factory=dict)  # (time, number, value)
    count: int = 0
    last: tuple[float, float] | None = None


@dataclass(slots=True)
class OutputLog:
    """What one rank wrote, within ``limit`` bytes with what lines cost: a quarter for its beginning, three quarters for
    its end. Pieces are whole lines with the time at which they ended; ``omitted`` counts the bytes left out between."""

    limit: int
    head: list[tuple[float, e.Stream, bytes]] = field(default_factory=list)
    tail: deque[tuple[float, e.Stream, bytes]] = field(default_factory=deque)
    head_size: int = 0
    tail_size: int = 0
    omitted: int = 0


@dataclass(slots=True)
class UnusualLine:
    """An unusual line and the ranks that printed it."""

    text: str
    ranks: set[int] = field(default_factory=set)
    count: int = 0
    more: int = 0  # continuation lines


@dataclass(slots=True)
class HarmlessLines:
    """Lines of one known harmless message, and the ranks that printed them."""

    ranks: set[int] = field(default_factory=set)
    count: int = 0


_LEAST_BYTES = 1 << 16  # that tell a pace: an installer that waits, or unpacks, also writes now and then


@dataclass(slots=True)
class StepState:
    """The step that a host is at, or has ended."""

    step: str = ""
    since: float = 0.0
    done: int = 0
    total: int = 0
    unit: str = "B"
    detail: str = ""
    moved: float = 0.0  # when it first made progress
    skipped: int = 0  # how far it was then: what an earlier try has done
    outcome: str = ""  # "" while it goes on

    def measure_pace(self, now: float) -> tuple[float, float] | None:
        """Bytes a second, and seconds left (0: not known); None where that says nothing yet."""
        seconds, done = now - self.moved, self.done - self.skipped
        if not self.moved or self.unit != "B" or seconds < 2 or done < _LEAST_BYTES:
            return None
        return done / seconds, max(self.total - self.done, 0) * seconds / done


@dataclass(slots=True)
class HostState:
    """A host in a command: its steps."""

    name: str
    steps: list[HostStep] = field(default_factory=list)  # that have ended
    begins: list[int] = field(default_factory=list)  # how many had, when each verb of a play began
    at: StepState = field(default_factory=StepState)
    ended: int = 0  # steps of the verb at work
    failure: Failure | None = None  # in the verb at work

    @property
    def state(self) -> Literal["failed", "busy", "done", "waiting"]:
        """What it does in the verb at work."""
        if self.failure is not None or self.at.outcome == "failed":
            return "failed"
        if self.at.step and not self.at.outcome:
            return "busy"
        return "done" if self.ended else "waiting"


class ReachedStage(NamedTuple):
    """When a rank reached a stage: by its host's ``own`` clock, and when that was seen."""

    own: float
    seen: float
    stage: str


@dataclass(slots=True)
class RankState:
    rank: int
    host: str
    at: float = 0.0  # of its last sign of life
    stage: str = ""
    staged: float = 0.0  # when its stage began
    stages: list[ReachedStage] = field(default_factory=list)
    ended: e.RankEnded | None = None
    ended_at: float = 0.0  # when that was seen
    written: dict[e.Stream, int] = field(default_factory=dict)  # bytes
    tail: bytes = b""  # its last whole lines, of both streams
    figures: dict[str, float] = field(default_factory=dict)  # the last value of each, as `read_figures` names them
    moved: float = 0.0  # of its last step, or of the last pace it printed
    counter: tuple[float, float, float] | None = None  # time and number of the last step, and of how many (0: unknown)
    steps: float = 0.0  # that it has done since the first that it printed
    seconds: float = 0.0  # that these took
    pace: float | None = None  # steps a second, measured; as printed where no steps are
    prints_loss: bool = False  # of each step: a ``train_loss`` beside it is that of an epoch
    best: float = 0.0  # the best that it has kept up
    loss: tuple[int | None, float] | None = None  # the last that was a number, with its step
    measured: tuple[float, float] = (0.0, 0.0)  # the seconds and steps until which its pace is measured
    paces: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=60))  # with times, a second apart
    cpu: float | None = None  # cores in use, as last sampled
    rss: int | None = None  # bytes
    line: str = ""  # of its script, at which it failed or stands while it stalls: "train.py:41"
    call: str = ""  # the collective in which it waits for others, while it stalls

    @property
    def result(self) -> RankResult:
        """How it ended."""
        end = self.ended
        if end is None:
            return "running"
        return end.cause or ("ok" if end.status == 0 and not end.signal and end.abort is None else "failed")


@dataclass(slots=True)
class Stall:
    """A stall from its last progress on. ``suspects`` are the ranks that the others wait for."""

    event: e.Stalled
    at: float
    message: str = ""  # what is reported of it
    comparison: tuple[str, ...] = ()  # and of its stacks
    places: tuple[StallPlace, ...] = ()  # where all of them stand
    suspects: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()  # elsewhere than the others, as their stacks tell
    stacks: list[e.RankStack] = field(default_factory=list)
    compared: bool = False  # later stacks are of `logs --stacks`
    resumed: tuple[float, float] | None = None  # when it ended, by the head's own clock and when that was seen

    def measure_silence(self, now: float) -> float:
        """Seconds from the last progress to the next, or to this moment."""
        return self.event.seconds + max((self.resumed[1] if self.resumed else now) - self.at, 0.0)

    def list_lines(self, now: float) -> tuple[str, ...]:
        """All that is reported of it at this moment: its seconds count."""
        message = self.message.replace(f"{self.event.seconds:.0f} s", f"{self.measure_silence(now):.0f} s", 1)
        return (message, *self.comparison) if message else self.comparison


@dataclass(slots=True)
class Slowdown:
    """A run that is slower than it was, from ``since`` on, or a host that has no CPU time left; ``verdict`` once it is
    known whose fault that is."""

    since: float
    best: float = 0.0  # steps a second; 0 where its pace was never better, or is not known
    pace: float = 0.0
    samples: list[tuple[StallPlace, ...]] = field(default_factory=list)
    verdict: SlowHost | None = None


@dataclass(slots=True)
class Attempt:
    """One start of a run."""

    started: e.RunStarted
    at: float
    ranks: list[RankState]
    backend: str = ""  # that is used
    columns: int = 500  # of each curve of a host
    stalls: list[Stall] = field(default_factory=list)
    separate: SeparateWorlds | None = None
    zeros: dict[int, str] = field(default_factory=dict)  # other ranks that say they are rank 0, and the lines that do
    silent: dict[str, float] = field(default_factory=dict)  # host without a sign of life → when the last one came
    unheard_since: float | None = None  # when the last sign came from the head to this machine; None while signs come
    cut_at: float = 0.0  # when the head last went out of this machine's sight
    cut_off: str = ""  # what the end was then: that of the head, and not of the hosts that it lost
    lost: dict[str, tuple[float, str]] = field(default_factory=dict)  # host → when, and what is reported of it
    lost_loss: LostLoss | None = None
    slowdown: Slowdown | None = None  # while it goes on
    slow_host: SlowHost | None = None  # the last that was found, also when that is over
    failed: RankState | None = None  # the first that was seen to fail
    launcher: bytes = b""  # mpirun's last words
    over: e.RunEnded | None = None
    over_at: float = 0.0

    @property
    def is_final(self) -> bool:
        """Whether it has ended, and no other one follows."""
        return self.over is not None and not self.over.again

    @property
    def late(self) -> bool:
        """Whether the command came later: what was before has times of its hosts only."""
        return bool(self.started.title)

    @property
    def stall(self) -> Stall | None:
        """The stall that goes on, or went on at the end."""
        return self.stalls[-1] if self.stalls and self.stalls[-1].resumed is None else None

    @property
    def suspects(self) -> tuple[int, ...]:
        """The ranks that the others wait for."""
        if self.stall:
            return self.stall.suspects
        slow = self.slowdown.verdict if self.slowdown else None
        return slow.ranks if slow else ()


@dataclass(slots=True)
class RunHistory:
    """One run: its attempts, and what is kept of all of them."""

    title: str = ""
    asked: e.Started | None = None  # with the words of the command that starts it
    plan: str = ""
    launch: PlannedLaunch | None = None
    attempts: list[Attempt] = field(default_factory=list)
    outputs: dict[int, OutputLog] = field(default_factory=dict)
    launcher: OutputLog = field(default_factory=lambda: OutputLog(64 << 10))
    figures: dict[str, dict[int, Series]] = field(default_factory=dict)
    # Rank → when a figure was no number first, which, and what it was.
    not_finite: dict[int, tuple[float, str, str]] = field(default_factory=dict)
    samples: dict[str, dict[str, Series]] = field(default_factory=dict)  # host → figure, on the head's own clock
    rank_samples: dict[str, dict[int, Series]] = field(default_factory=dict)  # figure → rank, likewise
    joules: dict[str, float] = field(default_factory=dict)
    delays: dict[str, float] = field(default_factory=dict)  # host → least of (stamp − the host's own time)
    watched_from: float = 0.0  # of a command that came later
    answer: AnyAnswer | None = None  # that of the verb `run` about it
    excused: bool = False  # it failed and may

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of all attempts."""
        return tuple(dict.fromkeys(host for attempt in self.attempts for host in attempt.started.ranks))

    @property
    def shifts(self) -> Mapping[str, float]:
        """Host → seconds to add to its own time to get the controller's: the least delay of its messages. Messages that
        waited for a command that came later tell one thing only: none is from the future."""
        if any(attempt.late for attempt in self.attempts):
            return dict.fromkeys(self.delays, min([0.0, *self.delays.values()]))
        return self.delays

    def find_end(self, attempt: Attempt) -> float:
        """When an attempt that is over ended on its head, in the controller's time; the record may have come late."""
        shift = self.shifts.get(attempt.started.head, 0.0 if attempt.late else None)
        if attempt.over is None or not attempt.over.at or shift is None:
            return attempt.over_at
        return min(attempt.over_at, attempt.over.at + shift)


@dataclass(slots=True)
class RunState:
    """A command, and the run that it is at."""

    at: float = 0.0
    command: e.Started | None = None  # the first of the command
    command_at: float = 0.0
    verb: e.Started | None = None  # the verb at work: a playbook has several
    verb_at: float = 0.0
    answered: bool = False  # the verb at work: until then a host that has nothing to do may get more
    selection_flags: tuple[str, ...] = ()  # options by which a further command finds these hosts
    phase: e.PhaseStarted | None = None
    hosts: dict[str, HostState] = field(default_factory=dict)
    working: dict[str, HostState] = field(default_factory=dict)  # the hosts of the verb at work
    facts: dict[str, Facts] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    findings: dict[Finding, None] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)  # with their codes
    left_out: Mapping[str, str] = field(default_factory=dict)  # of what was sent last, as in `FilesLeftOut`
    answers: dict[str, tuple[float, AnyAnswer]] = field(default_factory=dict)  # the last of each kind
    attempt: Attempt | None = None  # that of the verb at work
    run: RunHistory = field(default_factory=RunHistory)
    earlier: int = 0  # runs of the same command before this one
    launch_failed: e.RunEnded | None = None  # of a run that ended before mpirun was started
    proofs: dict[str, e.CleanupChecked] = field(default_factory=dict)  # the last of each run
    stopping: Literal["", "stopping", "killing"] = ""
    caught_up: bool = False  # a watcher that came later has read what was before
    unusual: OrderedDict[str, UnusualLine] = field(default_factory=OrderedDict)
    harmless: dict[str, HarmlessLines] = field(default_factory=dict)  # by the code of the message
    uncaught: tuple[int, str] | None = None  # a rank, and the first exception that ended a thread or came at its exit
    last_words: dict[int, tuple[float, str]] = field(
        default_factory=dict
    )  # of ranks that wrote no line after an exception
    open: dict[LineKey, OpenLine] = field(default_factory=dict)  # lines that have not ended
    study: e.StudyStarted | None = None
    candidates: list[e.CandidateTried] = field(default_factory=list)  # of the study
    launches: "tuple[TriedLaunch, ...]" = ()  # what they are worth, the best first
    lines: tuple[NewLines, ...] = ()  # that the last event ended
    values: tuple[FigureValue, ...] = ()  # that the last event brought
    exit: Exit = Exit.OK
    finished: bool = False

    @property
    def last_attempt(self) -> Attempt | None:
        """The last start of a run, also where another verb is at work since."""
        return self.run.attempts[-1] if self.run.attempts else None

    @property
    def ranks(self) -> list[RankState]:
        """The ranks of the verb at work."""
        return self.attempt.ranks if self.attempt else []

    @property
    def title(self) -> str:
        """What the verb at work does; of a run that was found, the run's own title."""
        if self.attempt is not None and self.attempt.late:
            return self.attempt.started.title
        return self.verb.title if self.verb else ""

    @property
    def heading(self) -> str:
        """The same; of a verb without a title its name."""
        return self.title or (self.verb.verb if self.verb else "")

    @property
    def begun(self) -> float:
        """When the verb at work began; once its run has been started for the first time, that."""
        if self.attempt is None:
            return self.verb_at
        first = self.run.attempts[0]
        return min(first.started.at or first.at, first.at) if first.late else first.at

    @property
    def took(self) -> float:
        """Seconds since then; of a run that has ended, from its first start to its end."""
        attempt = self.attempt
        if attempt is None or attempt.over is None:
            return self.at - self.begun
        first = self.run.attempts[0]
        if first.late and first.started.at and attempt.over.at:
            return attempt.over.at - first.started.at
        return self.run.find_end(attempt) - first.at
