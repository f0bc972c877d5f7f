"""A study: its launches with bars; while it goes on, also what is tried now, and what is left of its budget."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType

from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.events import CandidateTried, describe_values
from ipexctl.model.run_state import RunState
from ipexctl.model.text import pluralize
from ipexctl.show import phrases
from ipexctl.show.frame_lines import fill_cells, justify_ends, make_row
from ipexctl.show.sanitise import escape, one_line
from ipexctl.show.typeset import BAD, GOOD, QUIET, AtWidth, Line, outcome, text

_BAR = 24  # cells of the longest bar
_MOST = 15  # launches that have a line in the end


def format_answer(value: TuneAnswer) -> list[RenderableType]:
    took, budget = (phrases.format_duration(seconds) for seconds in (value.seconds, value.budget))
    measured = f"; × the default, {value.metric}" if value.metric else ""
    used = f"{pluralize(value.tried, 'run')} in {took} of {budget}{measured}"
    items: list[RenderableType] = [AtWidth(draw_launches, value.launches), text((used, QUIET))]
    items.append(outcome(True, value.verdict) if value.recommended else Line(text(value.verdict), 2))
    if value.playbook:
        items.append(Line(text(f"  written to {value.playbook}; or paste:"), 2))
    return items


def describe_candidate(tried: CandidateTried, state: RunState) -> str:
    """``launch 7, ppn 2: 1.12 ×, 1 run``."""
    name = describe_values(tried.values)
    known = next((f": {_describe(row)}" for row in state.launches if row.name == name), "")
    return f"launch {len(state.candidates) - 1}, {name}{known}"


def draw_study(state: RunState, width: int, height: int, now: float) -> RenderableType:
    """At most ``height`` lines."""
    assert state.study is not None
    spent = max((each.at + each.seconds / 2 for each in state.candidates), default=0.0)
    spent += now - state.begun if state.attempt else 0.0  # a launch may wait for hosts before
    left = f"{phrases.format_duration(max(state.study.budget - spent, 0.0))} left"
    title = one_line(state.command.title if state.command else "")
    rows = draw_launches(width, state.launches, max(height - 4, 1))
    return Group(justify_ends(width, title, left), *rows, make_row("now: ", one_line(state.title)))


def draw_launches(width: int, launches: Sequence[TriedLaunch], most: int = _MOST) -> Iterator[RenderableType]:
    """A line for each launch, the default first and the failed ones last: a bar of its ratio against the default, and
    what is known; names give way."""
    rows = sorted(launches, key=lambda row: (row.ratio is None, bool(row.values)))
    best = max([1.0, *(row.ratio for row in rows if row.ratio)])
    names = min(max((len(row.name) for row in rows), default=0), width // 3)
    room = min(_BAR, width // 8)
    for row in rows[:most]:
        name, remark = fill_cells(escape(row.name), names), (one_line(_describe(row)), QUIET)
        if row.ratio is None:
            yield make_row(("✗ ", BAD), f"{name} ", remark)
            continue
        bar = "━" * max(round(room * max(row.ratio / best, 0.0)), 1)
        yield make_row(f"  {name} ", (f"{bar:<{room}} ", GOOD if row.ratio > 1.0 else QUIET), remark)
    if more := len(rows[most:]):
        yield make_row((f"  … and {more} more, on the page and in --json", QUIET))


def _describe(row: TriedLaunch) -> str:
    if row.ratio is None:
        return f"failed: {row.why}"
    parts = [f"{row.ratio:.2f} ×", f"changes {row.changes}" if row.changes else "", "dropped" if row.dropped else ""]
    parts += [f"{row.low:.2f} to {row.high:.2f}" if row.low and row.high else pluralize(row.runs, "run")]
    return ", ".join(filter(None, [*parts, f"{row.rate:.3g} a second" if row.rate else ""]))
