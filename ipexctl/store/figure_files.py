"""Figures of saved runs in files for other programs: CSV and JSON."""

import codecs
import csv
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path

from ipexctl.model.saved_runs import COLUMNS, FigureRow
from ipexctl.store.event_json import dump_ascii_json
from ipexctl.store.private_files import replace_file

_get_cells = attrgetter(*COLUMNS)


def write_csv(path: Path, rows: Iterable[FigureRow]) -> int:
    """One line a value, with a heading; returns the number of values. Raises `OSError`."""
    count = 0
    with replace_file(path) as file:
        writer = csv.writer(codecs.getwriter("utf-8")(file, "replace"), lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow(_format_cell(cell) for cell in _get_cells(row))
            count += 1
    return count


def _format_cell(cell: object) -> object:
    """Text that a spreadsheet would compute as a formula is marked as text (OWASP, CSV injection)."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") else cell


def write_json(path: Path, rows: Iterable[FigureRow]) -> int:
    """The same as a JSON array, an object a line; NaN and infinity are null. Raises `OSError`."""
    count = 0
    with replace_file(path) as file:
        for row in rows:
            line = dump_ascii_json(dict(zip(COLUMNS, _get_cells(row), strict=True)))
            file.write(f"{',' if count else '['}\n{line}".encode())
            count += 1
        file.write(b"\n]\n" if count else b"[]\n")
    return count
