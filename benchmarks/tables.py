"""What a benchmark has measured: tables of numbers, and the conditions they hold for. As Markdown and as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Cell = str | float
FORMAT = 1  # of the JSON


@dataclass(frozen=True)
class Table:
    """The first cells of a row, those that are texts, name it. ``digits`` after the point by column; 2 without."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    digits: Mapping[str, int] = field(default_factory=dict)

    def find_number(self, row: Sequence[str], column: str) -> float | None:
        """The number in this column of the first row whose cells begin with ``row``; None without one."""
        if column not in self.heads:
            return None
        index = self.heads.index(column)
        for cells in self.rows:
            if list(cells[: len(row)]) == list(row):
                cell = cells[index]
                return cell if not isinstance(cell, str) and math.isfinite(cell) else None
        return None

    def format_cell(self, column: int, cell: Cell) -> str:
        return cell if isinstance(cell, str) else format_number(cell, self.digits.get(self.heads[column], 2))

    def build_markdown(self) -> str:
        """The table; texts on the left, numbers on the right."""
        right = [any(not isinstance(row[i], str) for row in self.rows) for i in range(len(self.heads))]
        lines = [list(self.heads), ["---:" if each else "---" for each in right]]
        lines += [[self.format_cell(i, cell) for i, cell in enumerate(row)] for row in self.rows]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"**{self.title}**\n\n{text}" if self.title else text


@dataclass(frozen=True)
class Measurement:
    """The answer of one script. ``subject`` says what was measured and how often, ``conditions`` on what; ``loads`` are
    the load averages (1 minute) before each round."""

    script: str
    subject: str
    conditions: str
    tables: Sequence[Table]
    loads: Sequence[float] = ()
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))

    def build_markdown(self) -> str:
        loads = f"; load before each round: {' '.join(f'{load:.1f}' for load in self.loads)}" if self.loads else ""
        head = f"{self.subject}. {self.conditions}{loads}."
        return "\n\n".join([head, *(table.build_markdown() for table in self.tables)])

    def find_table(self, title: str) -> Table | None:
        """The table of this title; the first one for an empty title."""
        return next((table for table in self.tables if title in ("", table.title)), None)

    def build_json(self) -> str:
        """Numbers that are none are null."""

        def clean(cell: Cell) -> Cell | None:
            return cell if isinstance(cell, str) or math.isfinite(cell) else None

        value: dict[str, Any] = {"format": FORMAT, **dataclasses.asdict(self)}
        value["loads"] = [round(load, 2) for load in self.loads]
        for table in value["tables"]:
            table["rows"] = [[clean(cell) for cell in row] for row in table["rows"]]
        return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def read_measurement(text: str) -> Measurement:
    """From `Measurement.build_json`. Raises `ValueError` for another format."""
    value = json.loads(text)
    if value.pop("format") != FORMAT:
        raise ValueError("this measurement has another format")
    tables = []
    for table in value.pop("tables"):
        rows = [[math.nan if cell is None else cell for cell in row] for row in table.pop("rows")]
        tables.append(Table(rows=rows, **table))
    return Measurement(tables=tables, **value)


def publish(measurement: Measurement, given: argparse.Namespace) -> None:
    """Prints Markdown, and writes the file of ``--json`` (`ground.arguments`)."""
    print(measurement.build_markdown(), flush=True)
    if given.json:
        path: Path = given.json
        path.write_text(measurement.build_json(), encoding="utf-8")


def format_number(value: float, digits: int = 2) -> str:
    """``–`` for what is no number."""
    return f"{value:,.{digits}f}" if math.isfinite(value) else "–"
