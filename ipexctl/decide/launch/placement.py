"""Place ranks on hosts and bind them to cores.

Cores come from what the host *allows* (affinity, cpuset, quota), never from what the machine has; a rank gets whole
physical cores (first hardware thread of each), of one NUMA node where that is possible."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

from ipexctl.model.errors import Exit, Note, UsageError
from ipexctl.model.facts import Core, Facts
from ipexctl.model.hosts import Host
from ipexctl.model.json_values import Record
from ipexctl.model.launch import RankPlacement
from ipexctl.model.text import group_pairs, pluralize

T = TypeVar("T")

_NUMA_CORE_SHARE = 0.5  # of the cores, to be used by ranks that stay inside of NUMA nodes


class Cores(Record):
    """The usable cores of one host, as (first logical CPU, NUMA node), in NUMA order."""

    cpus: tuple[tuple[int, int], ...]
    note: Note | None = None

    @property
    def cpus_by_node(self) -> list[list[int]]:
        return list(group_pairs((node, cpu) for cpu, node in self.cpus).values())

    @property
    def nodes(self) -> int:
        return len(self.cpus_by_node)


def find_usable_cores(facts: Facts) -> Cores:
    """Physical cores of which this login may use at least one CPU: on hybrid machines performance cores only, and no
    more than the control group's quota. Empty if unknown. Without a known topology, each CPU counts as a core."""
    allowed = set(facts.cpus_allowed or facts.cpus_online or ())
    fast = set((facts.hybrid or {}).get("p_cpus", ()))
    usable = [
        (min(mine), core.numa or 0)
        for core in facts.cores or [Core((cpu,), 0, 0) for cpu in facts.cpus_online or ()]
        if (mine := allowed.intersection(core.cpus)) and (not fast or fast.intersection(core.cpus))
    ]
    cores = Cores(tuple(sorted(usable, key=lambda core: (core[1], core[0]))))
    quota = facts.cgroup_cpus
    if quota is None or quota >= len(usable):
        return cores
    kept = set(interleave(cores.cpus_by_node)[: max(1, int(quota))])
    note = Note("quota", f"its control group allows {quota:g} CPUs of {pluralize(len(usable), 'core')}")
    return Cores(tuple(core for core in cores.cpus if core[0] in kept), note) if usable else cores


def interleave(groups: Iterable[Sequence[T]]) -> list[T]:
    """Returns the first of each group, then the second of each …, so that the first few are from all NUMA nodes."""
    return [item for turn in zip_longest(*groups) for item in turn if item is not None]


def count_ranks(
    hosts: Sequence[Host], cores: Mapping[str, Cores], n: int | None, ppn: int | None
) -> tuple[tuple[str, int], ...]:
    """Returns the number of ranks on each host, in host order; hosts without ranks are left out. ``ppn`` wins over the
    hostfile's slots, slots win over one rank per NUMA node. With ``n`` alone and no slots, the ranks are distributed
    evenly. Raises `UsageError` when ``n`` ranks do not fit."""
    room = [ppn or host.slots or max(1, cores[host.name].nodes) for host in hosts]
    if n is None:
        return tuple((host.name, count) for host, count in zip(hosts, room, strict=True))
    if not ppn and not any(host.slots for host in hosts):
        room = [n // len(hosts) + (1 if i < n % len(hosts) else 0) for i in range(len(hosts))]
    if n > sum(room):
        where = ", ".join(f"{host.name} {count}" for host, count in zip(hosts, room, strict=True))
        what = f"{n} ranks do not fit on {pluralize(len(hosts), 'host')}"
        hint = "raise --ppn or the slots in the hostfile, or lower -n"
        raise UsageError(what, reasons=[f"room for {sum(room)}: {where}"], hint=hint, exit=Exit.STEP)
    counts: list[tuple[str, int]] = []
    for host, count in zip(hosts, room, strict=True):
        taken = min(count, n)
        n -= taken
        if taken:
            counts.append((host.name, taken))
    return tuple(counts)


def _divide_cores(cores: Cores, ranks: int) -> Sequence[Sequence[int]]:
    """Returns the cores of each of ``ranks`` ranks, or of fewer where they must share: equal parts, inside one NUMA
    node where that leaves few cores unused (a batch job may own all of one node and two cores of the next)."""
    if not cores.cpus:
        return [()]
    if ranks > len(cores.cpus):
        return [(cpu,) for cpu, _ in cores.cpus]
    nodes = cores.cpus_by_node
    if ranks % len(nodes) == 0:
        each = ranks // len(nodes)
        size = min(len(cpus) // each for cpus in nodes)
        if size * ranks >= _NUMA_CORE_SHARE * len(cores.cpus):
            return [cpus[i * size : (i + 1) * size] for cpus in nodes for i in range(each)]
    size = len(cores.cpus) // ranks
    flat = [cpu for cpu, _ in cores.cpus]
    return [flat[i * size : (i + 1) * size] for i in range(ranks)]


def place_ranks(
    counts: Sequence[tuple[str, int]],
    cores: Mapping[str, Cores],
    machines: Mapping[str, str],
    workers: int = 0,
    least: int = 1,
    *,
    kind: str = "ranks",
    divide: Callable[[Cores, int], Sequence[Sequence[int]]] = _divide_cores,
    only: int | None = None,
) -> tuple[tuple[RankPlacement, ...], tuple[Note, ...]]:
    """Place ranks or instances (``kind``) in host order with their cores, and warnings. ``machines`` maps hosts to what
    names their machine: hosts that are one machine share its cores. ``workers`` cores of each rank (its last) are set
    aside for its collectives when ``least`` or more are left to compute on. ``divide`` gives the CPUs of so many
    processes of a machine; where it gives fewer shares, they are used in turn. ``only`` this process of each host, or
    all."""
    warnings = [replace(note, hosts=(host,)) for host, _ in counts if (note := cores[host].note)]
    total: Counter[str] = Counter()  # processes of a machine
    for host, count in counts:
        total[machines[host]] += count
    taken: Counter[str] = Counter()
    places: list[RankPlacement] = []
    for host, count in counts:
        machine, nodes = machines[host], dict(cores[host].cpus)
        shares = divide(cores[host], total[machine])
        if not any(shares):
            warnings.append(Note("unknown-cores", f"its cores are unknown; {kind} are not bound", (host,)))
        elif len(shares) < total[machine]:
            text = f"{total[machine]} {kind} share {pluralize(len(nodes), 'core')}"
            warnings.append(Note("shared-cores", text, (host,)))
        for local in range(count):
            cpus = tuple(shares[(taken[machine] + local) % len(shares)])
            split = len(cpus) - workers if len(cpus) >= workers + least else len(cpus)
            if only in (None, local):
                within = tuple(sorted({nodes[cpu] for cpu in cpus}))
                places.append(RankPlacement(len(places), host, local, cpus[:split], cpus[split:], within))
        taken[machine] += count
    return tuple(places), tuple(dict.fromkeys(warnings))


def merge_ranks(ranks: Sequence[RankPlacement], number: int) -> RankPlacement:
    """Returns the one process of host ``number``, with the cores of all its ranks."""
    cpus, nodes = {cpu for rank in ranks for cpu in rank.cpus}, {node for rank in ranks for node in rank.nodes}
    return RankPlacement(number, ranks[0].host, 0, tuple(sorted(cpus)), (), tuple(sorted(nodes)))
