"""The screen of a launch that is only planned: ``run --dry-run``. In what it prints, words and commands stay whole."""

from collections.abc import Iterator

from rich.console import RenderableType

from ipexctl.show import phrases
from ipexctl.show.tables import draw_text_table
from ipexctl.show.typeset import AtWidth, Line, split_harmless_lines, text

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
        items += [AtWidth(draw_text_table, table, _LEAST_OF_RANKS)] if table else []
        table = []
        inside = line.startswith("  ")
        items.append(AtWidth(_draw_setting, line) if _REASON in line else Line(text(line), 2, whole=inside))
    return items[:-1]
