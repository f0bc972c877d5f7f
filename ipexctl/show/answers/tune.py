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
_FAILED = 3  # of them those that failed, where there is no room for all


def format_answer(value: TuneAnswer) -> list[RenderableType]:
    took, budget = (phrases.format_duration(seconds) for seconds in (value.seconds, value.budget))
    used = f"{pluralize(value.tried, 'run')} in {took} of {budget}; × the default, {value.metric}"
    items: list[RenderableType] = [AtWidth(draw_launches, value.launches), text((used, QUIET))]
    items.append(outcome(True, value.verdict) if value.recommended else Line(text(value.verdict), 2))
    if value.playbook:
        items.append(Line(text(f"  written to {value.playbook}; or paste:"), 2))
    return items


def describe_candidate(tried: CandidateTried, state: RunState) -> str:
    """``launch 7, ppn 2: 1.12 × the default, 12 s``."""
    name = describe_values(tried.values)
    row = next(row for row in state.launches if row.name == name)
    words = f"{row.ratio:.2f} × the default" if row.values and row.ratio else f"{row.rate or 0.0:.3g} a second"
    if tried.outcome != "measured":
        words = f"failed: {tried.why}" if tried.why else f"{words}, dropped"
    return f"launch {len(state.candidates) - 1}, {name}: {words}, {phrases.format_duration(tried.seconds)}"


def draw_study(state: RunState, width: int, height: int, now: float) -> RenderableType:
    """At most ``height`` lines."""
    assert state.study is not None
    spent = max((each.at + each.seconds / 2 for each in state.candidates), default=0.0) + now - state.verb_at
    left = f"{phrases.format_duration(max(state.study.budget - spent, 0.0))} left"
    outcomes = [each.outcome for each in state.candidates]
    counts = (
        f"{pluralize(len(outcomes), 'run')}, {outcomes.count('dropped')} dropped, {outcomes.count('failed')} failed"
    )
    paces = [rank.pace for rank in state.ranks if rank.pace is not None]
    pace = f", {paces[0]:.3g} steps/s" if paces else ""
    return Group(
        justify_ends(width, one_line(state.command.title if state.command else ""), left),
        *draw_launches(width, state.launches, max(height - 5, 1)),
        make_row((counts, QUIET)),
        make_row("now: ", f"{one_line(state.title)}{pace}"),
    )


def draw_launches(width: int, launches: Sequence[TriedLaunch], most: int = _MOST) -> Iterator[RenderableType]:
    """A line for each launch, the default first and the failed ones last: its ratio against the default, a bar of it,
    and a remark; names give way."""
    rows = sorted(launches, key=lambda row: (row.ratio is None, bool(row.values)))
    if len(rows) > most:
        failed = [row for row in rows if row.ratio is None][:_FAILED]
        rows = [*rows[: max(most - len(failed), 1)], *failed]
    best = max([1.0, *(row.ratio for row in rows if row.ratio)])
    remarks = max((len(_describe(row)) for row in rows if row.ratio is not None), default=0)
    names = min(max((len(row.name) for row in rows), default=0), max(width - remarks - 20, 12))
    room = min(_BAR, max(width - names - remarks - 14, 6))
    for row in rows:
        name = fill_cells(escape(row.name), names)
        if row.ratio is None:
            yield make_row(("✗ ", BAD), name, (f"  {one_line(row.why)}", QUIET))
            continue
        bar = "━" * max(round(room * row.ratio / best), 1)
        style = GOOD if row.ratio > 1.0 else QUIET
        cells = f"  {name} {row.ratio:>6.2f} × "
        yield make_row(cells, (f"{bar:<{room}}", style), (f" {_describe(row)}", QUIET))
    if more := len(launches) - len(rows):
        yield make_row((f"  … and {more} more, on the page and in --json", QUIET))


def _describe(row: TriedLaunch) -> str:
    parts = [f"changes {row.changes}" if row.changes else ""]
    parts += [f"{row.low:.2f} to {row.high:.2f}" if row.low and row.high else pluralize(row.runs, "run")]
    parts += ["dropped" if row.dropped else "", f"{row.rate:.3g} a second" if row.rate else ""]
    return ", ".join(filter(None, parts))
