"""What happened, once. One stream of events feeds the screen, the plain log, JSON lines, the saved run and the report.

Events carry no time of their own: the loop stamps each as it passes it to the sinks (`Stamped`), so a test of a verb
is a comparison of lists. Times measured on a host are fields of the event, in Unix seconds of that host's clock."""

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Literal, TypeVar

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.errors import Exit, Failure
from ipexctl.model.facts import Facts
from ipexctl.model.hosts import Stream as Stream
from ipexctl.model.json_values import Record, field
from ipexctl.model.launch import PlannedLaunch
from ipexctl.model.reports import Finding, LoadedLibrary, OutOfMemory, SeparateWorlds, StallPlace

PLAY_LEFT = "play-left"  # code of the message that says how a play goes on whose run was left
STUDY_ENDS = ("measured", "dropped")  # who stops a launch of a study, as `RunEnded.detail` has it
Value = bool | int | str  # of a part of a launch
Values = Mapping[str, Value]  # by the names of options of `run`, or of arguments of the script, which begin with "--"
StepOutcome = Literal["ok", "changed", "skipped", "failed"]


class Event(Record):
    """Base of all events."""


T = TypeVar("T")
Workflow = Generator[Event, None, T]  # the events of a verb, or of a part of one, and its result


class Started(Event):
    """A verb begins."""

    verb: str
    title: str
    hosts: tuple[str, ...]
    # Options by which a further command finds these hosts and their environment.
    selection_flags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # of the command line, behind the program's name


class Planned(Event):
    """The plan, after the hosts were probed: the text of the dry run, and what is executed next. ``launch``
    is a run's, with the source of each variable; secrets are not in it."""

    verb: str
    text: str
    launch: PlannedLaunch | None = None


class FilesLeftOut(Event):
    """What patterns keep of a project from being sent, some of it: a path below its root, which of a directory ends in
    a slash → the same from the current directory."""

    paths: Mapping[str, str]


class Message(Event):
    """A sentence of ipexctl itself. ``host`` is empty when it is about the whole command; ``code`` is a stable word for
    programs, where it has one."""

    text: str
    level: Literal["info", "warning"] = "info"
    host: str = ""
    code: str = ""


class PhaseStarted(Event):
    """A verb begins its part ``number``, from 1, of ``of`` (0: not known yet), on all hosts."""

    number: int
    of: int
    title: str


class StepStarted(Event):
    """``step`` is a short verb phrase ("connect", "probe", "upload wheels"); at most one step a host at a time."""

    host: str
    step: str


class Progress(Event):
    """How far a step is. ``total`` 0 means not known; ``unit`` "B" for bytes, else a plural noun ("files")."""

    host: str
    step: str
    done: int
    total: int
    unit: str = "B"
    detail: str = ""
    local: bool = False  # nothing comes over a network


class StepEnded(Event):
    host: str
    step: str
    outcome: StepOutcome = "ok"
    detail: str = ""


class HostFailed(Event):
    """A host is out of the rest of this verb; the others go on. An empty ``failure.host`` is the whole command."""

    failure: Failure


class FactsRead(Event):
    """What a host is. In JSON the facts are `Facts.public()`."""

    host: str
    facts: Facts


class FindingReported(Event):
    finding: Finding


class ResumedFrom(Record):
    """The checkpoint that ranks go on from, or "": ``size`` bytes came from ``sources`` to hosts that lacked it."""

    name: str
    size: int = 0
    seconds: float = 0.0
    sources: tuple[str, ...] = ()


class RunStarted(Event):
    """mpirun was started. ``ranks`` maps each rank, in order, to its host's name; ``at`` is on the head's clock.
    ``command`` is the script with its arguments. ``title`` names the script; it is set for commands that read the run
    later, from its beginning (`attach`, `logs`). ``backend`` (``impi``, ``ccl``, ``gloo``) and ``precision`` (``bf16``)
    are the launch's, "" where not known; ``isas`` are the levels of the hosts' CPUs. ``restart`` counts the starts
    before this one, of ``restarts`` further ones that may be."""

    run: str
    head: str
    ranks: tuple[str, ...]
    command: str
    at: float = 0.0
    title: str = ""
    backend: str = ""
    precision: str = ""
    isas: Mapping[str, str] = field(default_factory=dict)
    restart: int = 0
    restarts: int = 0
    resumed: ResumedFrom | None = None


class RankStage(Event):
    """How far a rank has come: "start", "python", "torch", "rendezvous", "running" …; ``at`` on its host's clock."""

    rank: int
    host: str
    stage: str
    at: float = 0.0


class BackendChosen(Event):
    """The script uses this backend, which is not the planned one."""

    backend: str


class RendezvousChanged(Event):
    """A rank's script is about to look for the others, ``size`` in all (0: not known), elsewhere than was ``planned``,
    an address. ``line`` ("/home/me/train.py:4") says so, "" where that was not found; ``at`` on the head's clock."""

    rank: int
    host: str
    planned: str
    address: str
    port: str
    size: int = 0
    line: str = ""
    at: float = 0.0
    inner: bool = False  # a process that the rank has started looks for others
    # Of a file the type of its file system and its directory; why the host has no address for a name; "TCPStore": a
    # store of the script's own looks for them.
    fault: str = ""
    number: int = -1  # of the rank that the script says it is, where it is another one


class WorldsCompared(Event):
    """Whether the ranks work together: ``separate`` says how they do not, and is None once they do after all. ``at`` is
    on the head's clock."""

    separate: SeparateWorlds | None
    at: float = 0.0


class Stalled(Event):
    """Ranks without progress for ``seconds``. ``states`` are the kernel's words for their processes (R, S, D, T).
    ``kind``: "all" no rank progresses, "some" these ranks do nothing while others progress, "stragglers" these run
    although others are done. ``ends``: the run is ended for it; ``limit``: it is after so many seconds of it, if not 0.
    ``at`` is on the head's clock, 0 where not known."""

    ranks: tuple[int, ...]
    seconds: float
    kind: Literal["all", "some", "stragglers"]
    states: Mapping[str, str]
    ends: bool = False
    at: float = 0.0
    limit: float = 0.0


class Resumed(Event):
    """The stalled ranks make progress again; ``at`` is on the head's clock, 0 where not known."""

    at: float = 0.0


class HostSilent(Event):
    """No sign of life has come from a host of the run for so many ``seconds``; 0: it answers again. ``at`` is on the
    head's clock."""

    host: str
    seconds: float
    at: float = 0.0


class CaughtUp(Event):
    """A command that came later (`RunStarted.title`) has read all that the run had stored: what follows is of now."""


class StallCompared(Event):
    """The stacks of stalled ranks were compared: ``ranks`` are elsewhere than those that wait for them, where that is
    clear; ``text`` says where each is, ``places`` the same for programs."""

    ranks: tuple[int, ...]
    text: str
    places: tuple[StallPlace, ...] = ()


class PlacesSampled(Event):
    """Where all ranks stood at one moment of a run that has become slow."""

    places: tuple[StallPlace, ...]


class RankStack(Event):
    """Where one process of a rank stood when it was asked: stacks of its threads as Python's faulthandler
    writes them, "" if it did not answer; ``wchan`` is the kernel function it waited in."""

    rank: int
    host: str
    pid: int
    state: str
    wchan: str
    text: str


class Output(Event):
    """Bytes a rank wrote: whole lines, except where ``partial`` (a last line without an end, or a piece of one
    longer than 64 KiB, or a bar that redraws itself with a carriage return). ``written`` says when, in Unix seconds of
    the controller's clock, where a command that came later reads them (0: now, or not known)."""

    rank: int
    host: str
    stream: Stream
    data: bytes
    partial: bool = False
    written: float = 0.0


class RankSample(Record):
    """What the processes of a rank use: ``cpu`` cores since the sample before, ``rss`` bytes of memory now."""

    rank: int
    cpu: float
    rss: int


class HostSample(Event):
    """What a host of the run does, every few seconds. ``at`` is on the head's clock; ``seconds`` have passed since the
    sample before, to which all counts refer. What a host does not let us read is None, 0 or left out. ``cpu`` is in
    cores; ``memory``, of ``memory_total``, and ``swap`` are bytes in use, of the control group where that limits the
    run; ``received`` and ``sent`` are bytes per interface that had traffic ("eth0"; "mlx5_0/1" is a port of an RDMA
    device); ``read`` and ``written`` are bytes of the host's disks; ``mhz`` is the mean clock of its cores; ``celsius``
    is the hottest sensor of a processor; ``joules`` the energy of all packages and their memory; ``pressure`` (PSI
    "cpu", "memory", "io") the share of the time, 0 to 1, in which some task waited for it; ``capped`` that in which the
    run's control group had used up its CPU time; ``resent`` the share of TCP segments that were sent again; ``delay``
    the milliseconds of a packet from the head to the host and back."""

    host: str
    at: float
    seconds: float
    cpu: float
    cores: int
    memory: int
    memory_total: int
    swap: int = 0
    received: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    read: int = 0
    written: int = 0
    mhz: float | None = None
    celsius: float | None = None
    joules: float | None = None
    pressure: Mapping[str, float] = field(default_factory=dict)
    ranks: tuple[RankSample, ...] = ()
    capped: float | None = None
    resent: float | None = None
    delay: float | None = None


class LauncherOutput(Event):
    """A line of mpirun itself, belonging to no rank."""

    stream: Stream
    data: bytes


class RankEnded(Event):
    """How a rank ended. ``status`` 0–255 or None when it died by ``signal`` (a number, 0 for none), or called MPI_Abort
    with the code ``abort``. ``cause``: "" it ended by itself, "stopped" it was ended by us, "lost" its end was not
    observed. ``error`` is the exception's last line, ``traceback`` all of it, as the rank wrote them."""

    rank: int
    host: str
    status: int | None
    signal: int = 0
    at: float = 0.0
    cause: Literal["", "stopped", "lost"] = ""
    error: str = ""
    traceback: str = ""
    kernel: str = ""  # what the host's kernel log says of its death
    libraries: tuple[LoadedLibrary, ...] = ()
    oom: OutOfMemory | None = None
    where: str = ""  # the line of its script shortly before it was killed for lack of memory
    line: str = ""  # of its script, in which it failed: "train.py:41"
    abort: int | None = None
    room: tuple[str, int] | None = None  # of a full disk that it met: a directory, free bytes
    observed: tuple[str, str] | None = None  # `RankOutcome.observed`
    kills: int | None = None  # processes of its control group that were killed for lack of memory; None: not known
    exit_line: str = ""  # of its script, that called sys.exit: "train.py:49"
    lingered: float = 0.0  # seconds that its process went on after its script had failed, until it was ended


class RunEnded(Event):
    """The run is over, or (``again``) an attempt of it that another one follows. ``reason``: "done", "rank", "stopped",
    "lost", "limit" or "launch"; ``detail`` says more. ``at`` is on the head's clock, 0 where nobody noted it."""

    run: str
    reason: Literal["done", "rank", "stopped", "lost", "limit", "launch"]
    detail: str = ""
    at: float = 0.0
    again: bool = False


class CleanupChecked(Event):
    """After a run: ``hosts`` were searched for its processes. Those that did not answer are ``unchecked``."""

    run: str
    hosts: tuple[str, ...]
    orphans: Mapping[str, tuple[int, ...]]  # host → process ids still alive
    unchecked: tuple[str, ...] = ()

    @property
    def clean(self) -> tuple[str, ...]:
        """The hosts on which no process of the run is left."""
        return tuple(host for host in self.hosts if host not in self.unchecked and host not in self.orphans)


def describe_values(values: Values) -> str:
    """``ppn 2, allocator tcmalloc, membind``; of none: ``default``."""
    return ", ".join(name if value is True else f"{name} {value}" for name, value in values.items()) or "default"


class StudyStarted(Event):
    """Launches are tried and compared. ``knobs`` has the values of each part that is varied, beside the default's;
    ``task`` what of the task is not as usual; ``metric`` names the figure that counts ("" until the first launch
    printed one), ``budget`` the seconds for all."""

    knobs: Mapping[str, tuple[Value, ...]]
    task: Any  # JSON
    metric: str
    minimize: bool
    budget: float
    seed: int
    steps: int


class CandidateTried(Event):
    """A launch of a study was tried for ``seconds``; ``values`` is what was not as in the default, which has none.
    ``rates`` are its figures (of several ranks the median), read ``at`` so many seconds from the study's start; none
    where it failed. "dropped": its first steps were too slow. ``changes`` is what it changes in what is computed."""

    values: Values
    outcome: Literal["measured", "dropped", "failed"]
    at: float
    seconds: float
    rates: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    changes: str = ""


class FailuresIgnored(Event):
    """What failed since the last `Started` is not held against the command: the playbook says ``ignore_errors``. Hosts
    out of reach, and what could not be removed or stored, are not excused by it."""

    step: str


class Answer(Event):
    """What `--json` prints of this verb, the last event before `Ended`."""

    value: AnyAnswer


class Ended(Event):
    verb: str
    exit: Exit


def finish_verb(verb: str, answer: AnyAnswer, exit: Exit = Exit.OK) -> Iterator[Event]:
    """Yields the last two events of a verb."""
    yield Answer(answer)
    yield Ended(verb, exit)


class Stamped(Record):
    """An event with the controller's time, Unix seconds."""

    at: float
    event: Event


def get_event_time(event: Event, now: float) -> float:
    """Returns the time to stamp an event with: of output of before it is that at which it was written."""
    return min(event.written, now) if isinstance(event, Output) and event.written else now
