"""The screen of ``bench``."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType

from ipexctl.model.answers.bench import BenchAnswer
from ipexctl.show import bench_table
from ipexctl.show.typeset import Line, text, whole


def format_answer(value: BenchAnswer) -> list[RenderableType]:
    return [_BenchTable(value)] if value.title else whole(value.text)


class _BenchTable:
    """The table of ``bench`` in the width of the screen."""

    def __init__(self, answer: BenchAnswer) -> None:
        self._answer = answer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows, title, notes = self._answer.rows, self._answer.title, self._answer.notes
        lines = bench_table.format_rows(rows, title, notes, min(options.max_width, bench_table.WIDTH))
        yield from (Line(text(line), 2) for line in lines)
