"""A page of facts on one machine, and the CPUs that follow from it."""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ipexctl.decide.facts.numbers import parse_cpu_list
from ipexctl.model.toml import parse_toml

HERE = Path(__file__).parent
Source = Literal["cpuinfo", "sysfs", "lscpu", "lscpu-json"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Processor(_Section):
    """What CPUID says. ``flags`` names a set of flags.toml; ``hidden`` are those that this machine does not print, for
    the reason that the page's comment gives; ``level`` is the truth, ``silicon`` that of the microarchitecture."""

    name: str
    vendor: str = "GenuineIntel"
    family: int = 6
    model: int = 0
    stepping: int = 0
    arch: str = "x86_64"
    flags: str = ""
    hidden: frozenset[str] = frozenset()
    uarch: str | None = None
    level: str | None = None
    silicon: str | None = None


class Cpus(_Section):
    """``order`` is how logical CPUs are numbered: first the first threads of all sockets (siblings-last), thread by
    thread of each core (siblings-adjacent), or as the first, but from socket to socket (round-robin).

    ``e_cores``: that many cores with one thread after those of each socket; ``removed``: CPUs that exist nowhere,
    as where a hypervisor gives only some; ``offline``: those that are switched off; ``core_ids``: numbers repeat after
    that many cores of a socket, as on packages of several dies."""

    sockets: int = 1
    cores: int
    threads: int = 2
    order: Literal["siblings-last", "siblings-adjacent", "round-robin"] = "siblings-last"
    e_cores: int = 0
    offline: str = ""
    removed: str = ""
    core_ids: int = 0
    possible: int = 0  # more than are there: hot-plug


class Numa(_Section):
    """``nodes`` are CPU lists as the machine prints them, by node; else each socket has ``per_socket`` equal ones."""

    per_socket: int = 1
    nodes: dict[str, str] = {}
    none: bool = False  # a kernel without NUMA


class System(_Section):
    kernel: str = "6.1.0-25-amd64"
    memory_gib: int = 64
    hypervisor: str = ""  # as lscpu names it
    board: tuple[str, str] = ("", "")  # sys_vendor and product_name of DMI
    lscpu: Literal["2.23", "2.34", "2.38"] = "2.38"


class Cgroup(_Section):
    """``quota`` in CPUs, ``memory_gib`` and ``cpuset`` as limits of the group at ``path``."""

    version: Literal[1, 2] = 2
    path: str = "/"
    quota: float = 0
    memory_gib: int = 0
    cpuset: str = ""
    status: str = ""  # Cpus_allowed_list of the login


class Page(_Section):
    """One machine. ``sources``: which texts it has. ``traps``: words for what is easily read wrongly. ``quirks``: how
    `render` departs from the usual. ``unknown``: facts that the texts do not determine."""

    title: str
    processor: Processor
    cpus: Cpus
    numa: Numa = Numa()
    system: System = System()
    cgroup: Cgroup | None = None
    sources: tuple[Source, ...] = ("cpuinfo", "sysfs", "lscpu", "lscpu-json")
    traps: frozenset[str] = frozenset()
    quirks: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Cpu:
    """A logical CPU: its number and place. ``core`` counts over the whole machine, ``core_id`` is what is printed."""

    number: int
    socket: int
    core: int
    core_id: int
    thread: int
    efficient: bool = False


def pages() -> list[Path]:
    return sorted(path for path in HERE.glob("*.toml") if path.name not in ("aarch64.toml", "flags.toml"))


@cache
def load_page(path: Path) -> Page:
    return Page.model_validate(parse_toml(path.read_text()))


@cache
def flags_of(name: str) -> frozenset[str]:
    """The flags of a set of flags.toml and of those it extends."""
    entry = parse_toml((HERE / "flags.toml").read_text())[name]
    return frozenset(entry["flags"].split()) | (flags_of(entry["with"]) if "with" in entry else frozenset())


def present(page: Page) -> list[Cpu]:
    """All CPUs that the machine has, switched on or not, by number."""
    layout = page.cpus
    sockets, cores, threads = range(layout.sockets), range(layout.cores), range(layout.threads)
    places: list[tuple[int, int, int]]
    if layout.order == "siblings-adjacent":
        places = list(product(sockets, cores, threads))
    elif layout.order == "round-robin":
        places = [(socket, core, thread) for thread, core, socket in product(threads, cores, sockets)]
    else:
        places = [(socket, core, thread) for thread, socket, core in product(threads, sockets, cores)]
    places += [(socket, layout.cores + core, 0) for socket, core in product(sockets, range(layout.e_cores))]
    per_socket = layout.cores + layout.e_cores
    removed = set(parse_cpu_list(layout.removed) or ())
    return [
        Cpu(
            number,
            socket,
            socket * per_socket + core,
            core % layout.core_ids if layout.core_ids else core,
            thread,
            core >= layout.cores,
        )
        for number, (socket, core, thread) in enumerate(places)
        if number not in removed
    ]


def online(page: Page) -> list[Cpu]:
    off = set(parse_cpu_list(page.cpus.offline) or ())
    return [cpu for cpu in present(page) if cpu.number not in off]


def numa_nodes(page: Page) -> dict[int, tuple[int, ...]]:
    """Node → its CPUs as the machine prints them."""
    if page.numa.none:
        return {}
    if page.numa.nodes:
        return {int(node): parse_cpu_list(cpus) or () for node, cpus in page.numa.nodes.items()}
    per_socket = page.cpus.cores + page.cpus.e_cores
    nodes: dict[int, list[int]] = {node: [] for node in range(page.cpus.sockets * page.numa.per_socket)}
    for cpu in online(page):
        within = cpu.core % per_socket * page.numa.per_socket // per_socket
        nodes[cpu.socket * page.numa.per_socket + within].append(cpu.number)
    return {node: tuple(sorted(cpus)) for node, cpus in nodes.items()}


def expected(page: Page) -> dict[str, Any]:
    """Fact → its value, in the senses of `ipexctl.model.facts.Facts`; None where the texts do not tell."""
    on = online(page)
    numbers = {cpu.number for cpu in on}
    cores = Counter(cpu.core for cpu in on)
    per_socket = Counter({cpu.core: cpu.socket for cpu in on}.values())
    sizes = set(cores.values())
    has_e_cores = any(cpu.efficient for cpu in on) and any(not cpu.efficient for cpu in on)
    facts: dict[str, Any] = {
        "arch": page.processor.arch,
        "vendor": page.processor.vendor or None,
        "model_name": page.processor.name or None,
        "uarch": page.processor.uarch,
        "isa_level": page.processor.level,
        "silicon": page.processor.silicon or page.processor.level if page.processor.uarch else None,
        "sockets": len(per_socket),
        "cores_per_socket": max(per_socket.values()),
        "threads_per_core": sizes.pop() if len(sizes) == 1 else None,
        "physical_cores": len(cores),
        "logical_online": len(on),
        "cpus_online": tuple(sorted(numbers)),
        "cpus_offline": tuple(sorted({cpu.number for cpu in present(page)} - numbers)),
        "numa": tuple((node, cpus) for node, cpus in numa_nodes(page).items()) or None,
        "hybrid": {
            "p_cpus": tuple(cpu.number for cpu in on if not cpu.efficient),
            "e_cpus": tuple(cpu.number for cpu in on if cpu.efficient),
        }
        if has_e_cores
        else None,
        "is_vm": bool(page.system.hypervisor),
        "hypervisor": page.system.hypervisor or None,
        "mem_total_kb": page.system.memory_gib << 20,
        "kernel": page.system.kernel,
    }
    if page.cgroup:
        allowed = parse_cpu_list(page.cgroup.status or page.cgroup.cpuset)
        facts["cpus_allowed"] = tuple(sorted(numbers & set(allowed))) if allowed else None
        facts["cgroup_cpus"] = page.cgroup.quota or None
        facts["mem_limit_kb"] = page.cgroup.memory_gib << 20 or None
    return {**facts, **dict.fromkeys(page.unknown)}
