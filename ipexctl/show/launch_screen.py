"""The screen of a launch that is only planned: ``run --dry-run``. In what it prints, words and commands stay whole."""

import re
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType

from ipexctl.show import phrases
from ipexctl.show.typeset import Line, split_harmless_lines, text

_REASON = "    # "  # between a variable and why it is set
_LEAST_OF_RANKS = ("interface", "workers", "local", "NUMA")  # columns, in the order in which they give way


class TextTable:
    """A table that is text already, its cells two blanks apart. ``least`` are columns that give way on a narrow
    screen, the first of them first."""

    def __init__(self, lines: Sequence[str], least: Sequence[str]) -> None:
        rows = [re.split(" {2,}", line) for line in lines]  # no cell but the last is empty
        self._rows = [[*row, *[""] * (len(rows[0]) + 1 - len(row))] for row in rows]
        self._least = least

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows = self._rows
        for name in ("", *self._least):  # at first as they are
            columns = [index for index, head in enumerate(rows[0]) if not name or head != name]
            rows = [[row[index] for index in columns] for row in rows]
            widths = [max(map(phrases.count_cells, column)) for column in zip(*rows, strict=True)]
            if sum(widths) + 2 * len(widths) - 2 <= options.max_width:
                break
        for row in rows:
            cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            yield Line(text("  ".join(cells).rstrip()), whole=True)


class _Setting:
    """``NAME=VALUE    # why``; the reason stands below where both are wider than the screen."""

    def __init__(self, line: str) -> None:
        self._line = line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        setting, _, reason = self._line.rpartition(_REASON)
        beside = phrases.count_cells(self._line) <= options.max_width
        yield Line(text(self._line if beside else setting), whole=True)
        if not beside:
            yield Line(text(f"      # {reason}"), 8)


def format_launch_plan(plan: str) -> list[RenderableType]:
    """The plan of a run (`model.launch`): its table loses columns, sentences are broken between words; a command or a
    path is left to the terminal's own wrapping."""
    items: list[RenderableType] = []
    table: list[str] = []
    for line in [*split_harmless_lines(plan), ""]:
        if line.startswith("rank  ") or (table and line):
            table.append(line)
            continue
        items += [TextTable(table, _LEAST_OF_RANKS)] if table else []
        table = []
        inside = line.startswith("  ")
        items.append(_Setting(line) if _REASON in line else Line(text(line), 2, whole=inside))
    return items[:-1]
