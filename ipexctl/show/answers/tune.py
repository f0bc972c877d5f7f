"""The answer of ``tune``: each launch against the default, and what is recommended."""

from collections.abc import Iterator

from rich.console import RenderableType

from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.text import pluralize
from ipexctl.show.phrases import format_duration
from ipexctl.show.study_frame import draw_launches
from ipexctl.show.typeset import QUIET, AtWidth, Line, outcome, text

_MOST = 15  # launches that have a line


def format_answer(value: TuneAnswer) -> list[RenderableType]:
    used = f"{pluralize(value.tried, 'run')} in {format_duration(value.seconds)} of {format_duration(value.budget)}"
    items: list[RenderableType] = [AtWidth(_draw_table, value), text((f"{used}; × the default, {value.metric}", QUIET))]
    items.append(outcome(value.recommended, value.verdict) if not value.interrupted else Line(text(value.verdict), 2))
    if value.playbook:
        items.append(Line(text(f"  written to {value.playbook}; or paste:"), 2))
    return items


def _draw_table(width: int, value: TuneAnswer) -> Iterator[RenderableType]:
    yield from draw_launches(value.launches, width, _MOST)
