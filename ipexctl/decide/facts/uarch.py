"""Microarchitectures, read from the text of ``ipexctl/data/cpus.toml``."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ipexctl.decide.facts.arm import ArmCore, ArmTable
from ipexctl.model.json_values import Record
from ipexctl.model.toml import parse_toml


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
