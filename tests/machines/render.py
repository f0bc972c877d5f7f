"""What the kernel and lscpu of a machine would print, from its page.

Formats: Linux arch/x86/kernel/cpu/proc.c (/proc/cpuinfo: on-line CPUs only; "siblings" and "cpu cores" are those of
the package that are on line), drivers/base/topology.c and drivers/base/node.c (/sys/devices/system), Documentation/
admin-guide/cgroup-v1 and cgroup-v2, and sys-utils/lscpu.c of util-linux: before 2.37 threads per core is a mean over
all cores, afterwards the largest number; since 2.37 related fields are indented, and nested in JSON.
"""

import json
from collections import defaultdict
from collections.abc import Iterable

from ipexctl.decide.facts.numbers import parse_cpu_list
from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.model.text import format_cpus
from tests.machines.page import Page, Source, flags_of, numa_nodes, online, present

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"


def render(page: Page, sources: Iterable[Source] = ()) -> ProbeOutput:
    """The texts of a probe of this machine: all that the page has, or those of ``sources`` only."""
    wanted = set(sources or page.sources) & set(page.sources)
    files = {
        "/proc/meminfo": f"MemTotal:       {page.system.memory_gib << 20} kB\nMemFree:        1024 kB\n",
        "/proc/sys/kernel/osrelease": f"{page.system.kernel}\n",
    }
    if not sources:
        files.update(render_cgroup(page))
        vendor, product = page.system.board
        files.update(
            {
                f"/sys/class/dmi/id/{name}": f"{text}\n"
                for name, text in (("sys_vendor", vendor), ("product_name", product))
                if text
            }
        )
    if "cpuinfo" in wanted:
        files["/proc/cpuinfo"] = render_cpuinfo(page)
    if "sysfs" in wanted:
        files.update(render_sysfs(page))
    commands = {}
    if "lscpu" in wanted:
        commands["lscpu"] = render_lscpu(page)
    if "lscpu-json" in wanted:
        commands["lscpu -J -B"] = render_lscpu_json(page)
    return ProbeOutput(files, commands)


def printed_flags(page: Page) -> list[str]:
    flags = flags_of(page.processor.flags) - page.processor.hidden if page.processor.flags else frozenset()
    return sorted(flags) + (
        ["hypervisor"] if page.system.hypervisor and "no-hypervisor-flag" not in page.quirks else []
    )


def render_cpuinfo(page: Page) -> str:
    processor = page.processor
    listed = present(page) if "cpuinfo-keeps-offline" in page.quirks else online(page)
    if "cpuinfo-of-cpuset" in page.quirks and page.cgroup:  # a container's own view, with the host's numbers
        allowed = set(parse_cpu_list(page.cgroup.status or page.cgroup.cpuset) or ())
        listed = [cpu for cpu in listed if cpu.number in allowed]
    if "single-block" in page.quirks:
        listed = listed[:1]
    whole = online(page)
    blocks = []
    for cpu in listed:
        package = [other for other in whole if other.socket == cpu.socket]
        lines = [
            ("processor", cpu.number),
            ("vendor_id", processor.vendor),
            ("cpu family", processor.family),
            ("model", processor.model),
            ("model name", processor.name),
            ("stepping", processor.stepping),
            ("cpu MHz", "2000.000"),
        ]
        if "no-cpuinfo-topology" not in page.quirks:
            lines += [
                ("physical id", cpu.socket),
                ("siblings", len(package)),
                ("core id", cpu.core_id),
                ("cpu cores", len({other.core for other in package})),
                ("apicid", cpu.number),
            ]
        lines += [("flags", " ".join(printed_flags(page))), ("bogomips", "4000.00"), ("power management", "")]
        blocks.append("".join(f"{key}\t: {value}\n" for key, value in lines))
    return "\n".join(blocks)


def siblings(page: Page) -> dict[int, tuple[int, ...]]:
    """On-line CPU → the on-line CPUs of its core, as the kernel says."""
    if "all-siblings" in page.quirks:  # dom0 of Xen sees the hypervisor's APIC ids
        everybody = tuple(cpu.number for cpu in online(page))
        return dict.fromkeys(everybody, everybody)
    cores: dict[int, list[int]] = defaultdict(list)
    for cpu in online(page):
        cores[cpu.core].append(cpu.number)
    return {cpu.number: tuple(sorted(cores[cpu.core])) for cpu in online(page)}


def render_sysfs(page: Page) -> dict[str, str]:
    everything, running = present(page), online(page)
    last = max(page.cpus.possible, max(cpu.number for cpu in everything) + 1) - 1
    on = {cpu.number for cpu in running}
    files = {
        f"{_CPU}/online": format_cpus(tuple(on)),
        f"{_CPU}/offline": format_cpus(tuple(set(range(last + 1)) - on)),
        f"{_CPU}/present": format_cpus(tuple(cpu.number for cpu in everything)),
        f"{_CPU}/possible": f"0-{last}",
    }
    masks = "masks" in page.quirks  # kernels before 2.6.26
    if masks:
        files = {}
    shared = siblings(page)
    for cpu in everything:
        if cpu.number:
            files[f"{_CPU}/cpu{cpu.number}/online"] = str(int(cpu.number in on))
    for cpu in running:
        topology = f"{_CPU}/cpu{cpu.number}/topology"
        files[f"{topology}/physical_package_id"] = str(cpu.socket)
        files[f"{topology}/core_id"] = str(cpu.core_id)
        if masks:
            files[f"{topology}/thread_siblings"] = cpu_mask(shared[cpu.number])
        else:
            files[f"{topology}/thread_siblings_list"] = format_cpus(shared[cpu.number])
    for node, cpus in numa_nodes(page).items():
        if masks:
            files[f"{_NODE}/node{node}/cpumap"] = cpu_mask(cpus)
        else:
            files[f"{_NODE}/node{node}/cpulist"] = format_cpus(cpus)
    efficient = tuple(cpu.number for cpu in running if cpu.efficient)
    if efficient and "no-core-types" not in page.quirks:  # since 5.13, with its performance counters
        files["/sys/devices/cpu_atom/cpus"] = format_cpus(efficient)
        files["/sys/devices/cpu_core/cpus"] = format_cpus(tuple(cpu.number for cpu in running if not cpu.efficient))
    return {path: f"{text}\n" for path, text in files.items()}


def cpu_mask(cpus: tuple[int, ...]) -> str:
    """Words of 32 bits, the highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    words = [bits >> (32 * word) & 0xFFFFFFFF for word in range(max(cpus, default=0) // 32 + 1)]
    return ",".join(f"{word:08x}" for word in reversed(words))


def render_cgroup(page: Page) -> dict[str, str]:
    group = page.cgroup
    if group is None:
        return {}
    path = group.path.rstrip("/")
    memory = str(group.memory_gib << 30) if group.memory_gib else ""
    files: dict[str, str] = {}
    if group.version == 2:
        root = f"/sys/fs/cgroup{path}"
        files["/proc/self/cgroup"] = f"0::{group.path}"
        files[f"{root}/cpu.max"] = f"{int(group.quota * 100_000)} 100000" if group.quota else "max 100000"
        files[f"{root}/memory.max"] = memory or "max"
        if group.cpuset:
            files[f"{root}/cpuset.cpus.effective"] = group.cpuset
    else:
        files["/proc/self/cgroup"] = "\n".join(
            f"{number}:{controllers}:{group.path}"
            for number, controllers in ((4, "cpuset"), (3, "cpu,cpuacct"), (2, "memory"))
        )
        files[f"/sys/fs/cgroup/cpu,cpuacct{path}/cpu.cfs_quota_us"] = str(
            int(group.quota * 100_000) if group.quota else -1
        )
        files[f"/sys/fs/cgroup/cpu,cpuacct{path}/cpu.cfs_period_us"] = "100000"
        files[f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"] = memory or "9223372036854771712"
        if group.cpuset:
            files["/proc/self/cpuset"] = group.path
            files[f"/sys/fs/cgroup/cpuset{path}/cpuset.cpus"] = group.cpuset
    if group.status:
        files["/proc/self/status"] = f"Name:\tsh\nCpus_allowed_list:\t{group.status}"
    return {name: f"{text}\n" for name, text in files.items()}


def lscpu_fields(page: Page) -> list[tuple[int, str, str]]:
    """Depth, name and value, in lscpu's order."""
    processor, running = page.processor, online(page)
    off = {cpu.number for cpu in present(page)} - {cpu.number for cpu in running}
    groups = set(siblings(page).values())
    sockets = len({cpu.socket for cpu in running})
    threads = max(map(len, groups)) if page.system.lscpu == "2.38" else len(running) // len(groups)
    nodes = numa_nodes(page)
    fields = [
        (0, "Architecture", processor.arch),
        (1, "CPU op-mode(s)", "32-bit, 64-bit"),
        (1, "Byte Order", "Little Endian"),
        (0, "CPU(s)", str(len(running) + len(off))),
        (1, "On-line CPU(s) list", format_cpus(tuple(cpu.number for cpu in running))),
        *([(1, "Off-line CPU(s) list", format_cpus(tuple(off)))] if off else []),
        (0, "Vendor ID", processor.vendor),
        (1, "Model name", processor.name),
        (2, "CPU family", str(processor.family)),
        (2, "Model", str(processor.model)),
        (2, "Thread(s) per core", str(threads)),
        (2, "Core(s) per socket", str(len(groups) // sockets)),
        (2, "Socket(s)", str(sockets)),
        (2, "Stepping", str(processor.stepping)),
        (2, "Flags", " ".join(printed_flags(page))),
        *(
            [(0, "Hypervisor vendor", page.system.hypervisor), (0, "Virtualization type", "full")]
            if page.system.hypervisor
            else []
        ),
        *([(0, "NUMA node(s)", str(len(nodes)))] if nodes else []),
        *[(1, f"NUMA node{node} CPU(s)", format_cpus(cpus)) for node, cpus in nodes.items()],
    ]
    if page.system.lscpu != "2.38":  # flat, and the sockets stand before who made them
        fields = [(0, name, value) for _, name, value in fields]
    return fields


def render_lscpu(page: Page) -> str:
    lines = [
        f"{'  ' * depth}{name + ':':{34 - 2 * depth}}{value}".rstrip() for depth, name, value in lscpu_fields(page)
    ]
    if "wrapped" in page.quirks:  # copied from a terminal of 80 columns
        lines = [
            line[start : start + 80] if not start else " " * 34 + line[start : start + 46]
            for line in lines
            for start in (0, *range(80, len(line), 46))
        ]
    text = "\n".join(lines) + "\n"
    return f"\ufeff{text}" if "byte-order-mark" in page.quirks else text


def render_lscpu_json(page: Page) -> str:
    rows: list[dict[str, object]] = []
    parents = [rows]
    for depth, name, value in lscpu_fields(page):
        row: dict[str, object] = {"field": f"{name}:", "data": value or None}
        children: list[dict[str, object]] = []
        del parents[depth + 1 :]
        parents[-1].append(row)
        if page.system.lscpu == "2.38":
            row["children"] = children
            parents.append(children)
    return json.dumps({"lscpu": rows}, indent=3)
