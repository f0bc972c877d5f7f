"""The list of cases: cases.toml."""

from dataclasses import dataclass
from pathlib import Path

from ipexctl.model.toml import parse_toml


@dataclass(frozen=True)
class Case:
    """``core``: tried on every change, not only before a release."""

    code: str
    title: str
    core: bool


def load() -> dict[str, Case]:
    """Every case by its code, in the order of the list."""
    table = parse_toml(Path(__file__).with_name("cases.toml").read_text("utf-8"))
    return {code: Case(code, row["title"], row.get("core", False)) for code, row in table.items()}
