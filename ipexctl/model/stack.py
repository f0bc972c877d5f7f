"""What can be installed: releases of the version table, the user's constraints, and the stack that was chosen."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec.structs import force_setattr

from ipexctl.model.errors import Note
from ipexctl.model.json_values import JsonRecord, Record, field, parse_json
from ipexctl.model.text import strip_credentials

Track = Literal["ipex", "native"]
MpiWheel = Literal["impi-rt", "mpich", "openmpi"]  # a package of the index with an MPI
MpiKind = Literal["binding", "ipex", MpiWheel, "system"]
Arch = Literal["x86_64", "aarch64"]
Dialect = Literal["impi", "mpich", "openmpi"]  # `decide.launch.dialects` has all else of each
DIALECT_CHOICES = "|".join(get_args(Dialect))  # for help, and for patterns


class Index(Record):
    """A source of wheels besides the default package index; ``kind`` selects the installer's option for it, and
    ``packages`` are those that the version table takes from it."""

    name: str
    url: str
    kind: Literal["index", "find-links"]
    packages: tuple[str, ...] = ()


class BindingOffer(Record):
    """What the package indexes in force have of oneccl_bind_pt: the ``newest`` version for the hosts' Python and glibc
    (empty: none), and ``why`` there is no newer one."""

    newest: str
    why: str


class StackRelease(Record):
    """One release of the table: versions that match, and what they require of a host. ``pythons`` are the interpreters
    ("3.11") with wheels of all of it; ``torch_pythons`` those of torch alone, ``aarch64_pythons`` those on ARM.
    ``isa`` is the lowest level IPEX starts on; ``glibc`` and ``glibcxx`` are minimum versions, empty for none.
    ``ipex_mpi``/``binding_mpi`` are the versions of Intel MPI inside those wheels, empty for none. ``unconfirmed``
    names the members ("ipex", "oneccl") that no Intel source lists for this torch."""

    torch: str
    ipex: str = ""
    oneccl: str = ""
    module: str = ""
    pythons: tuple[str, ...] = ()
    torch_pythons: tuple[str, ...] = ()
    aarch64_pythons: tuple[str, ...] = ()
    isa: str = ""
    glibc: str = ""
    glibcxx: str = ""
    libraries: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()  # further pins
    ipex_mpi: str = ""
    binding_mpi: str = ""
    indexes: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    yanked: str = ""
    avoid: str = ""  # why another release of the same torch is better
    notes: tuple[str, ...] = ()
    source: str = ""

    @property
    def name(self) -> str:
        """Its name for people: ``torch 2.7.0 + ipex 2.7.0 + oneccl 2.7.0``."""
        parts = (("torch", self.torch), ("ipex", self.ipex), ("oneccl", self.oneccl))
        return " + ".join(f"{word} {version}" for word, version in parts if version)


class StackRequest(Record):
    """What the user constrains. Versions are exact; None: chosen by ipexctl. ``python`` is "3.11" or None."""

    track: Track | None = None
    torch: str | None = None
    ipex: str | None = None
    oneccl: str | None = None
    backend: Literal["auto", "ccl", "impi", "gloo"] = "auto"
    python: str | None = None

    def __str__(self) -> str:
        values = {"torch": self.torch, "ipex": self.ipex, "oneccl_bind_pt": self.oneccl, "track": self.track}
        values |= {"backend": None if self.backend == "auto" else self.backend, "Python": self.python}
        return ", ".join([f"{key} {value}" for key, value in values.items() if value]) or "the newest stack"


class MpiLauncher(Record):
    """An mpirun on a host: its dialect with its name for people, its absolute path, its version, and where its
    libfabric's providers lie (Intel MPI only, else empty)."""

    dialect: Dialect
    title: str
    program: str
    version: str
    providers: str = ""

    def __str__(self) -> str:
        return f"{self.title} {self.version}".rstrip()


class StackMpi(JsonRecord):
    """The MPI that starts the ranks; the last three only of one that the hosts have: ``name`` is for people."""

    kind: MpiKind
    version: str
    dialect: str | None = None
    program: str | None = None
    name: str | None = None


class StackSummary(JsonRecord):
    """What the marker of an environment and ``--json`` say about a stack."""

    name: str
    torch: str
    ipex: str | None
    oneccl: str | None
    module: str | None
    backend: Literal["ccl", "impi", "gloo"]
    python: str
    mpi: StackMpi


class MpiLayout(JsonRecord):
    """Where an environment has its MPI and oneCCL: paths below it. ``bin`` and ``lib`` go in front of PATH and
    LD_LIBRARY_PATH; ``mpiexec`` is empty where only the hosts have an MPI."""

    mpi: MpiKind
    version: str
    mpiexec: str = ""
    bin: tuple[str, ...] = ()
    lib: tuple[str, ...] = ()
    providers: str | None = None  # of libfabric
    mpi_root: str = ""
    ccl_root: str | None = None
    module: str | None = None  # import name of the oneCCL binding


class InstallMarker(JsonRecord):
    """``ipexctl.json`` in an environment, written when it is complete: enough for `run` to start a job without another
    inspection. Jobs use ``prefix``, the directory behind the link ``venv``: a switch does not change what they load."""

    id: str
    venv: str
    prefix: str
    python: str
    stack: StackSummary
    packages: Mapping[str, str]
    layout: MpiLayout
    format: int = 1
    inputs: str = ""
    created: float = 0.0  # seconds since the epoch
    by: str = ""
    ipexctl: str = ""
    requested: tuple[str, ...] = ()  # the requirements beside the release
    wheels: Mapping[str, str] = field(default_factory=dict)  # the sha256 of each package's wheel

    def __post_init__(self) -> None:
        program = self.stack.mpi.program or "/"
        texts = (program, *self.packages, *self.packages.values(), *self.requested)
        if not all(map(str.isprintable, texts)) or not program.startswith("/"):
            raise ValueError("its packages or its MPI are malformed")
        record: Any = self  # every user of a host can read it
        force_setattr(record, "requested", tuple(map(strip_credentials, self.requested)))


def read_marker(text: str) -> InstallMarker | None:
    """Returns the marker of an environment from its file; None for anything else, also for that of another program."""
    try:
        return parse_json(InstallMarker, text)
    except ValueError:
        return None


class Stack(Record):
    """One exact stack for these hosts. ``release`` has lost the members that are not installed (no binding with gloo).
    ``pins`` are requirements for an installer; ``interpreters`` maps each host to the Python there; ``notes`` explain
    the choice. ``launcher`` is the hosts' own MPI where one was named."""

    release: StackRelease
    backend: Literal["ccl", "impi", "gloo"]
    mpi: MpiKind
    mpi_version: str
    python: str
    pins: tuple[str, ...]
    indexes: tuple[Index, ...]
    interpreters: Mapping[str, str] = field(default_factory=dict)
    arch: Arch = "x86_64"
    glibc: str = ""  # the least of the hosts, decides which wheels may be taken
    notes: tuple[Note, ...] = ()
    launcher: MpiLauncher | None = None

    @property
    def name(self) -> str:
        """``torch 2.8.0 + ipex 2.8.0 + impi-rt 2021.18.1, Python 3.11``."""
        mpi = f" + {self.mpi} {self.mpi_version}" if self.mpi in get_args(MpiWheel) else ""
        mpi = f" + {self.launcher}" if self.launcher else mpi
        return f"{self.release.name}{mpi}, Python {self.python}"

    @property
    def summary(self) -> StackSummary:
        """What is written of it: into markers, locks and answers."""
        release, mpi = self.release, StackMpi(self.mpi, self.mpi_version)
        if launcher := self.launcher:
            mpi = StackMpi(self.mpi, self.mpi_version, launcher.dialect, launcher.program, str(launcher))
        versions = release.torch, release.ipex or None, release.oneccl or None
        module = release.module if release.oneccl else None
        return StackSummary(self.name, *versions, module, self.backend, self.python, mpi)
