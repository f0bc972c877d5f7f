"""Sockets, cores, threads and NUMA nodes, from the most reliable source.

sysfs first (the kernel's own, per CPU), then lscpu (computed from it), then /proc/cpuinfo. None if no source has it: a
/proc/cpuinfo with one block of a bigger machine does not determine the sockets, and lscpu's threads times cores need
not be the number of CPUs (hybrid processors, offline siblings)."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import mul
from typing import Any

from ipexctl.decide.facts.numbers import MAX_CPUS, parse_cpu_list, parse_cpu_mask
from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.decide.facts.system import read_meminfo
from ipexctl.model.facts import Core, NumaNode
from ipexctl.model.json_values import Record
from ipexctl.model.text import group_pairs, parse_integer

CORES_OF_MODELS = "cores of all models"  # our own field, of a computer with several models of processors (big.LITTLE)
_OF_MODEL = ("Core(s) per socket", "Socket(s)")


def parse_lscpu(plain: str, as_json: str) -> dict[str, str]:
    """JSON first: its values are never wrapped. Empty where neither says anything."""
    rows = _parse_json(as_json) or _parse_text(plain)
    fields = dict(rows)
    named = {name: [parse_integer(value, 1 << 10) or 0 for field, value in rows if field == name] for name in _OF_MODEL}
    if len(named["Core(s) per socket"]) > 1:
        fields[CORES_OF_MODELS] = str(sum(map(mul, *named.values())))
    return fields


def _parse_json(text: str) -> list[tuple[str, str]]:
    try:
        value = json.loads(text.lstrip("\ufeff")) if text.strip() else None
    except (ValueError, RecursionError):
        return []
    rows = value.get("lscpu") if isinstance(value, dict) else None
    return [*_iterate_rows(rows)] if isinstance(rows, list) else []


def _iterate_rows(rows: list[Any], depth: int = 0) -> Iterator[tuple[str, str]]:
    """Newer versions nest: a row may have children. An empty list of CPUs is null."""
    for row in rows:
        if not isinstance(row, dict):
            continue
        name, value = row.get("field"), row.get("data")
        if isinstance(name, str):
            known = isinstance(value, str | int) and not isinstance(value, bool)
            yield name.strip().rstrip(":"), str(value) if known else ""
        if isinstance(row.get("children"), list) and depth < 8:
            yield from _iterate_rows(row["children"], depth + 1)


def _parse_text(text: str) -> list[tuple[str, str]]:
    fields: list[tuple[str, int, list[str]]] = []
    current: list[str] = []
    column = 0  # where the values begin
    for line in text.lstrip("\ufeff").splitlines():
        name, colon, value = line.partition(":")
        indent = len(line) - len(line.lstrip())
        if current and indent and indent >= column:
            current.append(line)
        elif name and colon:
            column = len(line) - len(value.lstrip())
            current = [line]
            fields.append((name.strip(), column, current))
    return [(name, _join_wrapped_lines(lines, column)) for name, column, lines in fields]


def _join_wrapped_lines(lines: list[str], column: int) -> str:
    """A terminal cuts a long value at its width, in the middle of words; other writers wrap at blanks. All
    lines but the last being equally long (or one shorter: a blank at the end got lost) is the terminal."""
    value = lines[0][column:]
    if len(lines) == 1:
        return value.strip()
    width = max(len(line) for line in lines[:-1])
    cut = all(len(line) >= width - 1 for line in lines[:-1])
    for before, line in pairwise(lines):  # a blank at either end of a cut line belongs to the value
        value += line[column:] if cut and len(before) == width else " " + line.strip()
    return value.strip()


_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
MAX_THREADS = 8  # of one core of any processor: POWER8 to POWER10
_MAX_PACKAGE = (1 << 31) - 1  # number of a socket: on ARM where the firmware's table has it
_MAX_SET_CPUS = 1 << 18  # CPUs of all cores, or of all nodes, of one host
_MAX_SIBLINGS = 1024  # sockets, cores of one socket, threads of one core: larger values are malformed


class Topology(Record):
    """Of the on-line CPUs; the senses of `Facts`."""

    sockets: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    physical_cores: int | None = None
    online: tuple[int, ...] | None = None
    offline: tuple[int, ...] | None = None
    cores: tuple[Core, ...] = ()


def parse_cpuinfo(text: str) -> list[dict[str, str]]:
    """/proc/cpuinfo, one dictionary a processor; also of a copy that has lost its empty lines."""
    blocks: list[dict[str, str]] = [{}]
    for line in text.replace("\r", "").splitlines():
        key, colon, value = (word.strip() for word in line.partition(":"))
        if not (key or colon) or (key == "processor" and key in blocks[-1]):
            blocks.append({})
        if colon:
            blocks[-1][key] = value
    return [block for block in blocks if block]


def read_topology(
    bundle: ProbeOutput, processors: list[dict[str, str]], lscpu: Mapping[str, str], most_threads: int = MAX_THREADS
) -> Topology:
    """Nothing is known where two texts count different CPUs. ``most_threads`` of one core: if a source states more
    (dom0 of Xen), its cores are not the machine's."""
    topology = _read_sysfs(bundle, processors)
    if topology is None:
        topology, counted = _read_lscpu(lscpu), len(_list_cpu_ids(processors))
        if topology and topology.online and 1 < counted != len(topology.online):
            return Topology()  # LXCFS: the container's CPUs in one text, the computer's in the other
        topology = topology or _read_cpuinfo(processors)
    threads = max([topology.threads_per_core or 1, *(len(core.cpus) for core in topology.cores)])
    if threads <= most_threads:
        return topology
    return replace(topology, cores_per_socket=None, threads_per_core=None, physical_cores=None, cores=())


def _read_sysfs(bundle: ProbeOutput, processors: list[dict[str, str]]) -> Topology | None:
    # "core_cpus" is what kernels since 5.4 call it, beside the old name; those before 2.6.26 know masks only.
    sets = _read_cpu_sets(bundle, _CPU, r"cpu([0-9]{1,5})/topology/(?:thread_siblings|core_cpus)", "_list")
    siblings = {number: threads for number, threads in sets.items() if threads}
    if not siblings:
        return None
    switched = {int(number): text for number, text in bundle.under(_CPU, r"cpu([0-9]{1,5})/online").items()}
    off = {number for number, text in switched.items() if text.strip() == "0"}
    online = parse_cpu_list(bundle.file(f"{_CPU}/online")) or tuple(sorted(siblings.keys() - off))
    all_online = set(online)
    groups = sorted({tuple(sorted({cpu, *siblings.get(cpu, ())} & all_online)) for cpu in online})
    if len({cpu for group in groups for cpu in group}) != sum(map(len, groups)):
        return None  # overlapping groups of siblings: malformed
    texts = bundle.under(_CPU, r"cpu([0-9]{1,5})/topology/physical_package_id")
    packages = [parse_integer(texts.get(str(group[0])), _MAX_PACKAGE) for group in groups]
    sockets = len(set(packages)) if None not in packages else None
    numa = find_numa_domains(read_numa_nodes(bundle, {}) or ())
    cores = tuple(Core(group, at or 0, numa.get(group[0])) for group, at in zip(groups, packages, strict=True))
    per_socket = max(Counter(packages).values()) if sockets else None
    offline = _find_offline_cpus(bundle, online, off, processors)
    return Topology(sockets, per_socket, _count_threads_per_core(cores), len(cores), online, offline, cores)


def _count_threads_per_core(cores: Sequence[Core]) -> int | None:
    sizes = {len(core.cpus) for core in cores}
    return sizes.pop() if len(sizes) == 1 else None


def _read_cpu_sets(
    bundle: ProbeOutput, directory: str, path: str, listed: str, mask: str = ""
) -> dict[int, tuple[int, ...]]:
    """CPU sets by the number in their path: from the lists, else from the masks."""
    sets = _parse_cpu_sets(bundle.under(directory, path + listed), parse_cpu_list)
    return sets or _parse_cpu_sets(bundle.under(directory, path + mask), parse_cpu_mask)


def _parse_cpu_sets(
    texts: Mapping[str, str], parse: Callable[[str], tuple[int, ...] | None]
) -> dict[int, tuple[int, ...]]:
    """CPU sets by number, which are empty beyond what a host has."""
    sets: dict[int, tuple[int, ...]] = {}
    left = _MAX_SET_CPUS
    for number, text in texts.items():
        sets[int(number)] = cpus = (parse(text) or ()) if left > 0 else ()
        left -= len(cpus) + 1
    return sets


def _find_offline_cpus(
    bundle: ProbeOutput, online: tuple[int, ...], off: set[int], processors: list[dict[str, str]]
) -> tuple[int, ...]:
    """The kernel's own list also counts CPUs that could be plugged in but are not there: what is present decides."""
    present = parse_cpu_list(bundle.file(f"{_CPU}/present"))
    if present is None:
        known = {int(number) for number in bundle.under(_CPU, r"cpu([0-9]{1,5})/.+")} | {*_list_cpu_ids(processors)}
        present = tuple(known & set(parse_cpu_list(bundle.file(f"{_CPU}/offline")) or ()))
    return tuple(sorted((off | set(present)) - set(online)))


def _read_lscpu(fields: Mapping[str, str]) -> Topology | None:
    def count(*names: str) -> int | None:
        return next((number for name in names if (number := _parse_count(fields.get(name)))), None)

    online = parse_cpu_list(fields.get("On-line CPU(s) list") or None)
    if online is None and not fields.keys() & {"On-line CPU(s) mask", "Off-line CPU(s) list"}:
        online = tuple(range(parse_integer(fields.get("CPU(s)"), MAX_CPUS) or 0)) or None
    if online is None:
        return None
    threads, per_socket = count("Thread(s) per core"), count("Core(s) per socket")
    sockets = count("Socket(s)", "CPU socket(s)") or _count_book_sockets(fields)  # "CPU" until 2.18
    offline = parse_cpu_list(fields.get("Off-line CPU(s) list", ""))
    if models := parse_integer(fields.get(CORES_OF_MODELS), MAX_CPUS):  # of several models, each with its own numbers
        cores = models if threads and threads * models == len(online) else None
        return Topology(None, None, threads if cores else None, cores, online, offline)
    per_cluster, clusters = count("Core(s) per cluster"), count("Cluster(s)")
    if not sockets and threads and per_cluster and clusters and threads * per_cluster * clusters == len(online):
        return Topology(None, None, threads, per_cluster * clusters, online, offline)  # ARM without packages
    if not (per_socket and sockets):
        return Topology(sockets=sockets, online=online, offline=offline)
    cores = per_socket * sockets
    if threads and threads * cores == len(online):
        mean = threads > 2 and offline  # of older versions: 1, 4 and 4 on-line threads are 3 to them
        return Topology(sockets, per_socket, None if mean else threads, cores, online, offline)
    if cores == len(online):  # the siblings are off line
        return Topology(sockets, per_socket, 1, cores, online, offline)
    # Its numbers are means or maxima. With one socket, or more threads than fit, the cores at least were counted.
    even = sockets == 1 or threads == 2 or len(online) == 2 * cores
    if cores <= len(online) <= cores * max(threads or 1, 2) and even:
        return Topology(sockets, per_socket, None, cores, online, offline)
    # Where most CPUs are off line, only versions whose number is the largest say 1; the sockets are uneven then.
    if threads == 1 and offline and len(offline) >= len(online) and cores < len(online) < cores + sockets:
        nodes = [node.cpus for node in read_numa_nodes(ProbeOutput(), fields) or () if node.cpus]
        largest = max(len(set(online).intersection(cpus)) for cpus in nodes) if len(nodes) == sockets else None
        return Topology(sockets, largest, 1, len(online), online, offline)
    return Topology(sockets=sockets, online=online, offline=offline)


def _count_book_sockets(fields: Mapping[str, str]) -> int | None:
    """s390x counts sockets in books, and books in drawers."""
    per_book = _parse_count(fields.get("Socket(s) per book"))
    books = _parse_count(fields.get("Book(s)") or fields.get("Book(s) per drawer"))
    drawers = _parse_count(fields.get("Drawer(s)", "1"))
    return per_book * books * drawers if per_book and books and drawers else None


def _read_cpuinfo(processors: list[dict[str, str]]) -> Topology:
    """Complete only if every package lists as many processors as it declares."""
    numbers = _list_cpu_ids(processors)
    silent = not any(word in block for block in processors for word in ("physical id", "siblings", "cpu cores"))
    if silent and len(numbers) > 1 and numbers == [*range(numbers[0], numbers[0] + len(numbers))]:
        # Other architectures, and x86 kernels without hyper-threads or packages, only number the processors; in a
        # container perhaps from another number than 0 on. One of them alone may be a sample of many.
        return Topology(online=tuple(numbers))
    packages = group_pairs((block.get("physical id", "?"), block) for block in processors)
    first = processors[0] if processors else {}
    siblings, per_socket = _parse_count(first.get("siblings")), _parse_count(first.get("cpu cores"))
    threads = siblings // per_socket if siblings and per_socket and siblings % per_socket == 0 else None
    sizes = {package: len(of_package) for package, of_package in packages.items()}
    complete = all(_parse_count(block.get("siblings")) == sizes[block.get("physical id", "?")] for block in processors)
    if not processors or not complete or len(numbers) < len(processors) or not per_socket:
        return _read_container_cpuinfo(processors, numbers) or Topology(None, per_socket, threads)
    counted = [
        count
        # Some kernels go on to count cores that are off line: more than CPUs.
        if (count := _parse_count(of_package[0].get("cpu cores")) or 0) <= len(of_package)
        else len({block.get("core id") for block in of_package})
        for of_package in packages.values()
    ]
    cores = _group_cpus_by_core(processors, sum(counted))
    uniform = len({(block.get("siblings"), block.get("cpu cores")) for block in processors}) == 1
    if cores:
        threads = _count_threads_per_core(cores)
    elif not uniform:
        threads = None  # it is a mean
    return Topology(len(packages), max(counted), threads, sum(counted), tuple(sorted(numbers)), None, cores)


def _read_container_cpuinfo(processors: list[dict[str, str]], numbers: list[int]) -> Topology | None:
    """Of a container whose /proc/cpuinfo has its own CPUs, counted from 0 on, with the computer's numbers of cores and
    siblings in each block (LXCFS). One block alone may be a sample of a text."""
    places = {(block.get("physical id"), block.get("core id")) for block in processors}
    if len(processors) < 2 or numbers != [*range(len(processors))] or any(None in place for place in places):
        return None
    sizes = Counter(block["physical id"] for block in processors)
    cores = _group_cpus_by_core(processors, len(places))
    if any(sizes[block["physical id"]] >= (_parse_count(block.get("siblings")) or 0) for block in processors):
        return None
    per_socket = max(Counter(core.socket for core in cores).values())
    return Topology(len(sizes), per_socket, _count_threads_per_core(cores), len(cores), tuple(numbers), None, cores)


def _list_cpu_ids(processors: list[dict[str, str]]) -> list[int]:
    numbers = (parse_integer(block.get("processor"), MAX_CPUS) for block in processors)
    return [number for number in numbers if number is not None]


def _group_cpus_by_core(processors: list[dict[str, str]], physical: int) -> tuple[Core, ...]:
    """Only if core ids tell them all apart (two dies of one package may repeat them)."""
    groups = group_pairs(
        ((block.get("physical id", "?"), block.get("core id", "?")), parse_integer(block["processor"]) or 0)
        for block in processors
    )
    if len(groups) != physical:
        return ()
    cores = (Core(tuple(sorted(cpus)), parse_integer(package) or 0) for (package, _), cpus in groups.items())
    return tuple(sorted(cores, key=lambda core: core.cpus))


def _parse_count(text: str | None) -> int | None:
    return parse_integer(text, _MAX_SIBLINGS) or None


def read_numa_nodes(bundle: ProbeOutput, lscpu: Mapping[str, str]) -> tuple[NumaNode, ...] | None:
    """Nodes with their CPUs as the machine prints them: ids may have holes, a node may have no CPUs."""
    nodes = _read_cpu_sets(bundle, _NODE, r"node([0-9]{1,4})/", "cpulist", "cpumap")
    if not nodes:
        named = ((re.fullmatch(r"NUMA node([0-9]{1,4}) CPU\(s\)", name), text) for name, text in lscpu.items())
        nodes = _parse_cpu_sets({match[1]: text for match, text in named if match}, parse_cpu_list)
    memory = {number: read_meminfo(bundle, "MemTotal", f"{_NODE}/node{number}/meminfo") for number in nodes}
    return tuple(NumaNode(number, nodes[number], memory[number]) for number in sorted(nodes)) or None


def find_numa_domains(nodes: Iterable[NumaNode]) -> dict[int, int]:
    """CPU → NUMA node. Nodes that share CPUs say nothing of where a core is: they count as one, the lowest of them."""
    domains: dict[int, int] = {}
    for node in nodes:
        shared = {domains[cpu] for cpu in node.cpus if cpu in domains}
        joined = [cpu for cpu, domain in domains.items() if domain in shared] if len(shared) > 1 else []
        domains.update(dict.fromkeys([*node.cpus, *joined], min(shared, default=node.id)))
    return domains


def read_hybrid_cpus(bundle: ProbeOutput, of_family: bool, topology: Topology) -> Mapping[str, tuple[int, ...]] | None:
    """P-cores and E-cores. The kernel's own lists where it keeps them (since 5.13); else, in a family that has such
    models, cores with two threads beside cores with one."""
    p_cpus = parse_cpu_list(bundle.file("/sys/devices/cpu_core/cpus"))
    e_cpus = parse_cpu_list(bundle.file("/sys/devices/cpu_atom/cpus"))
    if p_cpus and e_cpus:
        return {"p_cpus": p_cpus, "e_cpus": e_cpus}
    threads = {cpu: len(core.cpus) for core in topology.cores for cpu in core.cpus}
    if not of_family or {*threads.values()} != {1, 2} or topology.offline != ():
        return None  # a core with one thread may have a sibling off line
    by_threads = {count: tuple(sorted(cpu for cpu in threads if threads[cpu] == count)) for count in (1, 2)}
    return {"p_cpus": by_threads[2], "e_cpus": by_threads[1]}
