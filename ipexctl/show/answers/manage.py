"""The screens of runs on hosts: which there are, where their ranks stand, how they were stopped."""

import re
from collections.abc import Sequence

from rich.console import RenderableType

from ipexctl.model.answers.manage import ListedRun, PsAnswer, RankStacksAnswer, ReapAnswer, StopAnswer
from ipexctl.model.json_values import to_json
from ipexctl.model.text import format_clock, format_ranks, pluralize
from ipexctl.show import phrases
from ipexctl.show.run_screen import format_cleanup_proof
from ipexctl.show.sanitise import one_line
from ipexctl.show.tables import FittedRow, FittedTable, draw_rows, format_any_answer
from ipexctl.show.typeset import STRONG, AtWidth, Line, labelled, text


def format_answer(value: PsAnswer | RankStacksAnswer | StopAnswer | ReapAnswer) -> list[RenderableType]:
    match value:
        case PsAnswer():
            return format_runs(value)
        case RankStacksAnswer():
            # Which ranks are where, and of each place the stack of one rank, innermost first.
            items: list[RenderableType] = [Line(text(line), _measure_label(line)) for line in value.summary]
            items = items or [text("no rank answered")]
            for place in value.places:
                if place.frames:
                    items += ["", text((format_ranks(place.ranks), STRONG), f" on {phrases.format_hosts(place.hosts)}")]
                    items += [Line(text("  ", frame), 4) for frame in place.frames]
            return items
        case StopAnswer():
            reason = format_any_answer({"run": value.run, "reason": value.reason})
            output = [labelled("output", value.next, copied=True)] if value.next else []
            return [*reason, *format_cleanup_proof(value), *output]
        case ReapAnswer():
            return [*format_any_answer({"removed": value.removed}), *format_cleanup_proof(value)]


def _measure_label(line: str) -> int:
    """Where the place stands in a line such as ``  ranks 0-3  train.py:88 step``; 2 in a sentence."""
    label = re.match(r"  ranks? [\d,-]+ +", line)
    if not label:
        return 2
    return label.end() if label.end() <= _WIDEST_LABEL else 4


_WIDEST_LABEL = 24  # cells


def format_runs(value: PsAnswer) -> list[RenderableType]:
    """The runs on hosts, and orphan directories."""
    silent = value.unreachable
    answered = [host for host in value.asked if host not in silent]
    items: list[RenderableType] = [_make_run_table(value.runs)] if value.runs else []
    if not items and answered:
        these = "this host" if len(value.asked) == 1 else f"these {len(value.asked)} hosts"
        which = f"the {pluralize(len(answered), 'host')} that answered" if silent else these
        items.append(text(f"no runs of this account on {which}"))
    if value.orphans:
        if items:
            items.append("")
        items.append(AtWidth(draw_rows, to_json(value.orphans)))
    return items


# Columns: the first gives way first; at "" a long command is cut further.
_DROP = ("watchers", "head", "ranks", "restart", "", "hosts", "command", "owner", "started", "it/s", "step", "elapsed")
_REASONS = {"rank": "failed", "launch": "not started"}
_COMMAND = (40, 12)  # cells of the last column, at first and then


def _make_run_table(runs: Sequence[ListedRun]) -> FittedTable:
    """A line per run; how long ago a run was started says more than when."""
    rows = [_format_row(run) for run in runs]
    least = ("started", *_DROP) if all(row.cells["elapsed"] for row in rows) else _DROP
    return FittedTable(rows, least, "command", *_COMMAND)


def _format_row(row: ListedRun) -> FittedRow:
    cells = {
        "run": row.run,
        "state": f"{row.state} ({_REASONS.get(row.reason, row.reason)})" if row.reason else row.state,
        "ready": "" if row.ready is None else f"{row.ready}/{row.ranks}",
        "elapsed": "" if row.elapsed is None else format_clock(row.elapsed),
        "step": "" if row.step is None else row.step,
        "it/s": "" if row.pace is None else f"{row.pace:.2f}",
        "restart": f"{row.restart} of {row.restarts}" if row.restart else "",
        "ranks": row.ranks,
        "hosts": phrases.format_hosts(row.hosts, most=3),
        "started": row.started,
        "owner": row.owner,
        "head": row.head,
        "watchers": row.watchers,
        "command": row.command or row.title,
    }
    # The year, the seconds, the desk and hosts after the first are the first to be left out.
    short = {"started": row.started[5:16], "owner": row.owner.split("@")[0]}
    short |= {"hosts": phrases.format_hosts(row.hosts, most=1)}
    return FittedRow({name: one_line(cell) for name, cell in cells.items()}, {"run": STRONG}, short)
