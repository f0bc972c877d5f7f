"""What can be asked: one schema for command-line flags and playbook lines.

A flag ``--wheels-from`` is the key ``wheels_from``. Unknown keys are refused. A test holds flags and keys equal.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Backend = Literal["auto", "ccl", "impi", "gloo"]
Isa = Literal[
    "native", "common", "AVX2", "AVX2_VNNI", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AVX512_FP16", "AMX", "AMX_FP16"
]


class Task(BaseModel):
    """Base of all tasks: frozen, and unknown keys are errors. A schema is built when its task is first made, so that no
    command pays for those of the others."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=False, populate_by_name=True, defer_build=True
    )


class Doctor(Task):
    """Look at every host and say what is wrong, on which host, and how to fix it."""

    venv: str | None = Field(None, description="the environment to look into, a path on the hosts")
    workdir: str | None = Field(None, description="the working directory whose disk counts, a path on the hosts")
    timeout: float = Field(10.0, gt=0, description="seconds one host may take to answer")
    pairwise: Literal["auto", "all", "off"] = Field(
        "auto", description="try the network between hosts: every pair up to 32 hosts, always, or not at all"
    )
    recorded: tuple[str, ...] = Field((), description="judge these saved probes instead of hosts")
    save_bundle: str | None = Field(None, description="save what each host said in this directory")
    explain: str | None = Field(None, description="tell the whole story of one finding's code")
    imports: bool = Field(False, description="import the installed stack on every host, which takes seconds")
    bench: bool = Field(False, description="measure every host and the network between pairs, about ten seconds")
    fix: bool = Field(False, description="do the safe fixes, after asking for each")
    yes: bool = Field(False, description="do not ask")


class Install(Task):
    """Put the matching wheels of one row of the version table on all hosts."""

    track: Literal["ipex", "native"] | None = Field(None, description="ipex (ends at 2.8.0) or native (plain torch)")
    torch: str | None = Field(None, description="torch version, exact")
    ipex: str | None = Field(None, description="intel_extension_for_pytorch version, exact")
    oneccl: str | None = Field(None, description="oneccl_bind_pt version, exact")
    backend: Backend = Field("auto", description="collectives: auto is ccl where the row has it, impi from torch 2.6")
    python: str | None = Field(None, description="interpreter on the hosts: a path or a version such as 3.11")
    venv: str | None = Field(None, description="absolute path of the environment, the same on all hosts")
    mpi: str = Field(
        "auto",
        pattern=r"^(auto|wheel|impi|mpich|openmpi|/.+)$",
        description="whose mpirun: wheel (Intel MPI out of the wheels), or the hosts' impi, mpich, openmpi or a path",
    )
    omp: Literal["auto", "intel", "gnu"] = Field("auto", description="intel: with Intel's OpenMP out of its wheel")
    wheels: str | None = Field(None, description="wheelhouse here, a directory or an archive: only it is used")
    wheels_from: Literal["auto", "controller", "hosts"] = Field("auto", description="who downloads the wheels")
    index_url: str | None = Field(None, description="package index instead of the default one")
    extra_index_url: tuple[str, ...] = Field((), description="further package indexes")
    find_links: tuple[str, ...] = Field((), description="further directories or pages with wheels")
    requirements: tuple[str, ...] = Field((), description="requirements files, resolved together with the row")
    with_: tuple[str, ...] = Field((), alias="with", description="further requirements, such as 'transformers<4.53'")
    check: bool = Field(False, description="say what would change, change nothing")
    partial: bool = Field(False, description="switch the hosts that are ready although others failed")
    lock: str | None = Field(None, description="lock file to write, or with --locked to read")
    locked: bool = Field(False, description="install exactly what the lock file says, or nothing")


class Wheels(Task):
    """Fetch the wheels of one row into a directory here, for hosts without a way out."""

    directory: str = Field(description="the wheelhouse on this machine: a directory, .tar, .tar.gz or .zip")
    track: Literal["ipex", "native"] | None = Field(None, description="ipex (ends at 2.8.0) or native (plain torch)")
    torch: str | None = Field(None, description="torch version, exact")
    ipex: str | None = Field(None, description="intel_extension_for_pytorch version, exact")
    oneccl: str | None = Field(None, description="oneccl_bind_pt version, exact")
    backend: Backend = Field("auto", description="collectives: auto is ccl where the row has it, impi from torch 2.6")
    python: tuple[str, ...] = Field((), description="Pythons of the hosts, such as 3.11 (default: the newest)")
    glibc: str = Field("2.28", description="oldest glibc of the hosts")
    omp: Literal["auto", "intel", "gnu"] = Field("auto", description="intel: with Intel's OpenMP out of its wheel")
    index_url: str | None = Field(None, description="package index instead of the default one")
    extra_index_url: tuple[str, ...] = Field((), description="further package indexes")
    find_links: tuple[str, ...] = Field((), description="further directories or pages with wheels")
    requirements: tuple[str, ...] = Field((), description="requirements files, resolved together with the row")
    with_: tuple[str, ...] = Field((), alias="with", description="further requirements, such as 'transformers<4.53'")


class Verify(Task):
    """Ask every host whether its environment is still what was installed."""

    venv: str | None = Field(None, description="the environment, a path on the hosts (default: the installed one)")


class Uninstall(Task):
    """Remove what install made, and nothing else."""

    venv: str | None = Field(None, description="the environment, a path on the hosts (default: the installed one)")


class Sync(Task):
    """Carry a directory (or the script's directory) to all hosts: changed files only."""

    source: str = Field(".", description="directory or file on this machine")
    workdir: str | None = Field(None, description="destination on the hosts (default: ~/ipexctl/<name>)")
    exclude: tuple[str, ...] = Field((), description="patterns to leave out, as in .gitignore")
    delete: bool = Field(False, description="also remove files that are not in the source")
    diff: bool = Field(False, description="show how text files differ from those on the hosts")
    transfer: Literal["auto", "tar", "rsync"] = Field(
        "auto", description="one tar stream, rsync, or rsync where an old version of a big file is there"
    )


class Run(Task):
    """Start a script with mpirun on all hosts and show every rank's output."""

    script: str = Field(description="the script, on this machine")
    args: tuple[str, ...] = Field((), description="arguments of the script")
    n: int | None = Field(None, ge=1, description="ranks in all (world size)")
    ppn: int | None = Field(None, ge=1, description="ranks per host")
    backend: Backend = Field("auto", description="collectives: auto takes what is installed of ccl and impi, else gloo")
    backend_override: bool = Field(False, description="scripts that say gloo, or nothing, use impi")
    venv: str | None = Field(None, description="environment on the hosts (default: the installed one)")
    workdir: str | None = Field(None, description="working directory on the hosts (default: where sync put it)")
    sync: bool = Field(True, description="carry the script's directory over first")
    env: dict[str, str] = Field(default_factory=dict, description="variables for the ranks")
    env_file: tuple[str, ...] = Field((), description="files of NAME=value lines for the ranks")
    pass_env: tuple[str, ...] = Field((), description="variables of this machine that the ranks may see")
    iface: str | None = Field(None, description="network interface on all hosts (default: chosen per host)")
    port: Annotated[int, Field(ge=1024, le=65535)] | None = Field(None, description="rendezvous port on node0")
    threads: int | None = Field(None, ge=1, description="OpenMP threads per rank")
    ccl_workers: int = Field(1, ge=1, description="oneCCL worker threads per rank")
    time_limit: float | None = Field(None, gt=0, description="seconds after which the run is ended")
    grace: float = Field(10.0, ge=0, description="seconds between the polite stop and the hard one")
    lease: float | None = Field(None, gt=0, description="end the run after so many seconds without a watcher")
    node_lease: float = Field(30.0, ge=5, description="seconds of silence after which a host of the run counts as lost")
    stall_warn: float = Field(120.0, ge=0, description="seconds without progress that are told; 0 is never")
    stall: Literal["report", "kill"] = Field("report", description="what to do about a stall, once it was told")
    stall_kill: bool = Field(False, description="the same as stall: kill")
    straggler_warn: float = Field(60.0, ge=0, description="seconds ranks may outlast others untold; 0 is for ever")
    straggler_kill: bool = Field(False, description="end the run then")
    log_cap: int = Field(0, ge=0, description="megabytes of output kept on node0, the oldest go first; 0 is no cap")
    restarts: int = Field(0, ge=0, description="start again so often when a rank failed or a host was lost")
    min_hosts: int | None = Field(None, ge=1, description="start again without a lost host if so many remain")
    detach: bool = Field(False, description="leave the run as soon as it has started")
    share: bool = Field(False, description="start although another run uses these hosts")
    allow_duplicates: bool = Field(False, description="accept several entries that are one machine")
    mpi: str = Field(
        "auto", pattern=r"^(auto|impi|mpich|openmpi|/.+)$", description="whose mpirun: impi, mpich, openmpi or a path"
    )
    launcher: Literal["script", "module", "accelerate"] = Field("script", description="how Python is given the script")
    accelerate_config: str | None = Field(None, description="Accelerate's default_config.yaml on this machine")
    allocator: Literal["auto", "tcmalloc", "jemalloc", "default"] = Field("auto", description="memory allocator")
    omp: Literal["auto", "intel", "gnu"] = Field(
        "auto", description="OpenMP library: Intel's is loaded where it is found"
    )
    membind: bool = Field(False, description="give each rank memory of its own NUMA nodes only")
    hugepages: bool = Field(False, description="ask for huge pages for large tensors")
    isa: Isa = Field("native", description="keep all hosts to one instruction set: a level, or common")
    instances: str | None = Field(
        None,
        pattern=r"^([1-9][0-9]*|per-node|per-core|throughput|latency)$",
        description="start separate processes without a rendezvous: so many per host, per NUMA node or per core",
    )
    cores_per_instance: int | None = Field(None, ge=1, description="cores of each instance (else equal parts)")
    within_node: bool = Field(False, description="no instance over two NUMA nodes, although cores stay idle")
    instance: int | None = Field(None, ge=0, description="start this instance of each host only, where it would be")
    fail_fast: bool = Field(False, description="an instance that fails ends the others")
    numa: str | None = Field(None, description="NUMA nodes whose cores are used, such as 0,2-3")
    cpus: str | None = Field(None, description="logical CPUs that are used, such as 0-15,32")
    logical_cores: bool = Field(False, description="use all hardware threads, not one of each core")

    @property
    def independent(self) -> bool:
        """Instances, not ranks."""
        return bool(self.instances or self.cores_per_instance)


class Bench(Task):
    """Measure a model on the hosts: fp32 and bf16, stock torch, torch.compile and IPEX, side by side."""

    model: Literal["bert"] = Field("bert", description="what is measured")
    size: Literal["tiny", "small", "base"] = Field("small", description="of the model; base is bert-base-uncased")
    mode: Literal["both", "train", "infer"] = Field("both", description="training, inference, or both")
    batch: int = Field(8, ge=1, description="samples of a step, on each host")
    steps: int = Field(10, ge=1, description="steps that are measured; their median counts")
    compile: bool = Field(True, description="measure torch.compile, which needs a C++ compiler on the hosts")
    cluster: bool = Field(True, description="measure training on all hosts together, too")
    venv: str | None = Field(None, description="environment on the hosts (default: the installed one)")
    plot: str | None = Field(None, description="draw it into this SVG file on this machine")
    time_limit: float = Field(3600.0, gt=0, description="seconds after which a measurement is ended")


class Execute(Task):
    """Run one command on every host (the step ``command``)."""

    argv: tuple[str, ...] = Field(min_length=1, description="the words of the command")
    timeout: float = Field(60.0, gt=0, description="seconds it may take")
    changes: bool = Field(True, description="false: the command only looks, so it counts as no change")


class Fetch(Task):
    """Bring results back from the hosts: changed files only, into a directory per host."""

    paths: tuple[str, ...] = Field(min_length=1, description="files, directories and globs on the hosts")
    into: str = Field("fetched", description="directory on this machine; each host's files go into one of its name")
    from_: str = Field("all", alias="from", description="all, rank:0, or hosts as --limit names them")
    source: str = Field(
        ".", description="what was carried there from here: its place on the hosts is where paths start"
    )
    workdir: str | None = Field(None, description="where paths start on the hosts (default: where sync put the source)")
    exclude: tuple[str, ...] = Field((), description="patterns to leave out, as in .gitignore")
    transfer: Literal["auto", "tar", "rsync"] = Field(
        "auto", description="one tar stream, rsync, or rsync where an old version of a big file is here"
    )
