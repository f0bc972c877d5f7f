"""Launchers that start ranks by themselves, as ``ipexctl/data/engines`` describes them."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from ipexctl.model.json_values import Record, field
from ipexctl.model.toml import Table, parse_toml


class Engine(Record):
    """One file; the comment of ``torchrun.toml`` explains the fields."""

    program: str
    words: tuple[str, ...]
    rest: tuple[str, ...] = ()
    ready: str | None = None
    harmless: Table = field(default_factory=dict)
    errors: Table = field(default_factory=dict)


@cache
def read_engines() -> Mapping[str, Engine]:
    """Returns the engines of this version by name."""
    texts = {file.name[:-5]: file.read_text("utf-8") for file in files("ipexctl.data").joinpath("engines").iterdir()}
    tables = {name: parse_toml(text) for name, text in sorted(texts.items())}
    for table in tables.values():
        table |= {key: tuple(table[key]) for key in ("words", "rest") if key in table}
    return {name: Engine(**table) for name, table in tables.items()}
