"""What ARM machines would print: the rows of aarch64.toml, and their texts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipexctl.decide.facts.uarch import Uarchs
from ipexctl.model.text import format_cpus
from ipexctl.model.toml import parse_toml

_CPU, _NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"


@dataclass(frozen=True)
class Arm:
    """A row; the comment of aarch64.toml explains the fields."""

    cpus: Sequence[Sequence[Any]]
    features: Sequence[str]
    level: str
    uarch: str | None = None
    hidden: str = ""
    vector: int = 0
    packages: int = 1
    threads: int = 1
    nodes: int = 1
    empty_nodes: int = 0
    silicon: str = ""
    efficient: int = 0

    @property
    def count(self) -> int:
        return sum(kind[2] for kind in self.cpus)

    @property
    def kinds(self) -> list[tuple[str, str, int | None]]:
        """Of each CPU: implementer, part and capacity."""
        return [(kind[0], kind[1], kind[3] if len(kind) > 3 else None) for kind in self.cpus for _ in range(kind[2])]


def load_arm_machines() -> dict[str, tuple[Arm, str]]:
    """The rows, and the features that each prints."""
    table = parse_toml(Path(__file__).with_name("aarch64.toml").read_text())
    sets: Mapping[str, str] = table["features"]
    machines = {name: Arm(**row) for name, row in table["machine"].items()}
    return {
        name: (arm, " ".join(w for key in arm.features for w in sets[key].split() if w not in arm.hidden.split()))
        for name, arm in machines.items()
    }


def render_cpuinfo(arm: Arm, features: str) -> str:
    """As arch/arm64/kernel/cpuinfo.c prints it: no topology, and no name."""
    return "\n".join(
        f"processor\t: {cpu}\nBogoMIPS\t: 50.00\nFeatures\t: {features}\nCPU implementer\t: {maker}\n"
        f"CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {part}\nCPU revision\t: 1\n"
        for cpu, (maker, part, _) in enumerate(arm.kinds)
    )


def render_sysfs(arm: Arm) -> dict[str, str]:
    per_package, per_node = arm.count // arm.packages, arm.count // arm.nodes
    files = {f"{_CPU}/{name}": f"0-{arm.count - 1}" for name in ("online", "present", "possible")}
    for cpu, (maker, part, capacity) in enumerate(arm.kinds):
        first = cpu - cpu % arm.threads
        files[f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"] = format_cpus(range(first, first + arm.threads))
        # Firmware numbers packages as it likes: by places in its table.
        files[f"{_CPU}/cpu{cpu}/topology/physical_package_id"] = str(36 + 18000 * (cpu // per_package))
        register = int(maker, 16) << 24 | 1 << 20 | 0xF << 16 | int(part, 16) << 4 | 1
        files[f"{_CPU}/cpu{cpu}/regs/identification/midr_el1"] = f"0x{register:016x}"
        if capacity:
            files[f"{_CPU}/cpu{cpu}/cpu_capacity"] = str(capacity)
    for node in range(arm.nodes):
        files[f"{_NODE}/node{node}/cpulist"] = format_cpus(range(node * per_node, (node + 1) * per_node))
    files |= {f"{_NODE}/node{arm.nodes + extra}/cpulist": "" for extra in range(arm.empty_nodes)}
    if arm.vector:
        files["/proc/sys/abi/sve_default_vector_length"] = str(arm.vector)
    return {path: f"{text}\n" for path, text in files.items()}


def render_lscpu(arm: Arm, features: str, uarchs: Uarchs) -> str:
    """As lscpu of util-linux 2.38: a model after the other; one that it does not know by its numbers."""
    lines = ["Architecture: aarch64", f"CPU(s): {arm.count}", f"On-line CPU(s) list: 0-{arm.count - 1}"]
    models: dict[tuple[str, str], int] = {}
    for maker, part, _ in arm.kinds:
        models[maker, part] = models.get((maker, part), 0) + 1
    lines.append(f"Vendor ID: {uarchs.arm.vendors.get(int(arm.cpus[0][0], 16), arm.cpus[0][0])}")
    for (maker, part), count in models.items():
        core = uarchs.arm.find(maker, part)
        packages = arm.packages if len(models) == 1 else 1
        lines += [f"  Model name: {core.name if core else part}", "    Model: 1"]
        lines += [f"    Thread(s) per core: {arm.threads}"]
        lines += [f"    Core(s) per socket: {count // packages // arm.threads}", f"    Socket(s): {packages}"]
        lines += [f"    Flags: {features}"]
    return "\n".join([*lines, f"NUMA node(s): {arm.nodes}"]) + "\n"


def make_bundles(name: str, uarchs: Uarchs) -> dict[str, str]:
    """Saved probes of a machine: with all texts, and with each alone."""
    arm, features = load_arm_machines()[name]
    cpuinfo, lscpu = {"/proc/cpuinfo": render_cpuinfo(arm, features)}, {"lscpu": render_lscpu(arm, features, uarchs)}
    files = cpuinfo | render_sysfs(arm) | {"/proc/meminfo": "MemTotal: 67108864 kB\n"}
    bundles = {
        "all": {"files": files, "commands": lscpu},
        "cpuinfo": {"files": cpuinfo, "commands": {}},
        "lscpu": {"files": {}, "commands": lscpu},
    }
    return {source: json.dumps(bundle) for source, bundle in bundles.items()}
