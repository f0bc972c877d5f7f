"""What can be asked: the one schema of command-line flags and playbook keys.

A flag ``--wheels-from`` is the key ``wheels_from``: flags and help come from these fields. pydantic checks the keys of
playbooks by them (`task_schemas`)."""

import re
from dataclasses import Field, dataclass, field
from functools import partial
from types import EllipsisType
from typing import Any, ClassVar, Literal, get_args

from typing_extensions import dataclass_transform

from ipexctl.model.json_values import Record
from ipexctl.model.stack import DIALECT_CHOICES

Backend = Literal["auto", "ccl", "impi", "gloo"]
OpenMP = Literal["auto", "intel", "gnu"]
Isa = Literal[
    "native", "common", "NEON", "AVX2", "AVX2_VNNI", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AVX512_FP16", "AMX",
    "AMX_FP16", "AMX_FP8",
]  # fmt: skip

LOCAL_PATHS = frozenset(
    {"script", "source", "requirements", "wheels", "find_links", "env_file", "recorded", "save_bundle", "into"}
    | {"accelerate_config", "plot", "lock", "stdin", "directory", "project"}
)
"""Fields of tasks whose values are paths on this machine."""


LARGEST = 9e9  # of a number without a bound of its own: no clock waits longer, in seconds


class Flag(Record):
    """What a field's type and default do not tell: its help, its bounds, and its place on the command line."""

    help: str
    group: str = "Options"  # in the help
    metavar: str | None = None
    names: tuple[str, ...] = ()  # short forms and synonyms
    argument: bool = False  # a positional argument
    advanced: bool = False  # listed by --help-all only
    example: str = ""  # what a hint writes for a value that was left out
    alias: str = ""  # the key, where that is a word of Python
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None
    pattern: str | None = None  # of a text

    def is_span(self, kind: Any) -> bool:
        """Returns whether a field of this type is a span of time: seconds, or a text such as ``2h``."""
        return float in (kind, *get_args(kind)) and self.metavar is None

    def allows(self, value: Any) -> bool:
        """Returns whether a value of the field's type is within the bounds; None always is."""
        return value is None or (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (not isinstance(value, int | float) or value <= (LARGEST if self.le is None else self.le))
            and (self.min_length is None or len(value) >= self.min_length)
            and (self.pattern is None or re.search(self.pattern, value) is not None)
        )


def flag(default: Any, help: str, group: str = "Options", metavar: str | None = None, **more: Any) -> Any:
    """A field with its `Flag`, of which ``more`` are further fields. A default of ``...``: the field is required."""
    metadata = {"flag": Flag(help, group, metavar, **more)}
    if isinstance(default, EllipsisType):
        return field(metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


advanced_flag = partial(flag, advanced=True)

# Fields of several tasks and commands.
make_ranks_flag = partial(
    flag, None, "World size (default: ppn times hosts).", "Placement", names=("-n", "--np"), ge=1, le=999_999
)
make_ppn_flag = partial(
    flag, None, "Ranks per host (default: the host's slots, else its NUMA nodes).", "Placement", ge=1, le=1024
)
make_exclude_flag = partial(flag, (), "Files to leave out, as in .gitignore; repeatable.", "Files", "PATTERN")
make_venv_flag = partial(
    flag, None, "Environment on the hosts, from / or ~/ (default: the installed one).", metavar="PATH", min_length=1
)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Fields:
    """Base of tasks and of the fields that several tasks share: frozen dataclasses, made by keywords. They are no
    records, because a task has several bases with fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    left_out: ClassVar[frozenset[str]] = frozenset()  # inherited fields that are neither options nor keys

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Task(Fields):
    """Base of all tasks. The path of an environment has no slash at its end: others are built on it (``ENV.d``)."""

    def __post_init__(self) -> None:
        if venv := getattr(self, "venv", None):
            object.__setattr__(self, "venv", venv.rstrip("/") or "/")


class VersionFields(Fields):
    """Constraints on the release that is chosen from the version table."""

    track: Literal["ipex", "native"] | None = flag(
        None, "Release track: ipex (ends at torch 2.8.0) or native, plain torch (default: either).", "Versions"
    )
    torch: str | None = flag(None, "Version of torch: 2.7.0, 2.7, '>=2.6,<2.8' or latest.", "Versions", "VERSION")
    ipex: str | None = advanced_flag(None, "Exact version of intel_extension_for_pytorch.", "Versions", "VERSION")
    oneccl: str | None = advanced_flag(None, "Exact version of oneccl_bind_pt.", "Versions", "VERSION")
    backend: Backend = flag(
        "auto", "Collectives to install: ccl needs oneccl_bind_pt, impi needs torch 2.6; auto prefers ccl.", "Versions"
    )


class PackageFields(Fields):
    """Where packages come from, and which ones beside those of the release."""

    omp: OpenMP = advanced_flag("auto", "OpenMP library: intel adds Intel's, from its wheel.", "Packages")
    index_url: str | None = flag(None, "Package index (default: the public indexes of the release).", "Packages", "URL")
    extra_index_url: tuple[str, ...] = advanced_flag((), "Additional package index; repeatable.", "Packages", "URL")
    find_links: tuple[str, ...] = advanced_flag(
        (), "Additional directory or page with wheels; repeatable.", "Packages", "PATH"
    )
    requirements: tuple[str, ...] = flag(
        (), "Requirements file to resolve together with the release; repeatable.", "Packages", "PATH", names=("-r",)
    )
    with_: tuple[str, ...] = flag(
        (),
        "Additional requirement, such as 'transformers<4.53'; install builds that of a directory; repeatable.",
        "Packages",
        "REQUIREMENT",
        alias="with",
    )
    build: tuple[str, ...] = advanced_flag(
        (), "Package to build here from source, where no index has a wheel of it; repeatable.", "Packages", "PACKAGE"
    )
    remembered_lock: bool = advanced_flag(True, "Use the wheels locked by an earlier equal command.", "Packages")


class TransferFields(Fields):
    """Which files are copied, and whose."""

    exclude: tuple[str, ...] = make_exclude_flag()
    project: str | None = flag(
        None, "Project's root (default: the nearest with .git, pyproject.toml or .ipexctlignore).", "Files", "DIRECTORY"
    )


class Doctor(Task):
    """Look at every host and say what is wrong, on which host, and how to fix it."""

    venv: str | None = make_venv_flag(group="Checks")
    workdir: str | None = advanced_flag(
        None, "Working directory on the hosts, whose disk is checked (default: the home directory).", "Checks", "PATH"
    )
    timeout: float = advanced_flag(10.0, "Seconds to wait for one host's answer.", "Checks", gt=0)
    pairwise: Literal["auto", "all", "off"] = advanced_flag(
        "auto", "Test the network between hosts: every pair up to 32 hosts (auto), all pairs, or none.", "Checks"
    )
    recorded: tuple[str, ...] = flag((), "Check these saved probes instead of hosts.", "Checks", "FILE...")
    save_bundle: str | None = advanced_flag(None, "Directory for each host's raw answers.", "Checks", "DIRECTORY")
    explain: str | None = flag(None, "Explain one finding by its code; contact no host.", "Checks", "CODE")
    imports: bool = advanced_flag(False, "Import the installed stack on every host; takes seconds.", "Checks")
    bench: bool = flag(False, "Measure every host and the network between pairs; takes about ten seconds.", "Checks")
    fix: bool = flag(False, "Apply the safe fixes, after asking for each.", "Fixes")
    yes: bool = flag(False, "Answer yes to every question.", "Fixes", names=("-y",))


class Install(PackageFields, VersionFields, Task):
    """Install the matching wheels of one release of the version table on all hosts."""

    python: str | None = flag(
        None, "Interpreter on hosts, such as 3.11 or a path (default: one that fits).", "Environment", "PATH|VERSION"
    )
    venv: str | None = flag(
        None, "Path on all hosts, from / or ~/ (default: chosen by ipexctl).", "Environment", "PATH"
    )
    mpi: str = advanced_flag(
        "auto",
        "MPI to use: that of a wheel by its name (auto, wheel: Intel MPI), or the hosts' own by its path.",
        "Environment",
        f"wheel|{DIALECT_CHOICES}|PATH",
        pattern=rf"^(auto|wheel|{DIALECT_CHOICES}|/.+)$",
    )
    like: str | None = flag(
        None, "Host to take as the model: its release, MPI, packages and path (default: none).", "Environment", "HOST"
    )
    without: tuple[str, ...] = advanced_flag((), "Package to remove; repeatable.", "Packages", "PACKAGE")
    upgrade: tuple[str, ...] = advanced_flag((), "Package to bring up to date; repeatable.", "Packages", "PACKAGE")
    wheels: str | None = flag(None, "Local directory of wheels to install from, nothing else.", "Packages", "DIRECTORY")
    wheels_from: Literal["auto", "controller", "hosts"] = advanced_flag(
        "auto", "Side that downloads wheels; auto: hosts that reach the index, the controller for others.", "Packages"
    )
    check: bool = advanced_flag(False, "Print what would change on each host; change nothing.")
    partial: bool = advanced_flag(False, "Switch the hosts that are ready even if others failed.")
    lock: str | None = advanced_flag(None, "Lock file to write, or with --locked to read.", metavar="PATH")
    locked: bool = advanced_flag(False, "Install exactly what the lock file lists.")


class Wheels(PackageFields, VersionFields, Task):
    """Download the wheels of one release into a local directory, for hosts without internet access."""

    directory: str = flag(..., "Local directory to write the wheels to.", argument=True, example="wheels")
    python: tuple[str, ...] = flag(
        (), "Python of the hosts, such as 3.11; repeatable (default: the newest of the release).", "Versions", "VERSION"
    )
    glibc: str = flag("2.28", "Oldest glibc of the hosts.", "Versions", "VERSION")


class VenvFields(Fields):
    venv: str | None = make_venv_flag()


class Uninstall(VenvFields, Task):
    """Remove what install made, and nothing else."""


class Sync(TransferFields, Task):
    """Copy a directory, the script's project or a model of a hub to all hosts: changed files only."""

    source: str = flag(
        ".", "Local directory; a script means its project; or hf:ORG/MODEL[@REVISION].", argument=True, min_length=1
    )
    workdir: str | None = flag(None, "Directory on the hosts (default: its place in ~/ipexctl/NAME).", "Files", "PATH")
    delete: bool = flag(False, "Remove files that are not in the source.", "Files")
    diff: bool = flag(False, "Show how changed text files differ from those on the hosts.", "Files")


class Run(TransferFields, Task):
    """Start a script or a program with mpirun on all hosts and show every rank's output."""

    script: str = flag(
        "", "Local Python or #! file; or a program of the environment, such as vllm.", metavar="WHAT", argument=True
    )
    args: tuple[str, ...] = flag((), "Its arguments; options of ipexctl stand before it.", argument=True)
    exclude: tuple[str, ...] = make_exclude_flag(advanced=True)
    module: bool = flag(False, "WHAT is a module, of the environment or below this directory.", names=("-m",))
    program: bool = flag(False, "WHAT is a program of the hosts: its name or its absolute path.")
    engine: str | None = flag(
        None, "Launcher of each host's ranks: torchrun, accelerate, deepspeed, lightning or ray.", metavar="NAME"
    )
    per_host: bool = flag(False, "Start one process on each host, with the cores of all its ranks.", "Placement")
    role: tuple[str, ...] = advanced_flag(
        (),
        "Command that node0 (head) or the other hosts (rest) start in place of WHAT, which is left out beside both.",
        metavar="head|rest:COMMAND",
    )
    ready: str | None = advanced_flag(
        None, "Sign that a process is up: it answers at a URL or port, or has written a text.", metavar="URL|PORT|TEXT"
    )
    n: int | None = make_ranks_flag()
    ppn: int | None = make_ppn_flag()
    backend: Backend = flag("auto", "Collectives backend; auto is ccl or impi if installed, else gloo.", "Collectives")
    backend_override: bool = advanced_flag(
        False, "Use impi in scripts that choose gloo, ccl, mpi or none.", "Collectives"
    )
    venv: str | None = make_venv_flag(group="Environment")
    workdir: str | None = advanced_flag(
        None, "Directory on the hosts for the project (default: one of its own below ~/ipexctl).", "Environment", "PATH"
    )
    sync: bool = advanced_flag(True, "Copy the script's project to the hosts, or not (default: copy).", "Environment")
    env: dict[str, str] = flag({}, "Variable for the ranks; repeatable.", "Environment", "NAME=VALUE", names=("-e",))
    env_file: tuple[str, ...] = advanced_flag((), "File of variables for the ranks; repeatable.", "Environment", "PATH")
    stdin: str | None = advanced_flag(
        None, "Standard input of rank 0, read before the start; - is ipexctl's (default: empty).", "Environment", "FILE"
    )
    pass_env: tuple[str, ...] = advanced_flag((), "Local variable for the ranks; repeatable.", "Environment", "NAME")
    iface: str | None = advanced_flag(None, "Interface on all hosts (default: chosen per host).", "Collectives", "NAME")
    port: int | None = advanced_flag(
        None, "Rendezvous port on node0 (default: a free one).", "Collectives", "PORT", ge=1024, le=65535
    )
    port_range: str | None = advanced_flag(
        None, "Ports to listen on, of all hosts (default: free ones).", "Collectives", "LOW-HIGH", pattern=r"^\d+-\d+$"
    )
    threads: int | None = advanced_flag(None, "OpenMP threads per rank (default: the rank's cores).", "Placement", ge=1)
    ccl_workers: int = advanced_flag(1, "oneCCL worker threads per rank.", "Collectives", ge=1)
    time_limit: float | None = flag(
        None, "End the run after this time: seconds, or such as 90m or 2h (default: no limit).", "Limits", gt=0
    )
    grace: float = advanced_flag(10.0, "Seconds between SIGTERM and SIGKILL.", "Limits", ge=0)
    lease: float | None = advanced_flag(
        None, "End the run after this many seconds without a watcher (default: no limit).", "Limits", gt=0
    )
    node_lease: float = advanced_flag(30.0, "Seconds of silence after which a host counts as lost.", "Limits", ge=5)
    stall_warn: float = advanced_flag(120.0, "Warn after so many seconds without progress (0: never).", "Limits", ge=0)
    stall: Literal["report", "kill", "restart"] = advanced_flag(
        "report", "On a stall: report the ranks' stacks, or also end the run, or start it again (--restarts).", "Limits"
    )
    stall_kill: bool = advanced_flag(False, "End the run on a stall, the same as --stall kill.", "Limits")
    stop_on_nan: bool = advanced_flag(
        False, "End the run when a loss is NaN or infinite, while this command watches it (exit code 6).", "Limits"
    )
    straggler_warn: float = advanced_flag(60.0, "Warn after so many seconds of straggling (0: never).", "Limits", ge=0)
    straggler_kill: bool = advanced_flag(False, "End the run when a straggler is found.", "Limits")
    metrics_every: float = advanced_flag(
        5.0, "Seconds between two samples of each host's CPU, memory and network (0: never).", "Output", ge=0
    )
    restarts: int = flag(0, "Restarts after a failed rank or a lost host, also of a detached run.", "Limits", ge=0)
    min_hosts: int | None = advanced_flag(
        None, "Restart without lost hosts while at least this many remain (default: all).", "Limits", ge=1
    )
    spares: int = advanced_flag(
        0, "Hosts without ranks, the last ones, that can each take a lost host's place in a restart.", "Limits", ge=0
    )
    on_split: Literal["head", "wait"] = advanced_flag(
        "head",
        "Action of half of the hosts (--min-hosts) that lost the others: go on if node0 is among them, or wait for the "
        "others or the vote of this command.",
        "Limits",
    )
    keep: str | None = flag(
        None,
        "Directory of the script's checkpoints, copied to other hosts (default: that of a Trainer, Accelerate "
        "or Lightning script with --restarts).",
        "Limits",
        "PATH",
    )
    keep_copies: int = advanced_flag(1, "Other hosts that get a copy of what a host writes to --keep.", "Limits", ge=0)
    resume: Literal["off", "auto"] = flag(
        "off",
        "Go on from the newest checkpoint in --keep, also at the first start, and give the script its argument for it.",
        "Limits",
        example="auto",
    )
    profile: str | None = flag(
        None,
        "Steps to profile with torch.profiler: 10:15 is steps 10 to 15, 5 is five steps from step 3 on.",
        "Measurement",
        "STEPS",
        pattern=r"^([1-9]\d{0,6}|\d{1,7}:\d{1,7})$",
    )
    wait: bool = advanced_flag(False, "Wait for hosts that another run uses; waiting runs start in order.", "Hosts")
    detach: bool = flag(False, "Return as soon as the run has started; with --ready once it is up.")
    share: bool = advanced_flag(False, "Start even if another run uses these hosts.", "Hosts")
    allow_duplicates: bool = advanced_flag(False, "Accept several entries that are the same machine.", "Hosts")
    mpi: str = advanced_flag(
        "auto",
        "MPI launcher to use; auto takes the environment's.",
        "Collectives",
        f"{DIALECT_CHOICES}|PATH",
        pattern=rf"^(auto|{DIALECT_CHOICES}|/.+)$",
    )
    launcher: Literal["script", "accelerate"] = advanced_flag(
        "script", "How Python starts the script: as a file, or through Accelerate.", "Environment"
    )
    accelerate_config: str | None = advanced_flag(
        None, "Local default_config.yaml of Accelerate, for --launcher accelerate.", "Environment", "PATH"
    )
    allocator: Literal["auto", "tcmalloc", "jemalloc", "default"] = advanced_flag(
        "auto", "Memory allocator to preload; auto takes tcmalloc or jemalloc where a host has one.", "Environment"
    )
    omp: OpenMP = advanced_flag("auto", "OpenMP to preload; auto takes Intel's where a host has it.", "Environment")
    membind: bool = advanced_flag(False, "Bind each rank's memory to its own NUMA nodes.", "Placement")
    hugepages: bool = advanced_flag(False, "Request huge pages for large tensors.", "Environment")
    isa: Isa = advanced_flag(
        "native",
        "Instruction-set level: that of each host (native), of all (common), or one from AVX2 to AMX_FP8; NEON.",
        "Environment",
        "native|common|LEVEL",
    )
    instances: str | None = advanced_flag(
        None,
        "Independent processes without a rendezvous: this many per host, per-node, per-core, or latency.",
        "Instances",
        "COUNT",
        pattern=r"^([1-9][0-9]*|per-node|per-core|throughput|latency)$",
    )
    cores_per_instance: int | None = advanced_flag(None, "Cores of each instance (default: equal).", "Instances", ge=1)
    within_node: bool = advanced_flag(False, "Keep each instance in one NUMA node, even if cores idle.", "Instances")
    instance: int | None = advanced_flag(
        None, "Start only this instance of each host, counted from 0 (default: all).", "Instances", ge=0
    )
    fail_fast: bool = advanced_flag(False, "End all instances when one fails.", "Instances")
    numa: str | None = advanced_flag(None, "NUMA nodes to use, such as 0,2-3 (default: all).", "Placement", "LIST")
    cpus: str | None = advanced_flag(None, "Logical CPUs to use, such as 0-15,32 (default: all).", "Placement", "LIST")
    logical_cores: bool = advanced_flag(False, "Use all hardware threads of each core.", "Placement")

    host_notify: str | None = advanced_flag(
        None, "Command on the leading host, for what --notify gets, watched or not.", "Notifications", "COMMAND"
    )

    @property
    def independent(self) -> bool:
        """Instances, not ranks."""
        return bool(self.instances or self.cores_per_instance)


class Tune(Run):
    """Try launches of a script by short runs of it, and recommend one that is faster than the default."""

    left_out = frozenset(
        {"detach", "restarts", "min_hosts", "ready", "profile", "stop_on_nan", "stdin", "role", "resume", "time_limit"}
        | {"instances", "cores_per_instance", "within_node", "instance", "fail_fast", "per_host", "keep", "keep_copies"}
        | {"spares", "on_split", "host_notify"}
    )
    script: str = flag("", Run.__dataclass_fields__["script"].metadata["flag"].help, metavar="WHAT", argument=True)
    budget: str = flag("15m", "Time for all runs, such as 90s, 15m or 2h.", "Measurement", "TIME")
    steps: int = flag(20, "Steps to measure of each launch, after the first three.", "Measurement", ge=1)
    vary: tuple[str, ...] = flag(
        (),
        "What to vary: allocator, omp, membind, hugepages, backend, ccl_workers, threads, ppn, compile (default: all;"
        " ppn with --keep-batch).",
        "Measurement",
        "NAMES",
    )
    fixed: dict[str, str] = advanced_flag({}, "Part that is not varied; repeatable.", "Measurement", "NAME=VALUE")
    arg: dict[str, str] = flag({}, "Script's argument to vary, as dtype=fp32,bf16.", "Measurement", "NAME=VALUES")
    keep_batch: str | None = flag(None, "Script's argument with a rank's batch, to fit ppn.", "Measurement", "NAME")
    metric: str | None = advanced_flag(None, "Figure to compare (default: steps/s).", "Measurement", "NAME")
    direction: Literal["max", "min"] = advanced_flag("max", "Whether more or less is better.", "Measurement")
    seed: int = advanced_flag(0, "Seed of the search.", "Measurement", ge=0)
    into: str = flag("tuned.yaml", "Local playbook to write what is recommended.", "Output", "PATH")


class Bench(Task):
    """Measure a model on the hosts: fp32 and bf16, stock torch, torch.compile and IPEX, side by side."""

    model: Literal["bert"] = flag("bert", "Model to measure.", argument=True)
    size: Literal["tiny", "small", "base"] = flag("small", "Model size; base is bert-base-uncased.", "Measurement")
    mode: Literal["train", "infer"] = flag("train", "Workload: training, or inference.", "Measurement")
    batch: int = flag(8, "Samples per step on each host.", "Measurement", ge=1)
    steps: int = flag(10, "Steps to measure of each form, at least 5; the median counts.", "Measurement", ge=5)
    compile: bool = flag(
        True, "Measure torch.compile, which needs a C++ compiler on hosts, or not (default: measure).", "Measurement"
    )
    cluster: bool = flag(True, "All hosts as one run, or each for itself (default: one run).", "Measurement")
    venv: str | None = make_venv_flag()
    plot: str | None = flag(None, "Local SVG file for the chart.", "Output", "PATH")
    time_limit: float = advanced_flag(3600.0, "Begin no measurement after this many seconds.", "Limits", gt=0)


class Execute(Task):
    """Run one command on every host (the step ``command``)."""

    argv: tuple[str, ...] = flag(
        ..., "Command to run, as a list of words.", metavar="COMMAND", argument=True, example="uptime", min_length=1
    )
    timeout: float = flag(60.0, "Seconds the command may take.", gt=0)
    changes: bool = advanced_flag(True, "Count the command as a change (default: true); false for one that only reads.")


class Fetch(TransferFields, Task):
    """Copy results back from the hosts: changed files only, into a directory per host."""

    paths: tuple[str, ...] = flag(
        ..., "Files, directories and globs on the hosts.", argument=True, example="logs", min_length=1
    )
    into: str = flag("fetched", "Local directory; each host's files go into DIRECTORY/HOST.", "Files", "DIRECTORY")
    from_: str = flag("all", "Hosts: all, a rank's or a list as of --limit.", "Hosts", "all|rank:N|HOSTS", alias="from")
    source: str = advanced_flag(
        ".", "Local directory that sync copied; relative paths start at its place on the hosts.", "Files", "PATH"
    )
    workdir: str | None = advanced_flag(
        None, "Directory on the hosts where relative paths start (default: where sync put the source).", "Files", "PATH"
    )
