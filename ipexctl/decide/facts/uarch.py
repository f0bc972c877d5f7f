"""Microarchitectures, read from the text of ``ipexctl/data/cpus.toml``."""

from collections.abc import Collection, Mapping, Sequence

from ipexctl.model.json_values import Record
from ipexctl.model.toml import parse_toml


class Uarch(Record):
    """``level`` is what the silicon has; ``hybrid``: the family has models with two kinds of cores; ``needs``: a flag
    that tells it from another with the same numbers; ``threads``: the most that one core has."""

    name: str
    level: str
    hybrid: bool = False
    needs: str = ""
    threads: int = 2


class Uarchs(Record):
    """The table: models, steppings (none: all) and name, by vendor and family."""

    rows: Mapping[tuple[str, int], Sequence[tuple[frozenset[int], frozenset[int], Uarch]]]

    def find(
        self, vendor: str | None, family: int | None, model: int | None, stepping: int | None, flags: Collection[str]
    ) -> Uarch | None:
        """None where the table does not tell; a row with steppings needs one. The first row that fits counts."""
        for models, steppings, uarch in self.rows.get((vendor or "", family or 0), ()):
            known = model in models and (not steppings or stepping in steppings)
            if known and (not uarch.needs or uarch.needs in flags):
                return uarch
        return None


def parse_uarchs(text: str) -> Uarchs:
    """The table of ``cpus.toml``."""
    rows: dict[tuple[str, int], list[tuple[frozenset[int], frozenset[int], Uarch]]] = {}
    for family in parse_toml(text)["family"]:
        for cpu in family["cpus"]:
            uarch = Uarch(**{key: value for key, value in cpu.items() if key not in ("models", "steppings")})
            row = (_expand_ranges(cpu["models"]), _expand_ranges(cpu.get("steppings", ())), uarch)
            rows.setdefault((family["vendor"], family["family"]), []).append(row)
    return Uarchs(rows)


def _expand_ranges(words: Sequence[int | Sequence[int]]) -> frozenset[int]:
    spans = ((word, word) if isinstance(word, int) else word for word in words)
    return frozenset(number for first, last in spans for number in range(first, last + 1))
