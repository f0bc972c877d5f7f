"""Any answer as rows and tables: for those that have no screen of their own."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonObject, to_json
from ipexctl.show import phrases
from ipexctl.show.sanitise import escape, one_line
from ipexctl.show.typeset import QUIET, Line, labelled, split_harmless_lines, text


def format_any_answer(value: JsonObject) -> list[RenderableType]:
    """Any answer: its single values as rows, its lists of objects as tables."""
    items: list[RenderableType] = []
    single: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner and all(isinstance(row, Mapping) for row in inner.values()):
            inner = [{key.removesuffix("s"): name, **row} for name, row in inner.items()]
        if isinstance(inner, list | tuple) and inner and all(isinstance(row, Mapping) for row in inner):
            items.append(Rows(inner))
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


class Rows:
    """Objects as a table, whose last column may be longer than the screen. Where the others leave too little room for
    it, the words of each object are one below the other: nothing is broken."""

    def __init__(self, rows: Sequence[JsonObject]) -> None:
        self._rows = [
            {one_line(n).replace("_", " "): one_line(flatten_value(v)) for n, v in row.items()} for row in rows
        ]
        every = dict.fromkeys(name for row in self._rows for name in row)
        self._names = [name for name in every if any(row.get(name) for row in self._rows)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if not self._names:
            return
        columns = ([name, *(row.get(name, "") for row in self._rows)] for name in self._names)
        *widths, last = (max(map(phrases.count_cells, column)) + 2 for column in columns)
        before = sum(widths)
        room = max(map(phrases.count_cells, self._names))
        paths = not any(" " in row.get(self._names[-1], "") for row in self._rows)  # they cannot be broken
        whole_below = paths and room + last <= options.max_width
        if before + last - 2 <= options.max_width or (before <= options.max_width * 0.6 and not whole_below):
            yield from self._format_table(widths, before)
            return
        for index, row in enumerate(self._rows):
            yield from [Text("")] if index else []
            yield from (labelled(name, row[name], room=room + 1) for name in self._names if row.get(name))

    def _format_table(self, widths: Sequence[int], before: int) -> Iterator[RenderableType]:
        heading = {name: name for name in self._names}
        for style, row in [(QUIET, heading), *(("", row) for row in self._rows)]:
            *cells, last = (row.get(name, "") for name in self._names)
            padded = (
                f"{cell}{' ' * (width - phrases.count_cells(cell))}" for cell, width in zip(cells, widths, strict=True)
            )
            yield Line(text(("".join(padded) + last, style)), before, whole=" " not in last)


def flatten_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {flatten_value(inner)}" for key, inner in value.items() if flatten_value(inner))
    if isinstance(value, list | tuple):
        return ", ".join(flatten_value(inner) for inner in value)
    return str(value)
