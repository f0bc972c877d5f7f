"""Tables of examples, tests/data/tables: a row a line, as JSON; lines that begin with # explain."""

import json
from pathlib import Path
from typing import Any

TABLES = Path(__file__).with_name("data") / "tables"


def read_table(name: str, *, frozen: bool = False) -> list[Any]:
    """Reads a table: several values of a row are a tuple; ``frozen``: lists among them, too."""
    lines = (TABLES / f"{name}.jsonl").read_text("utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line and not line.startswith("#")]
    return [freeze(row) if frozen else tuple(row) if isinstance(row, list) else row for row in rows]


def freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: freeze(each) for name, each in value.items()}
    return tuple(map(freeze, value)) if isinstance(value, list) else value
