"""The screens of runs on hosts: which there are, where their ranks stand, how they were stopped."""

import re
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table

from ipexctl.model.answers.manage import ListedRun, PsAnswer, RankStacksAnswer, ReapAnswer, StopAnswer
from ipexctl.model.json_values import to_json
from ipexctl.model.text import pluralize
from ipexctl.show import phrases
from ipexctl.show.run_screen import format_cleanup_proof
from ipexctl.show.sanitise import one_line
from ipexctl.show.tables import Rows, format_any_answer
from ipexctl.show.typeset import QUIET, STRONG, Line, text


def format_answer(value: PsAnswer | RankStacksAnswer | StopAnswer | ReapAnswer) -> list[RenderableType]:
    match value:
        case PsAnswer():
            return format_runs(value)
        case RankStacksAnswer():
            return format_stacks(value)
        case StopAnswer():
            reason = format_any_answer({"run": value.run, "reason": value.reason})
            return [*reason, *format_cleanup_proof(value)]
        case ReapAnswer():
            return [*format_any_answer({"removed": value.removed}), *format_cleanup_proof(value)]


def format_stacks(value: RankStacksAnswer) -> list[RenderableType]:
    """Where ranks stand: which are where, and of each place the stack of one rank, innermost first."""
    items: list[RenderableType] = [Line(text(line), _measure_label(line)) for line in value.summary]
    items = items or [text("no rank answered")]
    for place in value.places:
        if place.frames:
            items += ["", text((phrases.format_ranks(place.ranks), STRONG), f" on {phrases.format_hosts(place.hosts)}")]
            items += [Line(text("  ", frame), 4) for frame in place.frames]
    return items


def _measure_label(line: str) -> int:
    """Where the place stands in a line such as ``  ranks 0-3  train.py:88 step``; 2 in a sentence."""
    label = re.match(r"  ranks? [\d,-]+ +", line)
    return label.end() if label and label.end() <= _WIDEST_LABEL else 4 if label else 2


_WIDEST_LABEL = 24  # cells


def format_runs(value: PsAnswer) -> list[RenderableType]:
    """The runs on hosts, and orphan directories."""
    silent = value.unreachable
    answered = [host for host in value.hosts if host not in silent]
    items: list[RenderableType] = [_Runs(value.runs)] if value.runs else []
    if not items and answered:
        these = "this host" if len(value.hosts) == 1 else f"these {len(value.hosts)} hosts"
        which = f"the {pluralize(len(answered), 'host')} that answered" if silent else these
        items.append(text(f"no runs on {which}"))
    if value.orphans:
        items += ["", Rows(to_json(value.orphans))] if items else [Rows(to_json(value.orphans))]
    return items


class _Runs:
    """A line per run. What matters least gives way on a narrow screen; id and state are never broken. What no run has
    is no column."""

    # The first gives way first; the time of the start at once where how long ago that was is known.
    LEAST = ("watchers", "head", "ranks", "hosts", "command", "owner", "started", "it/s", "step", "elapsed")
    LAST, ROOMS = "command", (40, 12)  # its last words may be missing; its least cells, at first and in the end

    def __init__(self, rows: Sequence[ListedRun]) -> None:
        self._rows = [self._shown(row) for row in rows]

    @staticmethod
    def _shown(row: ListedRun) -> dict[str, str]:
        state = f"{row.state} ({row.reason})" if row.reason else row.state
        hosts, few = (phrases.format_hosts(row.hosts, most=most) for most in (3, 1))
        elapsed = "" if row.elapsed is None else phrases.format_clock(row.elapsed)
        pace = "" if row.pace is None else f"{row.pace:.2f}"
        cells = {"run": row.run, "state": state, "elapsed": elapsed, "step": "" if row.step is None else row.step}
        cells |= {"it/s": pace, "ranks": row.ranks, "hosts": hosts, "started": row.started, "owner": row.owner}
        cells |= {"head": row.head, "watchers": row.watchers, "command": row.command or row.title, "few": few}
        return {name: one_line(cell) for name, cell in cells.items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows = self._rows
        names = [name for name in rows[0] if name != "few" and any(row[name] for row in rows)]
        least = [*(["started"] if all(row["elapsed"] for row in rows) else []), *self.LEAST]
        room, few = self.ROOMS
        if self._measure(rows, names, room) > options.max_width:
            # The year, the seconds, the desk and hosts after the first are the first to be left out.
            short = {row["run"]: {"started": row["started"][5:16], "owner": row["owner"].split("@")[0]} for row in rows}
            rows = [row | short[row["run"]] | {"hosts": row["few"]} for row in rows]
        for name in least:
            if name == "hosts" and self._measure(rows, names, room) > options.max_width:
                room = few
            if name in names and self._measure(rows, names, room) > options.max_width:
                names.remove(name)
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
        for name in names:
            table.add_column(name, no_wrap=True)
        left = options.max_width - self._measure(rows, names, room) + room
        for row in rows:
            cells = [text((row[name], STRONG if name == "run" else "")) for name in names]
            if names[-1] == self.LAST:
                cells[-1].truncate(max(left, room), overflow="ellipsis")
            table.add_row(*cells)
        yield table

    def _measure(self, rows: list[dict[str, str]], names: list[str], room: int) -> int:
        """The cells of the table, where its last column has at most so many."""
        widths = {name: max(map(phrases.count_cells, (name, *(row[name] for row in rows)))) for name in names}
        if self.LAST in widths:
            widths[self.LAST] = min(widths[self.LAST], room)
        return sum(widths.values()) + 2 * len(widths) - 2
