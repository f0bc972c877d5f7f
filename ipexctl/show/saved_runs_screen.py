"""The list of saved runs, and what is removed of them."""

import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderableType

from ipexctl.model.answers.saved import PruneAnswer, RunsAnswer, SavedRun
from ipexctl.model.grouping import group_pairs
from ipexctl.model.text import format_size, pluralize
from ipexctl.show import phrases
from ipexctl.show.sanitise import one_line
from ipexctl.show.typeset import BAD, QUIET, STRONG, WARN, Line, Part, text

_STYLES = {"failed": BAD, "lost": BAD, "ok": "", "running": STRONG}


def format_saved_runs(value: RunsAnswer) -> list[RenderableType]:
    """A line per run, and below it why it did not end well."""
    if not value.runs:
        which = f"none of the {pluralize(value.saved, 'saved run')} matches" if value.saved else "no run is saved"
        return [text(f"{which} in {value.directory}")]
    return [SavedRunTable(value.runs)]


def format_pruned_runs(value: PruneAnswer) -> list[RenderableType]:
    """What was or would be removed and how much space that is, and what stays although a rule names it."""
    items: list[RenderableType] = [SavedRunTable(value.removed)] if value.removed else []
    for why, names in group_pairs((spared.why, spared.name) for spared in value.spared).items():
        items.append(Line(text(("! ", WARN), f"not removed: {', '.join(names)}: {why}"), 2))
    size, many = format_size(value.bytes), pluralize(len(value.removed), "saved run")
    if not value.removed:
        items.append(text("no saved run to remove"))
    elif value.dry:
        items.append(text(f"would remove {many}, {size}; nothing was removed"))
    else:
        items.append(text(f"removed {many}, {size}"))
    return items


class SavedRunTable:
    """A line per saved run. What matters least gives way on a narrow screen; the name and the result are never cut."""

    LEAST = ("size", "ranks", "verb", "took", "script", "started")  # the first gives way first
    SCRIPT = 16  # cells; its last words may be missing

    def __init__(self, runs: Sequence[SavedRun]) -> None:
        self._rows = [(self._format_cells(run), run) for run in runs]

    @staticmethod
    def _format_cells(run: SavedRun) -> dict[str, str]:
        ranks = f"{run.ranks} on {pluralize(run.hosts, 'host')}" if run.ranks else pluralize(run.hosts, "host")
        cells = {
            "name": run.word, "started": time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
            "verb": run.verb, "result": run.result, "took": phrases.format_duration(run.seconds),
            "ranks": ranks if run.hosts else "", "size": format_size(run.bytes), "script": run.title,
        }  # fmt: skip
        return {name: one_line(cell) for name, cell in cells.items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        names = list(self._rows[0][0])
        if self._measure(names) > options.max_width:  # the year goes first: names of records have it
            self._rows = [(cells | {"started": cells["started"][5:]}, run) for cells, run in self._rows]
        for name in self.LEAST:
            if self._measure(names) > options.max_width:
                names.remove(name)
        widths = self._get_widths(names)
        yield self._format_row(names, widths, {name: name for name in names}, dict.fromkeys(names, QUIET))
        for cells, run in self._rows:
            if "script" in names:
                room = max(options.max_width - self._measure(names) + self.SCRIPT, self.SCRIPT)
                cells = cells | {"script": _truncate(cells["script"], room)}
            styles = {"name": STRONG, "result": _STYLES.get(run.result, WARN)}
            yield self._format_row(names, widths, cells, styles)
            if run.cause:
                yield Line(text("    ", run.cause), 4)

    def _format_row(
        self, names: Sequence[str], widths: Mapping[str, int], cells: Mapping[str, str], styles: Mapping[str, str]
    ) -> RenderableType:
        parts: list[Part] = []
        for name in names:
            blanks = "" if name == names[-1] else " " * (widths[name] + 2 - phrases.count_cells(cells[name]))
            parts += [(cells[name], styles.get(name, "")), blanks]
        return Line(text(*parts), whole=True)

    def _get_widths(self, names: Sequence[str]) -> dict[str, int]:
        return {
            name: max(phrases.count_cells(name), *(phrases.count_cells(cells[name]) for cells, _ in self._rows))
            for name in names
        }

    def _measure(self, names: Sequence[str]) -> int:
        widths = self._get_widths(names)
        if "script" in names:
            widths["script"] = min(widths["script"], self.SCRIPT)
        return sum(widths.values()) + 2 * (len(widths) - 1)


def _truncate(words: str, room: int) -> str:
    if phrases.count_cells(words) <= room:
        return words
    while words and phrases.count_cells(words) >= room:
        words = words[:-1]
    return words.rstrip() + "…"
