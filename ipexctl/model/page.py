"""Pages as values: what `decide.page` makes of events and `show.page` draws.

Times of a run are seconds since its first start, on the controller's clock."""

from collections.abc import Mapping
from typing import Literal

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.answers.doctor import LinkSpeed, SpeedCheck
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import JsonRecord, Record
from ipexctl.model.launch import PlannedLaunch
from ipexctl.model.profile import Profile
from ipexctl.model.reports import CommandReport, Finding, RankResult
from ipexctl.model.run_state import Points

SpanKind = Literal[
    "start", "python", "torch", "rendezvous", "setup", "running", "wait", "stall", "odd", "straggles", "lost",
]  # fmt: skip
MarkKind = Literal["ended", "failed", "stopped", "lost", "restart", "figure"]


class Span(Record):
    """What a rank did for a time. ``setup``: the script's own work before the first collective; ``wait``: it waited in
    a collective of a stall; ``odd``: the others waited for it."""

    begin: float
    end: float
    kind: SpanKind
    text: str


class Mark(Record):
    """Something that happened to a rank at one moment."""

    at: float
    kind: MarkKind
    text: str
    figure: str = ""  # that is no number


class RankRow(Record):
    """One rank on the time axis. ``straggles`` is the reason why it is marked as slower than the others, or empty."""

    rank: int
    host: str
    state: RankResult
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    pace: float | None = None  # the median, in steps a second
    loss: float | None = None  # the last one
    straggles: str = ""


class Curve(Record):
    """One line of a chart, of a rank or a host by its ``name``."""

    name: str
    points: Points
    marked: bool = False


class Figure(Record):
    """One chart over time. ``by`` says what its curves are. ``zero``: its vertical axis begins at 0, as that of
    amounts."""

    key: str
    title: str
    unit: str
    by: Literal["rank", "host", "run"]
    curves: tuple[Curve, ...]
    zero: bool = False


class LogLine(Record):
    """A line of a rank; ``harmless`` is the code of the known harmless message that it is, if it is one."""

    at: float
    error: bool
    text: str
    harmless: str = ""


class LogExcerpt(Record):
    """The lines of a rank: its first and its last ones where they are too many. ``omitted`` counts the bytes left out
    between them, before the line with the index ``gap``."""

    rank: int
    host: str
    lines: tuple[LogLine, ...]
    omitted: int = 0
    gap: int = 0


class HostPart(Record):
    """A host of the run: what it is, and what it used. ``joules`` is None where no energy was read."""

    host: str
    facts: Facts | None
    lost: str = ""
    joules: float | None = None
    straggles: str = ""


class DoctorRecord(JsonRecord):
    """What doctor reported of ``hosts``, and when (Unix seconds); ``speed`` was measured at ``speed_at``."""

    at: float
    hosts: tuple[str, ...]
    findings: tuple[Finding, ...]
    speed: SpeedCheck | None = None
    speed_at: float = 0.0


class RunPage(Record):
    """Everything that the page of a run shows. ``length`` is that of its time axis, ``seconds`` how long it took;
    ``live``: the run goes on; ``watched_from``: lines of before were read at that moment. No curve goes on over the
    times in ``restarts``."""

    title: str
    run: str
    begun: float  # Unix seconds
    length: float
    seconds: float
    live: bool
    attempts: int
    report: CommandReport
    rows: tuple[RankRow, ...]
    hosts: tuple[HostPart, ...]
    figures: tuple[Figure, ...]
    logs: tuple[LogExcerpt, ...]
    launcher: tuple[LogLine, ...]
    plan: str
    launch: PlannedLaunch | None
    doctor: DoctorRecord | None = None
    findings: tuple[Finding, ...] = ()  # what is wrong with the hosts, and not at one moment only
    watched_from: float | None = None
    profile: Profile | None = None
    earlier: int = 0  # runs before it in the same record
    restarts: tuple[float, ...] = ()
    study: AnyAnswer | None = None  # of which these are some runs
    again: str = ""  # the command that does it again
    resumed: str = ""  # the checkpoint that it began with

    @property
    def links(self) -> tuple[LinkSpeed, ...]:
        """The links between the run's hosts that doctor measured."""
        names = {host.host for host in self.hosts}
        pairs = self.doctor.speed.pairs if self.doctor and self.doctor.speed else ()
        return tuple(pair for pair in pairs if {pair.first, pair.second} <= names)

    @property
    def variables(self) -> Mapping[str, Mapping[str, tuple[str, str]]]:
        """Variable → host → its value and where that comes from."""
        table: dict[str, dict[str, tuple[str, str]]] = {}
        for host, planned in self.launch.hosts.items() if self.launch else ():
            for name, variable in planned.env.items():
                table.setdefault(name, {})[host] = (variable.value, variable.source)
        return table
