"""How a run is started: computed per host, printed by the dry run, and executed exactly so."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ipexctl.model.errors import Note
from ipexctl.model.facts import Cpus
from ipexctl.model.json_values import JsonRecord, Record, field, select_attributes
from ipexctl.model.stack import Dialect
from ipexctl.model.text import format_columns, format_cpus, pluralize, printable

T = TypeVar("T")


class Setting(Record):
    """A variable for the ranks, and where its value comes from; ``by_user``: an option of the run sets it."""

    value: str
    source: str
    secret: bool = False
    by_user: bool = False

    @property
    def masked_value(self) -> str:
        return "(secret)" if self.secret else self.value

    def __str__(self) -> str:
        return f"{self.masked_value}    # {self.source}"


class PlannedVariable(JsonRecord):
    """A variable for the ranks in JSON; a secret's value is not shown."""

    value: str
    source: str


class RankPlacement(Record):
    """One rank: its host, its number there, the logical CPUs it computes on and those of its collectives. ``nodes`` are
    the NUMA nodes of those CPUs, ``env`` is what only this rank sees, ``values`` are those of placeholders, with
    which ``argv`` is its command line, but for the port."""

    rank: int
    host: str
    local: int
    cpus: Cpus = ()
    workers: Cpus = ()
    nodes: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()

    @property
    def threads(self) -> int:
        return max(1, len(self.cpus))


class PlannedHost(JsonRecord):
    """A host of a launch in JSON."""

    label: str
    interface: str
    address: str
    workdir: str
    python: str
    preload: tuple[str, ...]
    env: Mapping[str, PlannedVariable]


class PlannedLaunch(JsonRecord):
    """A launch in JSON, as ``run --dry-run`` answers it. ``port`` None: one that is free at the start."""

    run: str
    script: str
    size: int
    backend: str
    backend_reason: str
    launcher: str
    mpiexec: tuple[str, ...]
    mpiexec_env: Mapping[str, str]
    argv: tuple[str, ...]
    port: int | None
    hosts: Mapping[str, PlannedHost]
    ranks: tuple[RankPlacement, ...]
    warnings: tuple[str, ...]
    spares: tuple[str, ...] = ()  # hosts without ranks, which can take another's place
    script_sha256: str = ""


class Preload(Record):
    """A library that the loader puts before a rank's own ones, if it can be loaded on that host at all."""

    name: str
    path: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}    # {self.source}; left out where the host's loader refuses it"


class NodePlan(Record):
    """A host of the run. ``label`` is what the launcher calls it (a name that cannot be taken for the local host)."""

    host: str
    label: str
    interface: str
    address: str
    reason: Note  # for this interface
    directory: str  # the run's own directory there
    workdir: str
    env: Mapping[str, Setting]
    ranks: tuple[RankPlacement, ...]
    python: str = ""
    preload: tuple[Preload, ...] = ()
    proxy_env: Mapping[str, str] = field(default_factory=dict)  # what the launcher's proxy sees there
    isa: str = ""  # the level of its CPU, "" where not known
    argv: tuple[str, ...] = ()  # of its processes, if it is not the launch's
    stages: bool = True  # they are Python, which tells its stages


class Leading(Record):
    """How a host starts the launcher as the head: the words name all hosts of the run, itself first."""

    mpiexec: tuple[str, ...]
    mpiexec_env: Mapping[str, str]


RANK_LIMIT = 1 << 16  # ranks of a run that is watched, as of one that is saved


class Running(Record):
    """What a watcher must know of a run: ``hosts`` maps each rank, in order, to its host; ``labels`` the launcher's
    names for hosts to theirs; ``title`` is for those who did not start it; ``isas`` are the hosts' levels."""

    run: str
    head: str
    hosts: tuple[str, ...]
    labels: Mapping[str, str]
    command: str
    title: str = ""
    backend: str = ""
    precision: str = ""
    isas: Mapping[str, str] = field(default_factory=dict)
    leaders: tuple[str, ...] = ()  # the head and the hosts that may take its place, in order; or none

    @property
    def hosts_used(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.hosts))


class Launch(Record):
    """Everything that starting a run needs. ``argv`` are the words of the script on every rank; ``mpiexec`` those of
    the launcher on the head; ``port`` 0 means: a free one, found on the head just before the start. ``membind``: each
    rank's memory is bound to its NUMA nodes."""

    run: str
    title: str
    backend: str
    nodes: tuple[NodePlan, ...]  # the first is the head
    argv: tuple[str, ...]
    mpiexec: tuple[str, ...]
    mpiexec_env: Mapping[str, str]
    port: int
    dialect: Dialect
    command: tuple[str, ...] = ()  # as the user wrote it
    warnings: tuple[Note, ...] = ()
    mpi_version: str = ""
    launcher: str = ""  # its name and version
    membind: bool = False
    backend_reason: str = ""
    independent: bool = False  # the ranks are instances that do not know of each other
    precision: str = ""  # that the launch sets: "bf16", "fp16"; "" where the script decides
    fills: bool = False  # placeholders in arguments and in the user's variables are replaced on the hosts
    per_host: bool = False  # each rank here is a process that may start ranks of its own
    spares: tuple[NodePlan, ...] = ()  # hosts whose ranks are for a restart
    script_sha256: str = ""  # of its text, where it is a file of the controller
    leading: Mapping[str, Leading] = field(default_factory=dict)  # of hosts that may be the head of a restart

    @property
    def planned(self) -> tuple[NodePlan, ...]:
        """All hosts, with the ranks that they have or may get."""
        return (*self.nodes, *self.spares)

    @property
    def head(self) -> NodePlan:
        return self.nodes[0]

    @property
    def running(self) -> Running:
        return Running(
            self.run,
            self.head.host,
            tuple(place.host for place in self.places),
            {node.label: node.host for node in self.planned},
            shlex.join(self.command),
            backend=self.backend,
            precision=self.precision,
            isas={node.host: node.isa for node in self.planned},
            leaders=tuple(self.leading),
        )

    @property
    def places(self) -> tuple[RankPlacement, ...]:
        return tuple(sorted((p for node in self.nodes for p in node.ranks), key=lambda place: place.rank))

    @property
    def size(self) -> int:
        return sum(len(node.ranks) for node in self.nodes)

    def public(self) -> PlannedLaunch:
        """Returns what ``--json`` prints of it; secrets are left out."""
        return PlannedLaunch(
            **select_attributes(self, "run", "size", "backend", "backend_reason", "launcher", "mpiexec", "mpiexec_env"),
            **select_attributes(self, "argv", "script_sha256"),
            script=self.title,
            port=self.port or None,
            hosts={node.host: _make_planned_host(node) for node in self.planned},
            spares=tuple(node.host for node in self.spares),
            ranks=self.places,
            warnings=tuple(map(str, self.warnings)),
        )

    def __str__(self) -> str:
        """Returns the dry run: rank map, launcher line, environment per host with the source of each value."""
        return "\n".join(printable(line, len(line)) for line in _format_launch(self))


_WORKERS = {"ccl": "oneCCL workers", "impi": "impi worker"}


def _make_planned_host(node: NodePlan) -> PlannedHost:
    env = {name: PlannedVariable(setting.masked_value, setting.source) for name, setting in sorted(node.env.items())}
    preload = tuple(library.path for library in node.preload)
    return PlannedHost(node.label, node.interface, node.address, node.workdir, node.python, preload, env)


def _format_launch(launch: Launch) -> list[str]:
    hosts, ranks = pluralize(len(launch.nodes), "host"), pluralize(launch.size, "rank")
    lines = [f"{launch.title}: {ranks} on {hosts}, backend {launch.backend}, {launch.launcher or 'mpirun'}"]
    if launch.spares:
        lines.append(f"spare: {', '.join(node.host for node in launch.spares)}")
    if launch.backend_reason:
        lines.append(f"backend {launch.backend}: {launch.backend_reason}")
    lines += [""]
    nodes = {node.host: node for node in launch.nodes}
    rows = [("rank", "host", "local", "NUMA", "CPUs", _WORKERS.get(launch.backend, "workers"), "interface")]
    for place in launch.places:
        cpus = (format_cpus(place.nodes) or "-", format_cpus(place.cpus) or "any", format_cpus(place.workers) or "-")
        interface = f"{nodes[place.host].interface} {nodes[place.host].address}"
        rows.append((str(place.rank), place.host, str(place.local), *cpus, interface))
    lines += format_columns(rows)
    lines += ["", f"on {launch.head.host}, in an environment of nothing but this:"]
    lines += [f"  {name}={value}" for name, value in sorted(launch.mpiexec_env.items())]
    lines += ["starts:", "  " + shlex.join(launch.mpiexec)]
    if launch.fills:
        for place in launch.places:
            lines += [f"rank {place.rank} on {place.host}:", f"  {shlex.join(place.argv)}"]
    else:
        lines += ["each rank:", "  " + shlex.join(launch.argv)]
    common = _find_common_items([sorted(node.env.items()) for node in launch.nodes])
    preloads = _find_common_items([node.preload for node in launch.nodes])
    lines += ["", "on all hosts, for the ranks:", *[f"  {name}={setting}" for name, setting in common]]
    lines += [f"  before all libraries: {library}" for library in preloads]
    for node in launch.nodes:
        lines += ["", f"on {node.host}: in {node.workdir}, over {node.interface} ({node.reason.text})"]
        lines += [f"  {name}={setting}" for name, setting in sorted(node.env.items()) if (name, setting) not in common]
        lines += [f"  before all libraries: {library}" for library in node.preload if library not in preloads]
    port = "MASTER_PORT=(one that is free on the head at the start)"
    if launch.port:
        port = f"MASTER_PORT={launch.port}"
    if launch.per_host:
        lines += ["", f"each process its own: NODE_RANK; no RANK, WORLD_SIZE; {port}"]
    elif launch.independent:
        identity = f"IPEXCTL_INSTANCE, 0 to {launch.size - 1}; no RANK, WORLD_SIZE, MASTER_ADDR"
        lines += ["", f"each instance its own: {identity}"]
    else:
        size = f"WORLD_SIZE={launch.size}, LOCAL_WORLD_SIZE"
        lines += ["", f"each rank its own: RANK and ROLE_RANK, LOCAL_RANK; {size}; {port}"]
    of_ranks = [[f"{name}={value}" for name, value in sorted(place.env.items())] for place in launch.places]
    same = _find_common_items(of_ranks)
    if of_ranks:
        lines += [f"  {text}" for text in of_ranks[0] if text in same]
    for place, own in zip(launch.places, of_ranks, strict=True):
        differing = [text for text in own if text not in same]
        if differing:
            lines.append(f"  rank {place.rank}: {' '.join(differing)}")
    if launch.membind:
        lines.append("  its memory only on its NUMA nodes (--membind)")
    return lines + [line for warning in launch.warnings for line in f"warning: {warning}".splitlines()]


def _find_common_items(each: Sequence[Sequence[T]]) -> list[T]:
    return [item for item in each[0] if all(item in other for other in each)] if each else []
