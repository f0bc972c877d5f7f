"""The table of ``tune``: each launch against the default, how far its runs lie apart, and what is recommended."""

from collections.abc import Iterator

from rich.console import RenderableType

from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.text import pluralize
from ipexctl.show.phrases import format_duration
from ipexctl.show.study_frame import draw_rows
from ipexctl.show.typeset import QUIET, AtWidth, Line, outcome, text

_MOST = 12  # launches that have a line


def format_answer(value: TuneAnswer) -> list[RenderableType]:
    used = f"{pluralize(value.tried, 'run')} in {format_duration(value.seconds)} of {format_duration(value.budget)}"
    items: list[RenderableType] = [AtWidth(_draw_table, value), text((f"{used}; × the default, {value.metric}", QUIET))]
    items.append(outcome(value.recommended, value.verdict) if not value.interrupted else Line(text(value.verdict), 2))
    if value.playbook:
        items.append(Line(text(f"  written to {value.playbook}; or paste:"), 2))
    return items


def _draw_table(width: int, value: TuneAnswer) -> Iterator[RenderableType]:
    others = [row for row in value.launches if row.values]
    measured, failed = ([row for row in others if (row.ratio is None) is none] for none in (False, True))
    default = [row for row in value.launches if not row.values]
    rows = [*default, *measured[: _MOST - 1], *failed[:3]]
    yield from draw_rows([(row.name, row.ratio, _describe_row(row)) for row in rows], width)
    if more := len(value.launches) - len(rows):
        yield text((f"  … and {more} more, on the page and in --json", QUIET))


def _describe_row(row: TriedLaunch) -> str:
    if row.ratio is None:
        return row.why
    spread = f"{row.low:.2f} to {row.high:.2f}" if row.low is not None and row.high is not None else ""
    rate = f"{row.rate:.3g} a second" if row.rate else ""
    return ", ".join(
        part for part in (spread, row.changes and f"changes {row.changes}", row.dropped and "dropped", rate) if part
    )
