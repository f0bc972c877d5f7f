"""Place ranks on hosts and bind them to cores.

Cores come from what the host *allows* (affinity, cpuset, quota), never from what the machine has; a rank gets whole
physical cores (first hardware thread of each), of one NUMA node where that is possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.facts import Core, Facts
from ipexctl.model.hosts import Host
from ipexctl.model.launch import Launch, RankPlacement
from ipexctl.model.notes import Note

_ENOUGH = 0.5  # of the cores, to be used by ranks that stay inside of NUMA nodes


@dataclass(frozen=True, slots=True)
class Cores:
    """The usable cores of one host, as (first logical CPU, NUMA node), in NUMA order."""

    cpus: tuple[tuple[int, int], ...]
    note: Note | None = None

    @property
    def nodes(self) -> int:
        return len({node for _, node in self.cpus})


def find_usable_cores(facts: Facts) -> Cores:
    """Physical cores of which this login may use at least one CPU: on hybrid machines performance cores only, and no
    more than the control group's quota. Empty if unknown."""
    allowed = set(facts.cpus_allowed or facts.cpus_online or ())
    fast = set((facts.hybrid or {}).get("p_cpus", ()))
    cores: list[tuple[int, int]] = []
    for core in facts.cores or tuple(_cores_without_topology(facts)):
        mine = sorted(allowed.intersection(core.cpus))
        if mine and (not fast or fast.intersection(core.cpus)):
            cores.append((mine[0], core.numa or 0))
    cores.sort(key=lambda core: (core[1], core[0]))
    quota = facts.cgroup_cpus
    if quota is not None and cores and quota < len(cores):
        limit = max(1, int(quota))
        note = Note("quota", f"its control group allows {quota:g} CPUs of {len(cores)} cores")
        return Cores(_pick_evenly(cores, limit), note)
    return Cores(tuple(cores))


def _pick_evenly(cores: Sequence[tuple[int, int]], limit: int) -> tuple[tuple[int, int], ...]:
    """``limit`` cores, taken in turn from all NUMA nodes."""
    nodes: dict[int, list[tuple[int, int]]] = {}
    for core in cores:
        nodes.setdefault(core[1], []).append(core)
    turns = (core for turn in zip_longest(*nodes.values()) for core in turn if core is not None)
    return tuple(sorted(islice(turns, limit), key=lambda core: (core[1], core[0])))


def _cores_without_topology(facts: Facts) -> Iterable[Core]:
    """Without a known topology, each CPU counts as a core."""
    return (Core((cpu,), 0, 0) for cpu in facts.cpus_online or ())


def count_ranks(
    hosts: Sequence[Host], cores: Mapping[str, Cores], n: int | None, ppn: int | None
) -> tuple[tuple[str, int], ...]:
    """Number of ranks on each host, in host order; hosts without ranks are left out.

    ``ppn`` wins over the hostfile's slots, slots win over one rank per NUMA node. With ``n`` alone and no slots, the
    ranks are distributed evenly. Raises `UsageError` when ``n`` ranks do not fit.
    """
    room = [ppn or host.slots or max(1, cores[host.name].nodes) for host in hosts]
    if n is None:
        return tuple((host.name, count) for host, count in zip(hosts, room, strict=True))
    if not ppn and not any(host.slots for host in hosts):
        room = [n // len(hosts) + (1 if i < n % len(hosts) else 0) for i in range(len(hosts))]
    if n > sum(room):
        where = ", ".join(f"{host.name} {count}" for host, count in zip(hosts, room, strict=True))
        raise UsageError(
            f"{n} ranks do not fit on {len(hosts)} hosts",
            reasons=[f"room for {sum(room)}: {where}"],
            hint="raise --ppn or the slots in the hostfile, or lower -n",
            exit=Exit.STEP,
        )
    counts: list[tuple[str, int]] = []
    for host, count in zip(hosts, room, strict=True):
        taken = min(count, n)
        n -= taken
        if taken:
            counts.append((host.name, taken))
    return tuple(counts)


def place_ranks(
    counts: Sequence[tuple[str, int]],
    cores: Mapping[str, Cores],
    machines: Mapping[str, str],
    workers: int,
    least: int = 1,
) -> tuple[tuple[RankPlacement, ...], tuple[Note, ...]]:
    """Place ranks in host order with their cores, and warnings.

    ``machines`` maps hosts to what names their machine: hosts that are one machine share its cores. ``workers`` cores
    of each rank (its last) are set aside for its collectives when ``least`` or more are left to compute on.
    """
    warnings = [replace(note, hosts=(host,)) for host, _ in counts if (note := cores[host].note)]
    ranks_on: dict[str, int] = {}
    for host, count in counts:
        ranks_on[machines[host]] = ranks_on.get(machines[host], 0) + count
    taken: dict[str, int] = {}
    places: list[RankPlacement] = []
    for host, count in counts:
        machine = machines[host]
        shares = _divide_cores(cores[host], ranks_on[machine])
        if not any(shares):
            warnings.append(Note("unknown-cores", "its cores are unknown; ranks are not bound", (host,)))
        elif ranks_on[machine] > len(cores[host].cpus):
            text = f"{ranks_on[machine]} ranks share {len(cores[host].cpus)} cores"
            warnings.append(Note("shared-cores", text, (host,)))
        for local in range(count):
            cpus = shares[taken.get(machine, 0) + local]
            split = len(cpus) - workers if len(cpus) >= workers + least else len(cpus)
            nodes = tuple(sorted({node for cpu, node in cores[host].cpus if cpu in cpus}))
            places.append(RankPlacement(len(places), host, local, cpus[:split], cpus[split:], nodes))
        taken[machine] = taken.get(machine, 0) + count
    return tuple(places), tuple(dict.fromkeys(warnings))


def require_equal_ppn(launch: Launch, sentence: str, hint: str) -> None:
    """Raises `UsageError` with this sentence if hosts have different numbers of ranks."""
    if len({len(node.ranks) for node in launch.nodes}) > 1:
        reasons = [f"{node.host}: {len(node.ranks)}" for node in launch.nodes]
        raise UsageError(sentence, reasons=reasons, hint=hint, exit=Exit.STEP)


def _divide_cores(cores: Cores, ranks: int) -> list[tuple[int, ...]]:
    """The cores of each of ``ranks`` ranks: equal parts, inside one NUMA node where that leaves few cores unused (a
    batch job may own all of one node and two cores of the next)."""
    if not cores.cpus:
        return [()] * ranks
    if ranks > len(cores.cpus):
        return [(cores.cpus[i % len(cores.cpus)][0],) for i in range(ranks)]
    nodes: dict[int, list[int]] = {}
    for cpu, node in cores.cpus:
        nodes.setdefault(node, []).append(cpu)
    if ranks % len(nodes) == 0:
        each = ranks // len(nodes)
        size = min(len(cpus) // each for cpus in nodes.values())
        if size * ranks >= _ENOUGH * len(cores.cpus):
            return [tuple(cpus[i * size : (i + 1) * size]) for cpus in nodes.values() for i in range(each)]
    size = len(cores.cpus) // ranks
    flat = [cpu for cpu, _ in cores.cpus]
    return [tuple(flat[i * size : (i + 1) * size]) for i in range(ranks)]
