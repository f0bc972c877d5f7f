"""Tables whose columns give way on a narrow screen; any answer as rows, for those without a screen of
their own; and the plan of a run, which has a table in it."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest

from rich.cells import set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonObject, Record, to_json
from ipexctl.show import phrases
from ipexctl.show.sanitise import escape, one_line
from ipexctl.show.typeset import PIPE_WIDTH, QUIET, AtWidth, Line, Part, labelled, split_harmless_lines, text


class FittedRow(Record):
    """``short`` are shorter cells for a narrow screen, ``below`` is a sentence about the row."""

    cells: Mapping[str, str]
    styles: Mapping[str, str]
    short: Mapping[str, str]
    below: str = ""


class FittedTable:
    """A line per row. What no row has is no column. Where the screen is narrow, cells become their short ones, then
    columns give way in the order of ``least``; at "" in it the last column, whose words are cut, gets the next of its
    ``rooms``: cells at least."""

    def __init__(self, rows: Sequence[FittedRow], least: Sequence[str], last: str, *rooms: int) -> None:
        self._rows, self._least, self._last, self._rooms = rows, least, last, rooms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows = [row.cells for row in self._rows]
        names, (room, *rooms) = [name for name in rows[0] if any(row[name] for row in rows)], self._rooms
        if self._measure(rows, names, room) > options.max_width:
            rows = [{**row.cells, **row.short} for row in self._rows]
        for name in self._least:
            if self._measure(rows, names, room) <= options.max_width:
                break
            if name in names:
                names.remove(name)
            elif not name:
                room = rooms.pop(0)
        room += max(options.max_width - self._measure(rows, names, room), 0)
        widths = self._get_widths(rows, names)
        yield self._format_row(widths, {name: name for name in names}, dict.fromkeys(names, QUIET))
        for row, cells in zip(self._rows, rows, strict=True):
            last = cells[self._last] if self._last in names else ""
            if phrases.count_cells(last) > room:
                cells = {**cells, self._last: set_cell_size(last, room - 1) + "…"}
            if row.below and options.max_width >= PIPE_WIDTH:  # a program reads a line per row
                yield self._format_row({**widths, "": 0}, {**cells, "": row.below}, row.styles)
                continue
            yield self._format_row(widths, cells, row.styles)
            if row.below:
                yield Line(text("    ", row.below), 4)

    def _format_row(
        self, widths: Mapping[str, int], cells: Mapping[str, str], styles: Mapping[str, str]
    ) -> RenderableType:
        parts: list[Part] = []
        for name, width in widths.items():
            parts += [(cells[name], styles.get(name, "")), " " * (width + 2 - phrases.count_cells(cells[name]))]
        line = text(*parts[:-1])
        line.rstrip()
        return Line(line, whole=True)

    def _get_widths(self, rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> dict[str, int]:
        return {name: max(map(phrases.count_cells, (name, *(row[name] for row in rows)))) for name in names}

    def _measure(self, rows: Sequence[Mapping[str, str]], names: Sequence[str], room: int) -> int:
        """The cells of the table, where its last column has at most so many."""
        widths = self._get_widths(rows, names)
        if self._last in widths:
            widths[self._last] = min(widths[self._last], room)
        return sum(widths.values()) + 2 * len(widths) - 2


def read_text_table(lines: Sequence[str], least: Sequence[str]) -> FittedTable:
    """Returns a table that is text already, its cells two blanks apart; only the last one, which has no name, may be
    empty. ``least`` are columns that give way on a narrow screen, the first of them first."""
    names, *rows = (re.split(" {2,}", line) for line in lines)
    cells = (dict(zip_longest([*names, ""], row, fillvalue="")) for row in rows)
    return FittedTable([FittedRow(row, {}, {}) for row in cells], least, "", sys.maxsize)


def format_any_answer(value: JsonObject) -> list[RenderableType]:
    """Any answer: its single values as rows, its lists of objects as tables."""
    items: list[RenderableType] = []
    single: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner and all(isinstance(row, Mapping) for row in inner.values()):
            inner = [{key.removesuffix("s"): name, **row} for name, row in inner.items()]
        if isinstance(inner, list | tuple) and inner and all(isinstance(row, Mapping) for row in inner):
            items.append(AtWidth(draw_rows, inner))
        elif inner not in (None, "", [], {}, ()):
            single[escape(key.replace("_", " "))] = flatten_value(inner)
    room = max(map(phrases.count_cells, single), default=0) + 1
    named = [
        labelled("" if index else name, line, room=room, copied=shown.startswith(("ssh ", "ipexctl ")))
        for name, shown in single.items()
        for index, line in enumerate(split_harmless_lines(shown))
    ]
    return [*named, *items]


def format_rows_of_answer(value: AnyAnswer) -> list[RenderableType]:
    """An answer without a screen of its own."""
    return format_any_answer({key: part for key, part in to_json(value).items() if key not in _STEPS})


_STEPS = ("next", "then")  # keys of answers: commands that come next


def draw_rows(width: int, objects: Sequence[JsonObject]) -> Iterator[RenderableType]:
    """Objects as a table, whose last column may be longer than the screen. Where the others leave too little room for
    it, the words of each object are one below the other: nothing is broken."""
    rows = [{one_line(n).replace("_", " "): one_line(flatten_value(v)) for n, v in row.items()} for row in objects]
    longest = dict.fromkeys(chain(*rows), 0)
    for name, words in chain.from_iterable(map(dict.items, rows)):  # somebody else's may have a name for each row
        longest[name] = max(longest[name], phrases.count_cells(words))
    names = [name for name, size in longest.items() if size]
    if not names:
        return
    *widths, last = (max(longest[name], phrases.count_cells(name)) + 2 for name in names)
    before = sum(widths)
    room = max(map(phrases.count_cells, names))
    paths = not any(" " in row.get(names[-1], "") for row in rows)  # they cannot be broken
    whole_below = paths and room + last <= width
    if before + last - 2 <= width or (before <= width * 0.6 and not whole_below):
        for style, row in [(QUIET, {name: name for name in names}), *(("", row) for row in rows)]:
            *cells, words = (row.get(name, "") for name in names)
            padded = (
                f"{cell}{' ' * (size - phrases.count_cells(cell))}" for cell, size in zip(cells, widths, strict=True)
            )
            yield Line(text(("".join(padded) + words, style)), before, whole=" " not in words)
        return
    for index, row in enumerate(rows):
        yield from [Text("")] if index else []
        yield from (labelled(name, words, room=room + 1) for name, words in row.items() if words)


def flatten_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {words}" for key, inner in value.items() if (words := flatten_value(inner)))
    if isinstance(value, list | tuple):
        return ", ".join(flatten_value(inner) for inner in value)
    return str(value)


_REASON = "    # "  # between a variable and why it is set
_LEAST_OF_RANKS = ("interface", "workers", "local", "NUMA")  # columns, in the order in which they give way


def _draw_setting(width: int, line: str) -> Iterator[RenderableType]:
    """``NAME=VALUE    # why``; the reason stands below where both are wider than the screen."""
    setting, _, reason = line.rpartition(_REASON)
    beside = phrases.count_cells(line) <= width
    yield Line(text(line if beside else setting), whole=True)
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
        if table:
            items.append(read_text_table(table, _LEAST_OF_RANKS))
        table = []
        inside = line.startswith("  ")
        items.append(AtWidth(_draw_setting, line) if _REASON in line else Line(text(line), 2, whole=inside))
    return items[:-1]
