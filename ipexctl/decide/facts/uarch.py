"""Microarchitectures, and the cores of ARM processors by the numbers of their registers (MIDR_EL1) or lscpu's names,
read from the text of ``ipexctl/data/cpus.toml``."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ipexctl.decide.facts.probe_output import ProbeOutput
from ipexctl.model.json_values import Record
from ipexctl.model.text import parse_integer
from ipexctl.model.toml import parse_toml

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


class Uarch(Record):
    """``level`` is what the silicon has, "" where that is not known; ``hybrid``: the family has models with two kinds
    of cores; ``needs``: a flag that tells it from another with the same numbers; ``threads``: the most of one core."""

    name: str
    level: str
    hybrid: bool = False
    needs: str = ""
    threads: int = 2


class Brand(Record):
    """Processors of some microarchitectures that are sold with less than their silicon has, by words of their names.
    ``level`` is what is left, "" where that is not known."""

    words: Sequence[str]
    uarchs: Sequence[str]
    level: str
    source: str


class Uarchs(Record):
    """The table: models, steppings (none: all) and name, by vendor and family; and the cores of ARM."""

    rows: Mapping[tuple[str, int], Sequence[tuple[frozenset[int], frozenset[int], Uarch]]]
    brands: Sequence[Brand]
    arm: ArmTable

    def find(
        self,
        vendor: str | None,
        family: int | None,
        model: int | None,
        stepping: int | None,
        flags: Collection[str],
        name: str = "",
    ) -> Uarch | None:
        """None where the table does not tell; a row with steppings needs one. The first row that fits counts. ``name``
        is what the processor was sold as."""
        for models, steppings, uarch in self.rows.get((vendor or "", family or 0), ()):
            known = model in models and (not steppings or stepping in steppings)
            if known and (not uarch.needs or uarch.needs in flags):
                sold = (brand for brand in self.brands if uarch.name in brand.uarchs)
                brand = next((brand for brand in sold if any(word in name for word in brand.words)), None)
                return replace(uarch, level=brand.level) if brand else uarch
        return None


def parse_uarchs(text: str) -> Uarchs:
    """Returns the table of ``cpus.toml``."""
    rows: dict[tuple[str, int], list[tuple[frozenset[int], frozenset[int], Uarch]]] = {}
    table = parse_toml(text)
    for family in table["family"]:
        for cpu in family["cpus"]:
            uarch = Uarch(**{key: value for key, value in cpu.items() if key not in ("models", "steppings")})
            row = (_expand_ranges(cpu["models"]), _expand_ranges(cpu.get("steppings", ())), uarch)
            rows.setdefault((family["vendor"], family["family"]), []).append(row)
    makers = {maker["id"]: maker for maker in table["implementer"]}
    cores = [(number, ArmCore(**core)) for number, maker in makers.items() for core in maker["cores"]]
    arm = ArmTable(
        {number: maker["vendor"] for number, maker in makers.items()},
        {(number, part): core for number, core in cores for part in core.parts},
    )
    return Uarchs(rows, [Brand(**brand) for brand in table["brand"]], arm)


def _expand_ranges(words: Sequence[int | Sequence[int]]) -> frozenset[int]:
    spans = ((word, word) if isinstance(word, int) else word for word in words)
    return frozenset(number for first, last in spans for number in range(first, last + 1))
