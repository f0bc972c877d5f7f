"""Microarchitectures, read from the text of ``ipexctl/data/cpus.toml``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ipexctl.model.toml import parse_toml


@dataclass(frozen=True, slots=True)
class Uarch:
    """``level`` is what the silicon has; ``hybrid``: the family has models with two kinds of cores; ``needs``: a flag
    that tells it from another with the same numbers; ``threads``: the most that one core has."""

    name: str
    level: str
    hybrid: bool = False
    needs: str = ""
    threads: int = 2


_Range = tuple[int, int]
_Row = tuple[tuple[_Range, ...], tuple[_Range, ...], Uarch]


@dataclass(frozen=True, slots=True)
class Uarchs:
    """The table, by vendor and family."""

    rows: Mapping[tuple[str, int], tuple[_Row, ...]]

    def find(
        self,
        vendor: str | None,
        family: int | None,
        model: int | None,
        stepping: int | None,
        flags: Collection[str] = (),
    ) -> Uarch | None:
        """None where the table does not tell; a row with steppings needs one. The first row that fits counts."""
        if vendor is None or family is None or model is None:
            return None
        for models, steppings, uarch in self.rows.get((vendor, family), ()):
            if not _within(model, models) or (uarch.needs and uarch.needs not in flags):
                continue
            if not steppings or (stepping is not None and _within(stepping, steppings)):
                return uarch
        return None


def parse_uarchs(text: str) -> Uarchs:
    """The table of ``cpus.toml``."""
    rows: dict[tuple[str, int], tuple[_Row, ...]] = {}
    for family in parse_toml(text)["family"]:
        rows[family["vendor"], family["family"]] = tuple(
            (
                _ranges(cpu["models"]),
                _ranges(cpu.get("steppings", ())),
                Uarch(**{key: value for key, value in cpu.items() if key not in ("models", "steppings")}),
            )
            for cpu in family["cpus"]
        )
    return Uarchs(rows)


def _ranges(words: Sequence[int | Sequence[int]]) -> tuple[_Range, ...]:
    return tuple((word, word) if isinstance(word, int) else (word[0], word[1]) for word in words)


def _within(number: int, ranges: tuple[_Range, ...]) -> bool:
    return any(first <= number <= last for first, last in ranges)
