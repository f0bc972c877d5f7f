"""ARM processors: which cores a host has, by the numbers of their registers (MIDR_EL1) or by lscpu's names."""

from collections.abc import Mapping, Sequence

from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.model.json_values import Record
from ipexctl.model.text import parse_integer

_CPU = "/sys/devices/system/cpu"
_EFFICIENCY = 0.75  # of the capacity of the fastest CPU: less is an efficiency core's


class ArmCore(Record):
    """``level`` is what the silicon has, "" where that is not known; ``efficient``: it stands beside faster ones."""

    name: str
    parts: tuple[int, ...]
    level: str = ""
    efficient: bool = False

    @property
    def uarch(self) -> str:
        return self.name.lower().replace("-", "_")


class ArmCores(Record):
    """The cores of one host: the fastest one, None where it is not known; and its kinds of CPUs, as `Facts.hybrid`."""

    vendor: str | None = None
    core: ArmCore | None = None
    hybrid: Mapping[str, tuple[int, ...]] | None = None


class ArmTable(Record):
    """Vendors by implementer, cores by implementer and part."""

    vendors: Mapping[int, str]
    cores: Mapping[tuple[int, int], ArmCore]

    def find(self, implementer: str, part: str) -> ArmCore | None:
        """``implementer`` and ``part`` as numbers (0x41, 0xd0c), or as lscpu names them."""
        number, wanted = _parse_number(implementer), _parse_number(part)
        if number is not None and wanted is not None:
            return self.cores.get((number, wanted))
        return next((core for core in self.cores.values() if core.name == part.strip()), None)


def read_arm_cores(
    bundle: ProbeOutput,
    processors: Sequence[Mapping[str, str]],
    lscpu: Mapping[str, str],
    online: Sequence[int],
    table: ArmTable,
) -> ArmCores:
    """From sysfs, else from the blocks of /proc/cpuinfo, else from lscpu."""
    identities = {
        number: (block.get("CPU implementer", ""), block.get("CPU part", ""))
        for block in processors
        if (number := parse_integer(block.get("processor"))) is not None and "CPU part" in block
    }
    for cpu, text in bundle.under(_CPU, r"cpu([0-9]{1,5})/regs/identification/midr_el1").items():
        if register := _parse_number(text):
            identities[int(cpu)] = (hex(register >> 24 & 0xFF), hex(register >> 4 & 0xFFF))
    if not identities:
        identities = {0: (lscpu.get("Vendor ID", ""), lscpu.get("Model name", ""))}
    cores = {number: table.find(*identity) for number, identity in identities.items()}
    texts = bundle.under(_CPU, r"cpu([0-9]{1,5})/cpu_capacity")
    capacities = {int(number): size for number, text in texts.items() if (size := parse_integer(text.strip()))}
    fastest = max(capacities.values(), default=0)
    slow = {cpu for cpu, size in capacities.items() if size < _EFFICIENCY * fastest}
    slow = slow or {cpu for cpu, core in cores.items() if core and core.efficient}
    main = max(cores, key=lambda cpu: (cores[cpu] is not None, cpu not in slow))
    fast = (capacities.keys() or cores.keys()) - slow
    kinds = {"p_cpus": tuple(sorted(fast & {*online})), "e_cpus": tuple(sorted(slow & {*online}))}
    maker = table.vendors.get(_parse_number(identities[main][0]) or 0)
    return ArmCores(maker, cores[main], kinds if all(kinds.values()) else None)


def _parse_number(text: str) -> int | None:
    """A number of /proc or sysfs: 0x41, or 0x00000000413fd0c1."""
    try:
        return int(text.strip(), 16) if text.strip().startswith("0x") else None
    except ValueError:
        return None
