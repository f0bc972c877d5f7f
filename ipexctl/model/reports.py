"""The outcome of a command: ``report.json`` of a saved run, and the last line of ``--output json``; what is wrong on
which hosts, how we know, and how to fix it.

Times are Unix seconds of the controller's clock."""

from collections.abc import Mapping
from typing import Annotated, Literal

from ipexctl.model.errors import Exit, Failure
from ipexctl.model.json_values import UNWRITTEN, JsonRecord, Record
from ipexctl.model.text import format_size

Level = Literal["error", "warning", "info"]  # the gravest first


class Finding(Record):
    """``code`` is stable (``CPU001``); ``fix`` is a command where one exists, else a sentence. ``action`` is False
    where nothing has to be done. A ``momentary`` one was true at one moment, or is refuted by a run that starts."""

    code: str
    level: Level
    hosts: tuple[str, ...]
    title: str
    evidence: str = ""
    fix: str = ""
    action: bool = True
    momentary: bool = False


class Diagnosis(Record):
    """The known error that a failure was found to be. ``evidence`` is the line that shows it; ``command`` the one to
    type next, empty where the catalogue has none."""

    code: str
    title: str
    why: str
    fix: str
    evidence: str = ""
    command: str = ""


RankResult = Literal["running", "ok", "failed", "stopped", "lost"]


class HostStep(JsonRecord):
    """A step of a host, and how it ended: ``ok``, ``changed``, ``skipped`` or ``failed``."""

    step: str
    outcome: str
    detail: str


class HostOutcome(JsonRecord):
    """Steps of one host counted as Ansible's recap does: ``ok`` includes the changed ones."""

    host: str
    ok: int = 0
    changed: int = 0
    unreachable: int = 0
    failed: int = 0
    skipped: int = 0
    steps: tuple[HostStep, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def good(self) -> bool:
        return not (self.failed or self.unreachable)


class OutOfMemory(Record):
    """The kernel killed a rank for lack of memory: bytes its control group used, and may use, where they are known."""

    used: int | None = None
    limit: int | None = None

    def __str__(self) -> str:
        if self.used is None or self.limit is None:
            return "out of memory"
        return f"out of memory: {format_size(self.used)} of {format_size(self.limit)} of its control group"


class LoadedLibrary(Record):
    """A library that a rank really loaded, of those that should be there once: oneCCL, MPI, libfabric, OpenMP."""

    kind: str
    path: str
    version: str  # empty where it is not known


class RankOutcome(Record):
    """One rank. ``at`` is its end, as well as it is known; 0 before."""

    rank: int
    host: str
    state: RankResult
    stage: str = ""
    status: int | None = None
    signal: int = 0
    at: float = 0.0
    error: str = ""
    traceback: str = ""
    tail: str = ""  # its last lines: 20, or 1 of a rank that ended well
    out_bytes: int = 0
    err_bytes: int = 0
    kernel: str = ""  # its host's kernel log about its death
    oom: OutOfMemory | None = None
    observed: tuple[str, str] | None = None  # by its Python as it failed: the name of a known error, and a value
    libraries: tuple[LoadedLibrary, ...] = ()
    where: str = ""  # the line of its script shortly before it was killed for lack of memory
    line: str = ""  # of its script, in which it failed, or stood when the run was stalled: "train.py:41"
    abort: int | None = None  # the error code with which it called MPI_Abort
    kills: int | None = None  # processes of its control group that were killed for lack of memory; None: not known
    exit_line: str = ""  # of its script, that called sys.exit: "train.py:49"
    lingered: float = 0.0  # seconds that its process went on after its script had failed, until it was ended


class StallPlace(Record):
    """Ranks that stand at the same place: ``line`` is that of their script (``train.py:41``), ``call`` the collective
    in which they wait for others. Each is "" where there is none."""

    ranks: tuple[int, ...]
    line: str = ""
    call: str = ""


class SeparateWorlds(JsonRecord):
    """Ranks that were started together and work apart: ``worlds`` maps a size to how many worlds of it there are.
    ``code`` is "never-met"; ``causes`` are sentences: those that were found, else the usual ones."""

    code: str
    worlds: Mapping[str, int]
    text: str
    causes: tuple[str, ...]


class LostLoss(JsonRecord):
    """The loss was ``value`` (NaN, inf) on ``ranks``, first at ``step``; before, at ``last_step``, it was ``last``.
    What was not printed is null. ``text`` is the sentence, ``command`` the run that ends at such a loss, ``later`` are
    ranks that printed it at no step or a later one."""

    text: str
    ranks: tuple[int, ...]
    step: int | None
    last: float | None
    last_step: int | None
    value: str = "NaN"
    command: str | None = None
    later: Annotated[tuple[int, ...], UNWRITTEN] = ()


class SlowHost(JsonRecord):
    """``host`` made a run slow: its ``pace`` in steps a second, before that ``best``, 0 where these are not known;
    ``since`` Unix seconds. ``ranks`` are those that the others wait for; ``cause`` what was found there. ``lines`` say
    it; ``command`` is the run without that host, as words, empty where it cannot be had."""

    host: str
    ranks: tuple[int, ...]
    since: float
    pace: float
    best: float
    cause: str
    lines: tuple[str, ...]
    command: tuple[str, ...]


class Cleanup(JsonRecord):
    """On the hosts in ``clean`` no process of a run is left; ``orphans`` maps a host to the ids of those that are;
    ``unchecked`` are hosts that did not answer."""

    clean: tuple[str, ...]
    orphans: Mapping[str, tuple[int, ...]]
    unchecked: tuple[str, ...]


class RunOutcome(Cleanup):
    """How a run ended, ``reason`` empty while it goes on. ``first`` is the rank that failed first by itself;
    ``followers`` failed too, ``stopped`` were ended by us. ``stall`` are the lines about ranks that had stalled and
    made no progress again (``stalled``: the run was ended for it), ``places`` where these stood, ``suspects`` those of
    them that the others waited for;
    ``separate`` is set where the ranks did not work together, ``lost_loss`` where a loss was no number, ``slow_host``
    where one host made the run slow. ``command`` is the script with its arguments, ``backend`` the one that was used,
    ``planned_backend`` the launch's. ``lost_hosts`` are those that are not back. ``restarts`` says why each start
    before the last one ended; ``started`` is of the first, the rest of the last one. ``resume`` is the command by which
    a failed run goes on from its newest checkpoint, where it keeps them. ``loss`` is the last one, that of an epoch if
    there is one; null if it was no number. ``uncaught`` names an exception in a thread, task or process or at the exit
    of a rank, which Python does not count, or the one that a rank wrote last. ``addresses`` are URLs at which a run
    that goes on can be asked."""

    run: str
    head: str
    reason: Literal["", "done", "rank", "stopped", "lost", "limit", "launch"]
    detail: str
    started: float
    ended: float
    ranks: tuple[RankOutcome, ...]
    first: int | None
    diagnosis: Diagnosis | None
    followers: tuple[int, ...]
    stopped: tuple[int, ...]
    stall: tuple[str, ...] | None = None
    stalled: bool = False  # it was ended for that
    places: tuple[StallPlace, ...] = ()
    suspects: tuple[int, ...] = ()
    separate: SeparateWorlds | None = None
    lost_loss: LostLoss | None = None
    slow_host: SlowHost | None = None
    lost_hosts: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    resume: str | None = None
    loss: float | None = None
    command: str = ""
    backend: str = ""
    planned_backend: str = ""
    uncaught: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether all ranks ended well."""
        return self.reason == "done" and all(rank.state == "ok" for rank in self.ranks)


class LostOutput(JsonRecord):
    """What the record could not store: ``ranks`` maps a rank to bytes, ``bytes`` is their sum, ``events`` counts lines
    of events.jsonl, ``files`` names documents."""

    bytes: int
    ranks: Mapping[str, int]
    events: int
    files: tuple[str, ...]
    why: str


class CommandReport(JsonRecord):
    """The outcome of a command. ``saved`` is the directory of its record; ``refused`` is why it ended in the middle,
    with the ``reasons`` and the ``hint``."""

    verb: str
    title: str
    exit: Exit
    ok: bool
    causes: tuple[Exit, ...]
    started: float
    ended: float
    finished: bool
    hosts: tuple[HostOutcome, ...]
    failures: tuple[Failure, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    run: RunOutcome | None
    lost: LostOutput | None
    selection_flags: Annotated[
        tuple[str, ...], UNWRITTEN
    ] = ()  # options by which a further command finds the same hosts
    saved: str | None = None
    refused: str | None = None
    reasons: tuple[str, ...] | None = None
    hint: str | None = None
    refusal_code: Annotated[str, UNWRITTEN] = ""
    without: Annotated[str | None, UNWRITTEN] = None  # the same run without hosts that are out of reach
