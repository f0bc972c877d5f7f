"""Targets of the benchmarks (targets.toml), and whether what was measured meets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tables import Measurement, format_number

from ipexctl.model.toml import parse_toml

FILE = Path(__file__).with_name("targets.toml")


@dataclass(frozen=True)
class Target:
    """The number in ``column`` of ``row`` in a table of a script, or its ratio to that of the row ``peer``, must be at
    ``most`` or at ``least`` so much. ``table`` is a title; the first table without one."""

    script: str
    what: str
    row: Sequence[str]
    column: str
    source: str
    table: str = ""
    peer: Sequence[str] = ()
    most: float | None = None
    least: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        if (self.most is None) == (self.least is None):
            raise ValueError(f"{self.what}: a target has either most or least")

    @property
    def limit(self) -> float:
        limit = self.least if self.most is None else self.most
        assert limit is not None
        return limit

    def format_limit(self) -> str:
        return f"{'≥' if self.most is None else '≤'} {self.limit:g} {self.unit}".rstrip()

    def format_value(self, value: float) -> str:
        """With at least as many digits after the point as the limit has, and one more where the value would look like
        the limit."""
        digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
        digits = max(digits, len(f"{self.limit:g}".partition(".")[2]))
        alike = round(value, digits) == self.limit != value
        return f"{format_number(value, digits + alike)} {self.unit}".rstrip()


@dataclass(frozen=True)
class Verdict:
    """``value`` is None where it was not measured."""

    target: Target
    value: float | None
    date: str

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.target.limit if self.target.most is None else self.value <= self.target.limit

    @property
    def word(self) -> str:
        return "not measured" if self.value is None else "met" if self.met else "missed"


def read_targets(file: Path = FILE) -> list[Target]:
    """Raises `TypeError` for an unknown key, `ValueError` for a target without a limit."""
    return [Target(**entry) for entry in parse_toml(file.read_text("utf-8"))["target"]]


def judge(target: Target, measurement: Measurement | None) -> Verdict:
    """Compare a target with what its script has measured, if it has."""
    table = measurement.find_table(target.table) if measurement else None
    if measurement is None or table is None:
        return Verdict(target, None, "")
    value = table.find_number(target.row, target.column)
    if target.peer and value is not None:
        peer = table.find_number(target.peer, target.column)
        value = value / peer if peer else None
    return Verdict(target, value, measurement.date)
