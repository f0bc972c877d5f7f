"""What can be asked: the one schema of command-line flags and playbook keys.

A flag ``--wheels-from`` is the key ``wheels_from``: flags and their help are made from these fields. Unknown keys are
refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ipexctl.model.flags import Flag

Backend = Literal["auto", "ccl", "impi", "gloo"]
Transfer = Literal["auto", "tar", "rsync"]
OpenMP = Literal["auto", "intel", "gnu"]
Isa = Literal[
    "native", "common", "AVX2", "AVX2_VNNI", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AVX512_FP16", "AMX", "AMX_FP16"
]


class Fields(BaseModel):
    """Base of tasks and of the fields that several tasks share."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=False, populate_by_name=True, defer_build=True
    )


class Task(Fields):
    """Base of all tasks: frozen, and unknown keys are errors. A schema is built when its task is first made, so that no
    command pays for those of the others."""


class VersionFields(Fields):
    """Constraints on the release that is chosen from the version table."""

    track: Annotated[Literal["ipex", "native"] | None, Flag("Versions")] = Field(
        None, description="Release track: ipex (ends at torch 2.8.0) or native, plain torch (default: either)."
    )
    torch: Annotated[str | None, Flag("Versions", "VERSION")] = Field(None, description="Exact version of torch.")
    ipex: Annotated[str | None, Flag("Versions", "VERSION")] = Field(
        None, description="Exact version of intel_extension_for_pytorch."
    )
    oneccl: Annotated[str | None, Flag("Versions", "VERSION")] = Field(
        None, description="Exact version of oneccl_bind_pt."
    )
    backend: Annotated[Backend, Flag("Versions")] = Field(
        "auto",
        description="Collectives to install: ccl needs oneccl_bind_pt, impi needs torch 2.6; auto prefers ccl.",
    )


class PackageFields(Fields):
    """Where packages come from, and which ones beside those of the release."""

    omp: Annotated[OpenMP, Flag("Packages")] = Field(
        "auto", description="OpenMP library: intel adds Intel's, from its wheel."
    )
    index_url: Annotated[str | None, Flag("Packages", "URL")] = Field(
        None, description="Package index to use (default: the public indexes of the release)."
    )
    extra_index_url: Annotated[tuple[str, ...], Flag("Packages", "URL")] = Field(
        (), description="Additional package index; repeatable."
    )
    find_links: Annotated[tuple[str, ...], Flag("Packages", "PATH")] = Field(
        (), description="Additional directory or page with wheels; repeatable."
    )
    requirements: Annotated[tuple[str, ...], Flag("Packages", "PATH", names=("-r",))] = Field(
        (), description="Requirements file to resolve together with the release; repeatable."
    )
    with_: Annotated[tuple[str, ...], Flag("Packages", "REQUIREMENT")] = Field(
        (), alias="with", description="Additional requirement, such as 'transformers<4.53'; repeatable."
    )


class TransferFields(Fields):
    """Which files are copied, and how."""

    exclude: Annotated[tuple[str, ...], Flag("Files", "PATTERN")] = Field(
        (), description="Pattern of files to leave out, as in .gitignore; repeatable."
    )
    transfer: Annotated[Transfer, Flag("Files")] = Field(
        "auto", description="Method: one tar stream, rsync, or auto: rsync for changed big files."
    )


class Doctor(Task):
    """Look at every host and say what is wrong, on which host, and how to fix it."""

    venv: Annotated[str | None, Flag("Checks", "PATH")] = Field(
        None, description="Environment to inspect, a path on the hosts (default: the installed one)."
    )
    workdir: Annotated[str | None, Flag("Checks", "PATH")] = Field(
        None, description="Working directory whose disk is checked, a path on the hosts (default: the home directory)."
    )
    timeout: Annotated[float, Flag("Checks")] = Field(10.0, gt=0, description="Seconds to wait for one host's answer.")
    pairwise: Annotated[Literal["auto", "all", "off"], Flag("Checks")] = Field(
        "auto", description="Test the network between hosts: every pair up to 32 hosts (auto), all pairs, or none."
    )
    recorded: Annotated[tuple[str, ...], Flag("Checks", "FILE...")] = Field(
        (), description="Check these saved probes instead of hosts."
    )
    save_bundle: Annotated[str | None, Flag("Checks", "DIRECTORY")] = Field(
        None, description="Save each host's raw answers in this directory."
    )
    explain: Annotated[str | None, Flag("Checks", "CODE")] = Field(
        None, description="Explain one finding by its code; contact no host."
    )
    imports: Annotated[bool, Flag("Checks")] = Field(
        False, description="Import the installed stack on every host; takes seconds."
    )
    bench: Annotated[bool, Flag("Checks")] = Field(
        False, description="Measure every host and the network between pairs; takes about ten seconds."
    )
    fix: Annotated[bool, Flag("Fixes")] = Field(False, description="Apply the safe fixes, after asking for each.")
    yes: Annotated[bool, Flag("Fixes", names=("-y",))] = Field(False, description="Answer yes to every question.")


class Install(VersionFields, PackageFields, Task):
    """Install the matching wheels of one release of the version table on all hosts."""

    python: Annotated[str | None, Flag("Environment", "PATH|VERSION")] = Field(
        None, description="Interpreter on the hosts: a path, or a version such as 3.11 (default: one that fits)."
    )
    venv: Annotated[str | None, Flag("Environment", "PATH")] = Field(
        None, description="Absolute path of the environment, the same on all hosts (default: chosen by ipexctl)."
    )
    mpi: Annotated[str, Flag("Environment", "wheel|impi|mpich|openmpi|PATH")] = Field(
        "auto",
        pattern=r"^(auto|wheel|impi|mpich|openmpi|/.+)$",
        description="MPI to use: wheel (Intel MPI from its wheel, as auto), or the hosts' own by name or path.",
    )
    wheels: Annotated[str | None, Flag("Packages", "PATH")] = Field(
        None, description="Local wheelhouse to install from, and nothing else: a directory, .tar[.gz] or .zip."
    )
    wheels_from: Annotated[Literal["auto", "controller", "hosts"], Flag("Packages")] = Field(
        "auto", description="Side that downloads the wheels."
    )
    check: Annotated[bool, Flag()] = Field(False, description="Print what would change on each host; change nothing.")
    partial: Annotated[bool, Flag()] = Field(
        False, description="Switch the hosts that are ready even if others failed."
    )
    lock: Annotated[str | None, Flag(metavar="PATH")] = Field(
        None, description="Lock file to write, or with --locked to read."
    )
    locked: Annotated[bool, Flag()] = Field(False, description="Install exactly what the lock file lists.")


class Wheels(VersionFields, PackageFields, Task):
    """Download the wheels of one release into a local directory, for hosts without internet access."""

    directory: Annotated[str, Flag(argument=True)] = Field(
        description="Local wheelhouse to write: a directory, .tar, .tar.gz or .zip."
    )
    python: Annotated[tuple[str, ...], Flag("Versions", "VERSION")] = Field(
        (), description="Python version of the hosts, such as 3.11; repeatable (default: the newest of the release)."
    )
    glibc: Annotated[str, Flag("Versions", "VERSION")] = Field("2.28", description="Oldest glibc of the hosts.")


class VenvFields(Fields):
    """The environment on the hosts."""

    venv: Annotated[str | None, Flag(metavar="PATH")] = Field(
        None, description="Environment on the hosts (default: the installed one)."
    )


class Verify(VenvFields, Task):
    """Check on every host that its environment is still what was installed."""


class Uninstall(VenvFields, Task):
    """Remove what install made, and nothing else."""


class Sync(TransferFields, Task):
    """Copy a directory (or the script's directory) to all hosts: changed files only."""

    source: Annotated[str, Flag(argument=True)] = Field(".", description="Local directory or file.")
    workdir: Annotated[str | None, Flag("Files", "PATH")] = Field(
        None, description="Destination on the hosts (default: ~/ipexctl/NAME)."
    )
    delete: Annotated[bool, Flag("Files")] = Field(False, description="Remove files that are not in the source.")
    diff: Annotated[bool, Flag("Files")] = Field(
        False, description="Show how changed text files differ from those on the hosts."
    )


class Run(Task):
    """Start a script with mpirun on all hosts and show every rank's output."""

    script: Annotated[str, Flag(argument=True)] = Field(description="Local script to run.")
    args: Annotated[tuple[str, ...], Flag(argument=True)] = Field(
        (), description="Arguments of the script; options of ipexctl stand before the script."
    )
    n: Annotated[int | None, Flag("Placement", names=("-n", "--np"))] = Field(
        None, ge=1, description="Ranks in total, the world size (default: ranks per host times hosts)."
    )
    ppn: Annotated[int | None, Flag("Placement")] = Field(
        None, ge=1, description="Ranks per host (default: the host's slots, else its NUMA nodes)."
    )
    backend: Annotated[Backend, Flag("Collectives")] = Field(
        "auto", description="Collectives backend; auto takes the installed one of ccl and impi, else gloo."
    )
    backend_override: Annotated[bool, Flag("Collectives")] = Field(
        False, description="Use impi also in scripts that choose gloo or no backend."
    )
    venv: Annotated[str | None, Flag("Environment", "PATH")] = Field(
        None, description="Environment on the hosts (default: the installed one)."
    )
    workdir: Annotated[str | None, Flag("Environment", "PATH")] = Field(
        None, description="Working directory on the hosts (default: where sync put the script's directory)."
    )
    sync: Annotated[bool, Flag("Environment")] = Field(
        True, description="Copy the script's directory to the hosts first, or not (default: copy)."
    )
    env: Annotated[dict[str, str], Flag("Environment", "NAME=VALUE", names=("-e",))] = Field(
        default_factory=dict, description="Environment variable for the ranks; repeatable."
    )
    env_file: Annotated[tuple[str, ...], Flag("Environment", "PATH")] = Field(
        (), description="File of NAME=VALUE lines for the ranks; repeatable."
    )
    pass_env: Annotated[tuple[str, ...], Flag("Environment", "NAME")] = Field(
        (), description="Variable of this machine to pass to the ranks; repeatable."
    )
    iface: Annotated[str | None, Flag("Collectives", "NAME")] = Field(
        None, description="Network interface, the same on all hosts (default: chosen per host)."
    )
    port: Annotated[int | None, Flag("Collectives", "PORT")] = Field(
        None, ge=1024, le=65535, description="Rendezvous port on node0 (default: a free one)."
    )
    threads: Annotated[int | None, Flag("Placement")] = Field(
        None, ge=1, description="OpenMP threads per rank (default: the rank's cores)."
    )
    ccl_workers: Annotated[int, Flag("Collectives")] = Field(1, ge=1, description="oneCCL worker threads per rank.")
    time_limit: Annotated[float | None, Flag("Limits")] = Field(
        None, gt=0, description="End the run after this many seconds (default: no limit)."
    )
    grace: Annotated[float, Flag("Limits")] = Field(10.0, ge=0, description="Seconds between SIGTERM and SIGKILL.")
    lease: Annotated[float | None, Flag("Limits")] = Field(
        None, gt=0, description="End the run after this many seconds without a watcher (default: no limit)."
    )
    node_lease: Annotated[float, Flag("Limits")] = Field(
        30.0, ge=5, description="Seconds of silence after which a host of the run counts as lost."
    )
    stall_warn: Annotated[float, Flag("Limits")] = Field(
        120.0, ge=0, description="Warn after this many seconds without progress (0: never)."
    )
    stall: Annotated[Literal["report", "kill"], Flag("Limits")] = Field(
        "report", description="Action on a stall: report the ranks' stacks, or report them and end the run."
    )
    stall_kill: Annotated[bool, Flag("Limits")] = Field(
        False, description="End the run on a stall, the same as --stall kill."
    )
    straggler_warn: Annotated[float, Flag("Limits")] = Field(
        60.0, ge=0, description="Warn after this many seconds of straggling (0: never)."
    )
    straggler_kill: Annotated[bool, Flag("Limits")] = Field(False, description="End the run when a straggler is found.")
    log_cap: Annotated[int, Flag("Limits", "MB")] = Field(
        0, ge=0, description="Megabytes of output kept on node0; the oldest is dropped first (0: all of it)."
    )
    restarts: Annotated[int, Flag("Limits")] = Field(
        0, ge=0, description="Restart at most this many times after a failed rank or a lost host."
    )
    min_hosts: Annotated[int | None, Flag("Limits")] = Field(
        None, ge=1, description="Restart without lost hosts while at least this many remain (default: all)."
    )
    detach: Annotated[bool, Flag()] = Field(False, description="Return as soon as the run has started.")
    share: Annotated[bool, Flag("Hosts")] = Field(False, description="Start even if another run uses these hosts.")
    allow_duplicates: Annotated[bool, Flag("Hosts")] = Field(
        False, description="Accept several entries that are the same machine."
    )
    mpi: Annotated[str, Flag("Collectives", "impi|mpich|openmpi|PATH")] = Field(
        "auto",
        pattern=r"^(auto|impi|mpich|openmpi|/.+)$",
        description="MPI launcher to use; auto takes the environment's.",
    )
    launcher: Annotated[Literal["script", "module", "accelerate"], Flag("Environment")] = Field(
        "script", description="How Python starts the script: as a file, as a module, or through Accelerate."
    )
    accelerate_config: Annotated[str | None, Flag("Environment", "PATH")] = Field(
        None, description="Local default_config.yaml of Accelerate, for --launcher accelerate."
    )
    allocator: Annotated[Literal["auto", "tcmalloc", "jemalloc", "default"], Flag("Environment")] = Field(
        "auto", description="Memory allocator to preload; auto takes tcmalloc or jemalloc where a host has one."
    )
    omp: Annotated[OpenMP, Flag("Environment")] = Field(
        "auto", description="OpenMP library to preload; auto takes Intel's where a host has it."
    )
    membind: Annotated[bool, Flag("Placement")] = Field(
        False, description="Bind each rank's memory to its own NUMA nodes."
    )
    hugepages: Annotated[bool, Flag("Environment")] = Field(False, description="Request huge pages for large tensors.")
    isa: Annotated[Isa, Flag("Environment", "native|common|LEVEL")] = Field(
        "native",
        description="Instruction-set level: that of each host (native), of all (common), or one of AVX2 … AMX_FP16.",
    )
    instances: Annotated[str | None, Flag("Instances", "N|per-node|per-core|latency")] = Field(
        None,
        pattern=r"^([1-9][0-9]*|per-node|per-core|throughput|latency)$",
        description="Start independent processes without a rendezvous: N per host, or one per NUMA node or core.",
    )
    cores_per_instance: Annotated[int | None, Flag("Instances")] = Field(
        None, ge=1, description="Cores of each instance (default: equal parts)."
    )
    within_node: Annotated[bool, Flag("Instances")] = Field(
        False, description="Keep each instance within one NUMA node, even if cores stay idle."
    )
    instance: Annotated[int | None, Flag("Instances")] = Field(
        None, ge=0, description="Start only this instance of each host, counted from 0 (default: all)."
    )
    fail_fast: Annotated[bool, Flag("Instances")] = Field(False, description="End all instances when one fails.")
    numa: Annotated[str | None, Flag("Placement", "LIST")] = Field(
        None, description="NUMA nodes to use, such as 0,2-3 (default: all)."
    )
    cpus: Annotated[str | None, Flag("Placement", "LIST")] = Field(
        None, description="Logical CPUs to use, such as 0-15,32 (default: all)."
    )
    logical_cores: Annotated[bool, Flag("Placement")] = Field(
        False, description="Use all hardware threads of each core."
    )

    @property
    def independent(self) -> bool:
        """Instances, not ranks."""
        return bool(self.instances or self.cores_per_instance)


class Bench(Task):
    """Measure a model on the hosts: fp32 and bf16, stock torch, torch.compile and IPEX, side by side."""

    model: Annotated[Literal["bert"], Flag(argument=True)] = Field("bert", description="Model to measure.")
    size: Annotated[Literal["tiny", "small", "base"], Flag("Measurement")] = Field(
        "small", description="Size of the model; base is bert-base-uncased."
    )
    mode: Annotated[Literal["both", "train", "infer"], Flag("Measurement")] = Field(
        "both", description="Workload: training, inference, or both."
    )
    batch: Annotated[int, Flag("Measurement")] = Field(8, ge=1, description="Samples per step on each host.")
    steps: Annotated[int, Flag("Measurement")] = Field(10, ge=1, description="Steps to measure; the median counts.")
    compile: Annotated[bool, Flag("Measurement")] = Field(
        True, description="Measure torch.compile, which needs a C++ compiler on the hosts, or not (default: measure)."
    )
    cluster: Annotated[bool, Flag("Measurement")] = Field(
        True, description="Measure training on all hosts together, or not (default: measure)."
    )
    venv: Annotated[str | None, Flag(metavar="PATH")] = Field(
        None, description="Environment on the hosts (default: the installed one)."
    )
    plot: Annotated[str | None, Flag("Output", "PATH")] = Field(None, description="Local SVG file for the chart.")
    time_limit: Annotated[float, Flag("Limits")] = Field(
        3600.0, gt=0, description="End a measurement after this many seconds."
    )


class Execute(Task):
    """Run one command on every host (the step ``command``)."""

    argv: tuple[str, ...] = Field(min_length=1, description="Command to run, as a list of words.")
    timeout: float = Field(60.0, gt=0, description="Seconds the command may take.")
    changes: bool = Field(True, description="Count the command as a change; false for commands that only read.")


class Fetch(TransferFields, Task):
    """Copy results back from the hosts: changed files only, into a directory per host."""

    paths: Annotated[tuple[str, ...], Flag(argument=True)] = Field(
        min_length=1, description="Files, directories and globs on the hosts."
    )
    into: Annotated[str, Flag("Files", "DIRECTORY")] = Field(
        "fetched", description="Local directory; each host's files go into DIRECTORY/HOST."
    )
    from_: Annotated[str, Flag("Hosts", "all|rank:N|HOSTS")] = Field(
        "all", alias="from", description="Hosts to copy from: all, that of a rank, or a list as of --limit."
    )
    source: Annotated[str, Flag("Files", "PATH")] = Field(
        ".", description="Local directory that sync copied; relative paths start at its place on the hosts."
    )
    workdir: Annotated[str | None, Flag("Files", "PATH")] = Field(
        None, description="Directory on the hosts where relative paths start (default: where sync put the source)."
    )
