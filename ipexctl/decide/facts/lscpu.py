"""What lscpu printed, plain or as JSON, of any version: field → value."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from operator import mul
from typing import Any

from ipexctl.model.text import parse_integer

CORES_OF_MODELS = "cores of all models"  # our own field, of a computer with several models of processors (big.LITTLE)
_OF_MODEL = ("Core(s) per socket", "Socket(s)")


def parse_lscpu(plain: str, as_json: str) -> dict[str, str]:
    """JSON first: its values are never wrapped. Empty where neither says anything."""
    rows = _parse_json(as_json) or _parse_text(plain)
    fields = dict(rows)
    named = {name: [parse_integer(value, 1 << 10) or 0 for field, value in rows if field == name] for name in _OF_MODEL}
    if len(named["Core(s) per socket"]) > 1:
        fields[CORES_OF_MODELS] = str(sum(map(mul, *named.values())))
    return fields


def _parse_json(text: str) -> list[tuple[str, str]]:
    try:
        value = json.loads(text.lstrip("\ufeff")) if text.strip() else None
    except (ValueError, RecursionError):
        return []
    rows = value.get("lscpu") if isinstance(value, dict) else None
    return [*_iterate_rows(rows)] if isinstance(rows, list) else []


def _iterate_rows(rows: list[Any], depth: int = 0) -> Iterator[tuple[str, str]]:
    """Newer versions nest: a row may have children. An empty list of CPUs is null."""
    for row in rows:
        if not isinstance(row, dict):
            continue
        name, value = row.get("field"), row.get("data")
        if isinstance(name, str):
            known = isinstance(value, str | int) and not isinstance(value, bool)
            yield name.strip().rstrip(":"), str(value) if known else ""
        if isinstance(row.get("children"), list) and depth < 8:
            yield from _iterate_rows(row["children"], depth + 1)


def _parse_text(text: str) -> list[tuple[str, str]]:
    fields: list[tuple[str, list[str]]] = []
    current: list[str] = []
    column = 0  # where the values begin
    for line in text.lstrip("\ufeff").splitlines():
        match = re.match(r"\s*([^:]+):(\s*)", line)
        indent = len(line) - len(line.lstrip())
        if current and indent and indent >= column:
            current.append(line)
        elif match:
            column = match.end()
            current = [line]
            fields.append((match[1].strip(), current))
    return [(name, _join_wrapped_lines(lines)) for name, lines in fields]


def _join_wrapped_lines(lines: list[str]) -> str:
    """A terminal cuts a long value at its width, in the middle of words; other writers wrap at blanks. All
    lines but the last being equally long (or one shorter: a blank at the end got lost) is the terminal."""
    head = re.match(r"\s*[^:]+:\s*", lines[0])
    column = head.end() if head else 0
    value = lines[0][column:]
    if len(lines) == 1:
        return value.strip()
    width = max(len(line) for line in lines[:-1])
    cut = all(len(line) >= width - 1 for line in lines[:-1])
    for before, line in pairwise(lines):  # a blank at either end of a cut line belongs to the value
        value += line[column:] if cut and len(before) == width else " " + line.strip()
    return value.strip()
