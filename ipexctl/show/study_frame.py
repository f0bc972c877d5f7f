"""A study while it goes on: its launches with bars, what is tried now, and what is left of its budget."""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from ipexctl.model.events import CandidateTried, describe_values
from ipexctl.model.run_state import RunState
from ipexctl.model.text import pluralize
from ipexctl.show import phrases
from ipexctl.show.frame_lines import fill_cells, justify_ends, make_row
from ipexctl.show.sanitise import escape, one_line
from ipexctl.show.typeset import BAD, GOOD, QUIET

_BAR = 24  # cells of the longest bar


def describe_candidate(tried: CandidateTried, state: RunState) -> str:
    """``launch 7, ppn 2: 1.12 × the default, 12 s``."""
    name = f"launch {tried.number}, {describe_values(tried.values)}"
    took = phrases.format_duration(tried.seconds)
    if tried.outcome == "failed":
        return f"{name}: failed after {took}: {tried.why}"
    rate = next(iter(tried.rates.get(each) for each in ("pace", "samples_s", *tried.rates) if each in tried.rates), 0.0)
    if state.study and state.study.metric:
        rate = tried.rates.get(state.study.metric, 0.0)
    times = f"{tried.ratio:.2f} × the default" if tried.ratio else f"{rate:.3g} a second"
    return f"{name}: {times}, {took}{', dropped' if tried.outcome == 'dropped' else ''}"


def draw_study(state: RunState, width: int, height: int, now: float) -> RenderableType:
    """At most ``height`` lines: the launches that are best so far, then those that failed."""
    assert state.study is not None
    spent = max((each.at + each.seconds / 2 for each in state.candidates), default=0.0) + now - state.verb_at
    left = f"{phrases.format_duration(max(state.study.budget - spent, 0.0))} left"
    lines: list[RenderableType] = [justify_ends(width, one_line(state.command.title if state.command else ""), left)]
    last = {each.launch: each for each in state.candidates if each.ratio}  # of one that was measured again
    good = sorted(last.values(), key=lambda each: -(each.ratio or 0.0))
    failed = [each for each in state.candidates if each.outcome == "failed"]
    dropped = sum(each.outcome == "dropped" for each in state.candidates)
    room = max(height - 5, 1)
    rows = [(describe_values(each.values), each.ratio, "dropped" if each.outcome == "dropped" else "") for each in good]
    rows += [(describe_values(each.values), None, each.why) for each in failed]
    lines += draw_rows(rows[:room], width)
    counts = f"{pluralize(len(state.candidates), 'run')}, {dropped} dropped, {len(failed)} failed"
    paces = [rank.pace for rank in state.ranks if rank.pace is not None]
    pace = f", {paces[0]:.3g} steps/s" if paces else ""
    lines.append(make_row((counts, QUIET)))
    lines.append(make_row("now: ", f"{one_line(state.title)}{pace}"))
    return Group(*lines)


def draw_rows(rows: Sequence[tuple[str, float | None, str]], width: int) -> list[RenderableType]:
    """A line for each launch: its ratio against the default, a bar of it, and a remark; names give way."""
    best = max([1.0, *(ratio for _, ratio, _ in rows if ratio)])
    room = min(_BAR, max(width - 44, 6))
    names = min(max((len(name) for name, _, _ in rows), default=0), max(width - room - 24, 12))
    lines: list[RenderableType] = []
    for name, ratio, remark in rows:
        if ratio is None:
            lines.append(make_row(("✗ ", BAD), fill_cells(escape(name), names), (f"  {one_line(remark)}", QUIET)))
            continue
        bar = "━" * max(round(room * ratio / best), 1)
        style = GOOD if ratio > 1.0 else QUIET
        cells = f"{fill_cells(escape(name), names)} {ratio:>6.2f} × "
        lines.append(make_row("  ", cells, (f"{bar:<{room}}", style), (f" {remark}" if remark else "", QUIET)))
    return lines
