"""What each verb answers, as types: the values of ``--json`` and of the event `Answer`; schemas are in ``docs/json``.

Their JSON is that of `json_values.to_json`. An answer whose ``dry`` is true changed nothing and has its ``plan``."""

import re
from collections.abc import Mapping
from dataclasses import field
from statistics import median
from typing import Literal, get_args

from ipexctl.model.errors import Kind
from ipexctl.model.facts import Facts
from ipexctl.model.findings import Finding
from ipexctl.model.json_values import JsonObject, JsonRecord, Record
from ipexctl.model.launch import PlannedLaunch
from ipexctl.model.profile import Profile
from ipexctl.model.reports import Cleanup
from ipexctl.model.saved_runs import ExportFormat, RunResult
from ipexctl.model.stack import StackSummary

# doctor -----------------------------------------------------------------------------------------------------------


class HostFailure(JsonRecord):
    """Why a host could not be probed."""

    kind: Kind
    what: str
    code: str


class ChosenInterface(JsonRecord):
    """The network interface that ranks of a host use; ``address`` without a prefix."""

    name: str
    address: str
    why: str


class DoctorHost(JsonRecord):
    """One host: its facts, or None and the failure."""

    host: str
    facts: Facts | None
    interface: ChosenInterface | None = None
    failure: HostFailure | None = None


class FailedConnection(JsonRecord):
    """A connection between two hosts that was not made."""

    from_: str
    to: str
    error: str


class SharedDirectory(JsonRecord):
    """A directory that several hosts share."""

    directory: str
    hosts: tuple[str, ...]


class TriedConnection(JsonRecord):
    """A connection between two hosts that was made: the round trip in seconds, and bytes a second where they were
    measured on it."""

    from_: str
    to: str
    rtt: float | None
    rate: float | None


class NetworkCheck(JsonRecord):
    """Connections between hosts: ``tried`` counts them, ``made`` are those that were made; round trips in seconds,
    rates in bytes a second. ``untried`` maps hosts that could not take part to the reason."""

    tried: int
    failed: tuple[FailedConnection, ...]
    rtt: float | None
    rtt_worst: float | None
    rate: float | None
    rate_worst: float | None
    mtu: int | None
    shared: tuple[SharedDirectory, ...]
    untried: Mapping[str, str]
    made: tuple[TriedConnection, ...] = ()


class HostSpeed(Record):
    """One host: Gflop/s of matrix products, bytes a second of memory by ``method`` ("triad" or "copy"). None: not
    measured, ``why`` says why not. ``spread`` is by what share the median turn of a figure was behind the best."""

    host: str
    threads: int = 0
    torch: str | None = None
    fp32: float | None = None
    bf16: float | None = None
    memory: float | None = None
    method: str = ""
    why: str = ""
    spread: Mapping[str, float] = field(default_factory=dict)


class LinkSpeed(JsonRecord):
    """Between two hosts: seconds one way, bytes a second. ``tool`` is "IMB-MPI1 PingPong" or "TCP"."""

    first: str
    second: str
    latency: float | None
    rate: float | None
    tool: str


class UnmeasuredLink(JsonRecord):
    """Two hosts whose link could not be measured, and why."""

    first: str
    second: str
    why: str


class SpeedCheck(JsonRecord):
    """What ``--bench`` measured; ``missed`` maps hosts that could not be measured to the reason."""

    hosts: tuple[HostSpeed, ...] = ()
    pairs: tuple[LinkSpeed, ...] = ()
    missed: Mapping[str, str] = field(default_factory=dict)
    pairs_missed: tuple[UnmeasuredLink, ...] = ()


class AppliedFix(JsonRecord):
    """What ``--fix`` did on which hosts; ``code`` is the finding's, empty where it was none."""

    code: str
    hosts: tuple[str, ...]
    action: str


class DoctorAnswer(JsonRecord):
    """``doctor``. ``imports`` maps hosts to what went wrong when the stack was imported."""

    hosts: tuple[DoctorHost, ...]
    findings: tuple[Finding, ...]
    common_isa: str | None
    advice: tuple[str, ...]
    network: NetworkCheck
    imports: Mapping[str, tuple[str, ...]] | None = None
    speed: SpeedCheck | None = None
    fixed: tuple[AppliedFix, ...] | None = None


class ExplainAnswer(JsonRecord):
    """``doctor --explain``: the text of one code."""

    code: str
    text: str


class DryRun(JsonRecord):
    """A dry run of a verb whose plan says it all."""

    plan: str
    dry: Literal[True] = True


class ImportCheck(JsonRecord):
    """The import check of the new environment of one host. ``preload`` maps libraries to
    why they cannot be preloaded, empty where they can. ``same``: files of the environment before, all unchanged; then
    only what was added is imported."""

    versions: Mapping[str, str]
    problems: tuple[str, ...]
    python: str
    import_seconds: float
    isa: str | None = None
    step_ms: float | None = None
    dtype: str | None = None
    mpi: str | None = None
    preload: Mapping[str, str] | None = None
    same: int | None = None


class InstallAnswer(JsonRecord):
    """``install``: the environment and its stack, and which hosts changed. ``failed`` maps hosts to the reason;
    ``next`` is the command that uses it.
    Stopped before there was a plan, it has no more than ``changed`` and ``failed``."""

    changed: tuple[str, ...]
    failed: Mapping[str, str]
    venv: str | None = None
    id: str | None = None
    stack: StackSummary | None = None
    check: bool | None = None
    plan: str | None = None
    unchanged: tuple[str, ...] | None = None
    hosts: Mapping[str, ImportCheck] | None = None
    next: str | None = None

    @property
    def dry(self) -> bool:
        return bool(self.check)


class VerifiedHost(JsonRecord):
    """What the marker of a host's environment says: its id and its stack, None without one."""

    id: str | None
    stack: StackSummary | None


class VerifyAnswer(JsonRecord):
    """``verify``: ``failed`` maps hosts whose environment is not what was installed to the reason."""

    hosts: Mapping[str, VerifiedHost]
    failed: Mapping[str, str]


class UninstallAnswer(JsonRecord):
    """``uninstall``."""

    changed: tuple[str, ...]
    failed: Mapping[str, str]


class WheelsAnswer(JsonRecord):
    """``wheels fetch``: ``fetched`` are those of ``wheels`` that were missing, ``bytes`` their size."""

    directory: str
    wheels: tuple[str, ...]
    fetched: tuple[str, ...]
    python: tuple[str, ...]
    bytes: int
    dry: Literal[True] | None = None
    plan: str | None = None


class ListedRelease(JsonRecord):
    """A row of the version table. ``fits`` and ``reasons`` only where hosts were asked; ``python_from``: where they
    could get a Python that the row needs."""

    torch: str
    ipex: str | None
    oneccl: str | None
    module: str | None
    track: str
    pythons: tuple[str, ...]
    isa: str | None
    mpi: str
    glibc: str | None
    glibcxx: str | None
    libraries: tuple[str, ...]
    indexes: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    yanked: str | None
    notes: tuple[str, ...]
    source: str
    fits: bool | None = None
    reasons: tuple[str, ...] | None = None
    python_from: str | None = None


class StacksAnswer(JsonRecord):
    """``stacks``: the version table; ``text`` is its form for people."""

    rows: tuple[ListedRelease, ...]
    text: str


class StacksWhyAnswer(JsonRecord):
    """``stacks --why``: whether the request can be met, by which stack, and why."""

    ok: bool
    stack: str | None
    why: tuple[str, ...]
    hint: str | None
    text: str


class FailedTransfer(JsonRecord):
    """A host whose files could not be sent or fetched."""

    failed: str
    code: str


class SyncedHost(JsonRecord):
    """What a host's working directory was sent: ``files`` with ``bytes`` in all, and how many were removed."""

    workdir: str
    changed: bool
    files: int
    bytes: int
    removed: int


class SyncAnswer(JsonRecord):
    """``sync``."""

    dry: bool
    hosts: Mapping[str, SyncedHost | FailedTransfer]
    plan: str | None = None


class FetchedHost(JsonRecord):
    """What came from a host into ``directory``; ``same`` counts files that were there already."""

    directory: str
    files: int
    bytes: int
    same: int


class FetchAnswer(JsonRecord):
    """``fetch``."""

    dry: bool
    hosts: Mapping[str, FetchedHost | FailedTransfer]
    plan: str | None = None


class RunAnswer(JsonRecord):
    """``run`` and ``attach``: ``reason`` is why the run ended, None while it goes on. ``profile`` and the path of its
    merged ``trace``: with ``--profile``."""

    run: str
    reason: str | None
    detached: bool
    profile: Profile | None = None
    trace: str | None = None


class ProfileAnswer(JsonRecord):
    """``profile``: ``trace`` is the path of the merged trace, None where it is gone."""

    profile: Profile
    trace: str | None


class RunPlanAnswer(JsonRecord):
    """``run --dry-run``."""

    plan: str
    launch: PlannedLaunch
    dry: Literal[True] = True


class EmitAnswer(JsonRecord):
    """``plan --emit``: the launch written for another program, in ``text``."""

    text: str
    plan: PlannedLaunch


class ListedRun(JsonRecord):
    """A run that its head keeps: ``started`` in local time, ``ranks`` counts them. ``elapsed`` is its seconds so far,
    or in all; ``command`` the script and its arguments. ``step`` and ``pace`` (iterations a second) are what rank 0
    printed last; None: unknown."""

    run: str
    state: str
    title: str
    ranks: int
    hosts: tuple[str, ...]
    head: str
    started: str
    owner: str
    watchers: int
    reason: str | None
    elapsed: float | None = None
    step: int | None = None
    pace: float | None = None
    command: str = ""


class OrphanDirectory(JsonRecord):
    """The directory of a run that is over, on a host."""

    host: str
    run: str
    directory: str


class PsAnswer(JsonRecord):
    """``ps``: the runs on ``hosts``, of which those in ``unreachable`` did not answer."""

    runs: tuple[ListedRun, ...]
    orphans: tuple[OrphanDirectory, ...]
    hosts: tuple[str, ...]
    unreachable: tuple[str, ...]


class StackPlace(JsonRecord):
    """Ranks whose main threads are at the same place, ``where``. ``frames`` are the stack of the first of them, each
    ``FILE:LINE FUNCTION``, innermost first."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    where: str
    frames: tuple[str, ...]


class ProcessStack(JsonRecord):
    """A process of a rank: the kernel's words for its state and for what it waits in, and the stacks of its threads as
    Python's faulthandler or py-spy writes them, empty if it did not answer."""

    rank: int
    host: str
    pid: int
    state: str
    wchan: str
    text: str


class RankStacksAnswer(JsonRecord):
    """``logs --stacks``: where the ranks of a run stand. ``odd`` are the ranks that others wait for,
    where that is clear; ``summary`` describes it in lines. Hosts in ``missing`` did not report in time."""

    run: str
    summary: tuple[str, ...]
    odd: tuple[int, ...]
    places: tuple[StackPlace, ...]
    stacks: tuple[ProcessStack, ...]
    missing: tuple[str, ...]


class StopAnswer(Cleanup):
    """``stop``."""

    run: str
    reason: str


class ReapAnswer(Cleanup):
    """``reap``: the runs whose processes and directories were removed."""

    removed: tuple[str, ...]


# saved runs -------------------------------------------------------------------------------------------------------


class SavedRun(JsonRecord):
    """A saved run: ``name`` of its directory, ``id`` of the run on hosts if it was one, and the ``word`` by which other
    commands find it. ``cause`` says why it did not end well. ``started`` and ``changed`` (when it was last written to)
    in Unix seconds, ``seconds`` from start to end."""

    name: str
    word: str
    verb: str
    title: str
    result: RunResult
    cause: str
    started: float
    changed: float
    seconds: float
    ranks: int
    hosts: int
    bytes: int
    directory: str
    id: str | None = None
    exit: int | None = None


class RunsAnswer(JsonRecord):
    """``runs``: saved runs, newest first; ``saved`` counts all in ``directory``."""

    directory: str
    saved: int
    runs: tuple[SavedRun, ...]


class SparedRun(JsonRecord):
    """A saved run that may not be removed now, and why."""

    name: str
    why: str


class PruneAnswer(JsonRecord):
    """``runs --prune``: what was removed; in a dry run, what would be, and ``next``, the command that removes it.
    ``bytes`` is the space of it."""

    directory: str
    removed: tuple[SavedRun, ...]
    spared: tuple[SparedRun, ...]
    bytes: int
    dry: bool | None = None
    next: str | None = None


class ExportAnswer(JsonRecord):
    """``runs --export``: the figures of these runs are in the file ``path``, or the directory for TensorBoard."""

    path: str
    format: ExportFormat
    runs: tuple[str, ...]
    values: int


class SupportPart(JsonRecord):
    """A file of a support archive: its size there, and how many secrets were masked in it."""

    name: str
    bytes: int
    masked: int


class LeftOutPart(JsonRecord):
    """A file of a saved run that is not in its support archive, and why."""

    name: str
    why: str


class SupportAnswer(JsonRecord):
    """``support``: the archive ``path`` of ``bytes``, and what is in it; in a dry run nothing is written."""

    path: str | None
    parts: tuple[SupportPart, ...]
    left_out: tuple[LeftOutPart, ...]
    bytes: int | None
    dry: bool | None = None
    plan: str | None = None


# play -------------------------------------------------------------------------------------------------------------


class PlayedStep(JsonRecord):
    """A step of a play; ``exit`` None: it was not begun."""

    step: str
    action: str
    exit: int | None
    note: str | None = None


class PlayAnswer(JsonRecord):
    """``play`` and ``demo``: ``lost`` maps hosts that failed to the step; ``next`` plays it again on these only."""

    play: str
    steps: tuple[PlayedStep, ...]
    changed: bool
    lost: Mapping[str, str]
    dry: Literal[True] | None = None
    next: str | None = None


class ListedStep(JsonRecord):
    """A step as ``play --list`` shows it; ``hosts`` and ``tags`` have commas between them."""

    step: int
    name: str
    action: str
    hosts: str
    tags: str | None = None
    when: str | None = None


class PlayListAnswer(JsonRecord):
    """``play --list``."""

    list_: tuple[ListedStep, ...]


class CommandOutput(JsonRecord):
    """What the step ``command`` wrote on a host."""

    host: str
    status: int
    out: str
    err: str


class FailedCommand(JsonRecord):
    """A host where the step ``command`` failed, and how."""

    host: str
    failed: str


class CommandAnswer(JsonRecord):
    """The step ``command`` of a playbook."""

    hosts: tuple[CommandOutput | FailedCommand, ...]


class LintedPlaybook(JsonRecord):
    """A playbook without errors, and how many steps and hosts it has."""

    playbook: str
    steps: int
    hosts: int | None = None


class LintAnswer(JsonRecord):
    """``play lint``."""

    playbooks: tuple[LintedPlaybook, ...]


class InitAnswer(JsonRecord):
    """``init``: what was written, and the commands that come next."""

    playbook: str
    hostfile: str
    stack: str
    ranks: str
    precision: str
    next: str
    then: str


class ListedExample(JsonRecord):
    """A playbook or an example script that comes with ipexctl, and its first line."""

    name: str
    kind: Literal["playbook", "example"]
    title: str


class ExamplesAnswer(JsonRecord):
    """``examples``, and ``play --list``."""

    examples: tuple[ListedExample, ...]


class ShownExampleAnswer(JsonRecord):
    """``examples show``: the whole file."""

    name: str
    kind: Literal["playbook", "example"]
    path: str
    text: str


class CopiedExampleAnswer(JsonRecord):
    """``examples copy``: the files that were written into ``directory``, and the command that uses them."""

    directory: str
    files: tuple[str, ...]
    next: str


class ListedHost(JsonRecord):
    """A host of the inventory; ``origin`` is where it was written (``hosts:3``)."""

    name: str
    address: str
    user: str | None
    port: int | None
    slots: int | None
    key: str | None
    local: bool
    groups: tuple[str, ...]
    vars: Mapping[str, str]
    origin: str | None


class HostsAnswer(JsonRecord):
    """``hosts``: ``text`` is the inventory in the dialect that was asked for."""

    source: str
    hosts: tuple[ListedHost, ...]
    text: str


class LabHost(JsonRecord):
    """One SSH server of a lab."""

    name: str
    address: str
    port: int
    up: bool
    processes: int
    home: str


class LabAnswer(JsonRecord):
    """``lab up``, ``lab status`` and ``lab down``."""

    up: bool
    directory: str
    hostfile: str | None = None
    ssh: str | None = None
    next: str | None = None
    hosts: tuple[LabHost, ...] | None = None
    processes_left: int | None = None


BENCH_MODES: Mapping[str, str] = {"train": "training", "infer": "inference"}


class BenchResult(JsonRecord):
    """One form of the model. Samples per second: ``hosts`` each alone (all at the same time), ``cluster`` all together;
    None where it was not measured, and ``why``. ``spread`` is how far apart the middle half of a host's steps is, as a
    share of their median; ``repetitions`` the steps that the least measured host has. ``refused`` is why these figures
    are no result: too few steps, or hosts further apart than their processors can be."""

    mode: str
    engine: str
    how: str
    dtype: str
    hosts: Mapping[str, float]
    cluster: float | None
    why: str | None
    spread: Mapping[str, float] = field(default_factory=dict)
    repetitions: int = 0
    refused: str | None = None

    @property
    def name(self) -> str:
        """For people: ``stock torch bf16``."""
        stock = "stock torch" if self.how == "eager" else "torch.compile"
        return f"{'IPEX' if self.engine == 'ipex' else stock} {self.dtype}"

    @property
    def host(self) -> float | None:
        """The rate of the median host; None without a result."""
        return median(self.hosts.values()) if self.hosts and not self.refused else None


class BenchAnswer(JsonRecord):
    """``bench``: ``text`` is the table for people, ``title`` what was measured on which stack."""

    model: str
    size: str
    batch: int
    rows: tuple[BenchResult, ...]
    notes: tuple[str, ...]
    text: str
    title: str = ""


class AccelerateAnswer(JsonRecord):
    """``accelerate config``: ``text`` is the configuration unless it was written to ``file``."""

    version: str
    hosts: int
    ranks: int
    file: str | None
    text: str | None = None


class ScriptUse(JsonRecord):
    """A place of a script that uses something of IPEX or oneCCL. ``last`` and ``gone`` are versions; ``idle`` from
    which one on it does nothing."""

    line: int
    name: str
    text: str
    of: str
    last: str
    idle: str | None
    gone: str
    instead: str
    source: str


class ComparedRun(JsonRecord):
    """One of the two runs of ``migrate --compare``."""

    name: str
    script: str
    venv: str | None
    good: bool
    seconds: float | None
    samples_per_s: float | None


class Comparison(JsonRecord):
    """``ratio``: how many times as fast the second run is as the first, by ``samples_per_s`` or ``seconds``."""

    host: str
    runs: tuple[ComparedRun, ...]
    ratio: float | None
    by: Literal["samples_per_s", "seconds"] | None


class MigrateAnswer(JsonRecord):
    """``migrate``: ``text`` is the report for people."""

    file: str
    uses: tuple[ScriptUse, ...]
    text: str
    compare: Comparison | None = None


class ReportAnswer(JsonRecord):
    """``report`` of one run: the file of its page, and how large that is."""

    page: str
    bytes: int
    runs: tuple[str, ...]


class RankSpread(JsonRecord):
    """One figure of a run, of the rank with the least, the median rank, and the one with the greatest."""

    least: float
    median: float
    greatest: float


class ReportedRun(JsonRecord):
    """A run beside others. ``figures`` maps a figure ("pace" in steps a second, "loss" at the end …) to its spread
    between ranks; ``joules`` is the energy of the ``metered`` hosts, None where none was metered."""

    name: str
    run: str
    title: str
    result: str
    seconds: float
    ranks: int
    hosts: tuple[str, ...]
    figures: Mapping[str, RankSpread]
    joules: float | None
    metered: int


class RunDifference(JsonRecord):
    """What differs between runs: ``values`` has one of each run, in their order. ``of``: "plan", "variable", "stack",
    "hosts"."""

    of: str
    name: str
    values: tuple[str, ...]


class FigureRatio(JsonRecord):
    """A figure of one run against the first one's: how many times it is, by the median ranks. ``apart``: the ranges of
    the ranks of both do not meet, so that ranks differ less than the runs do."""

    name: str
    figure: str
    ratio: float
    apart: bool


class CompareAnswer(JsonRecord):
    """``report`` of several runs: what differed, and what came of it. ``page`` is the file, if one was written."""

    compared: tuple[ReportedRun, ...]
    differences: tuple[RunDifference, ...]
    ratios: tuple[FigureRatio, ...]
    page: str | None = None


class UnknownAnswer(JsonRecord):
    """An answer of a saved run that another version of ipexctl wrote."""

    value: JsonObject

    def public(self) -> JsonObject:
        return self.value


AnyAnswer = (DoctorAnswer | ExplainAnswer | DryRun | InstallAnswer | VerifyAnswer | UninstallAnswer | WheelsAnswer
             | StacksAnswer | StacksWhyAnswer | SyncAnswer | FetchAnswer | RunAnswer | RunPlanAnswer | EmitAnswer
             | PsAnswer | StopAnswer | ReapAnswer | PlayAnswer | PlayListAnswer | CommandAnswer | LintAnswer
             | InitAnswer | HostsAnswer | LabAnswer | BenchAnswer | AccelerateAnswer | MigrateAnswer | ProfileAnswer
             | RunsAnswer | PruneAnswer | ExportAnswer | RankStacksAnswer | ReportAnswer | ExamplesAnswer
             | ShownExampleAnswer | CopiedExampleAnswer | CompareAnswer | SupportAnswer | UnknownAnswer)  # fmt: skip


def is_dry(answer: AnyAnswer) -> bool:
    """Whether nothing was changed for this answer: it shows a plan."""
    return bool(getattr(answer, "dry", False))


def get_answer_kind(cls: type) -> str:
    """The name of an answer's type in JSON and of its schema: ``doctor``, ``play-list``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__.removesuffix("Answer")).lower()


ANSWERS: Mapping[str, type] = {get_answer_kind(cls): cls for cls in get_args(AnyAnswer) if cls is not UnknownAnswer}
