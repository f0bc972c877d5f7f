"""Instances: processes of a script that do not know of each other, each on cores of its own; inference as a rule.

They are started, watched and ended as ranks are, but there is no rendezvous: no RANK, no MASTER_ADDR. What the
launchers of IPEX and torch (``ipexrun``, ``torch.backends.xeon.run_cpu``) offer for one host is here for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from ipexctl.decide.facts.numbers import cpus as listed
from ipexctl.decide.launch.placement import Cores, usable
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import Facts, cpu_list
from ipexctl.model.hosts import Host
from ipexctl.model.launch import RankPlacement, Setting
from ipexctl.model.notes import Note
from ipexctl.model.tasks import Run

LATENCY = 4  # cores of an instance in the launchers' latency mode
BACKEND = "none"
BECAUSE = "instances do not know of each other"
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "FI_TCP_IFACE", "FI_PROVIDER", "IPEXCTL_BACKEND")


def check(task: Run) -> None:
    """Raises `UsageError` for wishes that do not go together, all at once."""
    reasons: list[str] = []
    if task.independent:
        clash = {"-n": task.n, "--ppn": task.ppn, "--port": task.port}
        reasons += [f"{flag} is for ranks: instances are counted per host" for flag, value in clash.items() if value]
        if task.backend not in {"auto", BACKEND}:
            reasons.append(f"--backend {task.backend}: instances do not talk to each other")
        if task.cores_per_instance and task.instances in {"per-node", "per-core", "throughput", "latency"}:
            reasons.append(f"--instances {task.instances} says already how many cores an instance has")
    else:
        alone = {
            "--instance": task.instance is not None,
            "--fail-fast": task.fail_fast,
            "--within-node": task.within_node,
        }
        reasons += [f"{flag} needs --instances or --cores-per-instance" for flag, given in alone.items() if given]
    for flag, text in (("--cpus", task.cpus), ("--numa", task.numa)):
        if text is not None and not _numbers(text):
            reasons.append(f"{flag} takes numbers and ranges such as 0-3,8, not {text!r}")
    if task.cpus is not None and task.logical_cores:
        reasons.append("--cpus names logical CPUs already, so --logical-cores says nothing more")
    if task.backend_override and task.backend not in {"auto", "impi"}:
        raise UsageError(
            f"--backend-override puts impi in Gloo's place, and --backend {task.backend} asks for something else",
            hint="--backend impi --backend-override",
        )
    if reasons:
        raise UsageError("the cores cannot be given out like this", reasons=reasons)


def pool(task: Run, facts: Facts, host: str) -> Cores:
    """The CPUs that may be given out on this host: those that are usable, narrowed by ``--numa`` and ``--cpus``, or
    widened to all hardware threads by ``--logical-cores``. Raises `UsageError` for what the host does not have."""
    found = usable(facts)
    if task.cpus is None and task.numa is None and not task.logical_cores:
        return found
    nodes = {cpu: core.numa or 0 for core in facts.cores or () for cpu in core.cpus}
    allowed = set(facts.cpus_allowed or facts.cpus_online or ())
    if task.cpus is not None:
        wanted = _numbers(task.cpus)
        if missing := [cpu for cpu in wanted if cpu not in allowed]:
            raise UsageError(
                f"--cpus {task.cpus}: {host} does not give us CPU {cpu_list(tuple(missing))}",
                reasons=[f"this login may use {cpu_list(tuple(allowed)) or 'none that is known'}"],
                exit=Exit.STEP,
            )
        found = Cores(tuple((cpu, nodes.get(cpu, 0)) for cpu in wanted), found.note)
    elif task.logical_cores:
        first = dict(found.cpus)
        whole = [sorted(allowed.intersection(core.cpus)) for core in facts.cores or () if first.keys() & set(core.cpus)]
        whole.sort(key=lambda cpus: (nodes.get(cpus[0], 0), cpus[0]))
        found = Cores(tuple((cpu, nodes.get(cpu, 0)) for cpus in whole for cpu in cpus) or found.cpus, found.note)
    if task.numa is not None:
        wished = _numbers(task.numa)
        there = sorted({node for _, node in found.cpus})
        if missing := [node for node in wished if node not in there]:
            raise UsageError(
                f"--numa {task.numa}: {host} has no cores for us in NUMA node {cpu_list(tuple(missing))}",
                reasons=[f"it has them in {cpu_list(tuple(there)) or 'none that is known'}"],
                exit=Exit.STEP,
            )
        found = Cores(tuple((cpu, node) for cpu, node in found.cpus if node in wished), found.note)
    return found


def spread(task: Run, hosts: Sequence[Host], cores: Mapping[str, Cores]) -> tuple[tuple[str, int], ...]:
    """How many instances each host gets. Raises `UsageError` where they do not fit, for all hosts at once."""
    counts = tuple((host.name, _count(task, cores[host.name])) for host in hosts)
    size = _size(task)
    short = [
        f"{host}: {len(cores[host].cpus)} cores, room for {room}"
        for host, count in counts
        if cores[host].cpus
        and (room := len(_chunks(task, cores[host], size)) if size else len(cores[host].cpus)) < count
    ]
    if short:
        what = f"instances of {size} cores" if size else f"{counts[0][1]} instances"
        raise UsageError(
            f"{what} do not fit",
            reasons=short,
            hint="ask for fewer --instances, or smaller ones",
            exit=Exit.STEP,
        )
    if task.instance is not None and (few := [host for host, count in counts if count <= task.instance]):
        raise UsageError(
            f"there is no instance {task.instance} on {', '.join(few)}",
            hint="instances are counted from 0",
            exit=Exit.STEP,
        )
    return counts


def seat(
    task: Run, counts: Sequence[tuple[str, int]], cores: Mapping[str, Cores], machines: Mapping[str, str]
) -> tuple[tuple[RankPlacement, ...], tuple[Note, ...]]:
    """Each instance with its cores, and warnings. Hosts that are one machine (``machines``) share its cores."""
    warnings = [replace(note, hosts=(host,)) for host, _ in counts if (note := cores[host].note)]
    on: dict[str, int] = {}
    for host, count in counts:
        on[machines[host]] = on.get(machines[host], 0) + count
    taken: dict[str, int] = {}
    places: list[RankPlacement] = []
    for host, count in counts:
        machine = machines[host]
        shares = _shares(task, cores[host], on[machine])
        if not any(shares):
            warnings.append(Note("unknown-cores", "its cores are not known; instances are not bound", (host,)))
        elif len(shares) < on[machine]:
            text = f"instances share its {len(cores[host].cpus)} cores"
            warnings.append(Note("shared-cores", text, (host,)))
        nodes = dict(cores[host].cpus)
        for local in range(count):
            cpus = shares[(taken.get(machine, 0) + local) % len(shares)]
            if task.instance is None or task.instance == local:
                within = tuple(sorted({nodes[cpu] for cpu in cpus}))
                places.append(RankPlacement(len(places), host, local, tuple(cpus), nodes=within))
        taken[machine] = taken.get(machine, 0) + count
    return tuple(places), tuple(dict.fromkeys(warnings))


def alone(env: Mapping[str, Setting], asked: Mapping[str, Setting]) -> dict[str, Setting]:
    """A host's environment without what makes ranks find each other, but for what the user asked for."""
    return {name: setting for name, setting in env.items() if name not in _RENDEZVOUS or name in asked}


def _size(task: Run) -> int | None:
    """Cores of an instance where they are given, else None: equal parts."""
    return {"latency": LATENCY, "per-core": 1}.get(task.instances or "", task.cores_per_instance)


def _count(task: Run, cores: Cores) -> int:
    if task.instances and task.instances.isdigit():
        return int(task.instances)
    if task.instances in {"per-node", "throughput"}:
        return max(1, cores.nodes)
    return max(1, len(_chunks(task, cores, _size(task) or 1)) if cores.cpus else 1)


def _shares(task: Run, cores: Cores, count: int) -> Sequence[Sequence[int]]:
    """The CPUs of ``count`` instances, or of fewer where the cores do not suffice; none known: one empty share."""
    if not cores.cpus:
        return [()]
    if task.instances in {"per-node", "throughput"}:
        return _nodes(cores)
    size = _size(task) or _even(task, cores, count)
    chunks = _chunks(task, cores, size) or [[cpu for cpu, _ in cores.cpus]]
    if len(chunks) <= count:
        return chunks
    return _scattered(chunks, dict(cores.cpus))[:count]


def _even(task: Run, cores: Cores, count: int) -> int:
    """The most cores that each of ``count`` instances can have, inside a NUMA node if the numbers allow it."""
    size = max(1, len(cores.cpus) // count)
    inside = range(size, 0, -1) if task.within_node or count % cores.nodes == 0 else ()
    return next((s for s in inside if sum(len(node) // s for node in _nodes(cores)) >= count), size)


def _chunks(task: Run, cores: Cores, size: int) -> list[list[int]]:
    """All parts of ``size`` CPUs; parts that would reach over two NUMA nodes are left out with ``--within-node``."""
    whole = _nodes(cores) if task.within_node or all(len(node) % size == 0 for node in _nodes(cores)) else [
        [cpu for cpu, _ in cores.cpus]
    ]  # fmt: skip
    return [node[at : at + size] for node in whole for at in range(0, len(node) - size + 1, size)]


def _nodes(cores: Cores) -> list[list[int]]:
    nodes: dict[int, list[int]] = {}
    for cpu, node in cores.cpus:
        nodes.setdefault(node, []).append(cpu)
    return list(nodes.values())


def _scattered(chunks: Iterable[list[int]], nodes: Mapping[int, int]) -> list[list[int]]:
    """One of each NUMA node in turn, so that few instances use the memory of all nodes."""
    by: dict[int, list[list[int]]] = {}
    for chunk in chunks:
        by.setdefault(nodes[chunk[0]], []).append(chunk)
    return [chunk for chunk in chain.from_iterable(zip_longest(*by.values())) if chunk is not None]


def _numbers(text: str) -> tuple[int, ...]:
    """ "0-3,8" as numbers; none for what is no such list."""
    return listed(text) or ()
