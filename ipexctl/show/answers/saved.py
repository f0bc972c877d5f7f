"""The screens of saved runs: their list, what is removed of them, what is made of them."""

from collections.abc import Sequence

from rich.console import RenderableType

from ipexctl.model.answers import saved as answers
from ipexctl.model.text import format_size, format_time, group_pairs, pluralize
from ipexctl.show import phrases
from ipexctl.show.compare_screen import format_comparison
from ipexctl.show.sanitise import one_line
from ipexctl.show.tables import FittedRow, FittedTable
from ipexctl.show.typeset import BAD, STRONG, WARN, Line, labelled, text, whole

_STYLES = {"failed": BAD, "lost": BAD, "ok": "", "running": STRONG}
_DROP = ("size", "ranks", "verb", "took", "loss", "script", "started")  # columns: the first gives way first
_SCRIPT = 16  # cells of the last column, at least

Answer = (
    answers.RunsAnswer
    | answers.PruneAnswer
    | answers.ExportAnswer
    | answers.SupportAnswer
    | answers.ReportAnswer
    | answers.CompareAnswer
)


def format_answer(value: Answer) -> list[RenderableType]:
    match value:
        case answers.RunsAnswer():
            return format_saved_runs(value)
        case answers.PruneAnswer():
            return format_pruned_runs(value)
        case answers.SupportAnswer():
            return whole(value.plan or f"{value.path}: {format_size(value.bytes or 0)}")
        case answers.ExportAnswer():
            many = pluralize(len(value.runs), "run")
            return [text(f"{pluralize(value.values, 'value')} of {many} in {value.path} ({value.format})")]
        case answers.CompareAnswer():
            return format_comparison(value)
        case answers.ReportAnswer():
            return [labelled("page", value.page), labelled("size", format_size(value.bytes))]


def format_saved_runs(value: answers.RunsAnswer) -> list[RenderableType]:
    """A line per run, and below it why it did not end well; the newest is last, above the prompt."""
    if not value.runs:
        which = f"none of the {pluralize(value.total, 'saved run')} matches" if value.total else "no run is saved"
        return [text(f"{which} in {value.directory}")]
    return [_make_table(value.runs[::-1])]


def format_pruned_runs(value: answers.PruneAnswer) -> list[RenderableType]:
    """What was or would be removed and how much space that is, and what stays although a rule names it."""
    items: list[RenderableType] = [_make_table(value.removed)] if value.removed else []
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


def _make_table(runs: Sequence[answers.SavedRun]) -> FittedTable:
    return FittedTable([*map(_format_row, runs)], _DROP, "script", _SCRIPT)


def _format_row(run: answers.SavedRun) -> FittedRow:
    ranks = pluralize(run.hosts, "host") if run.hosts else ""
    if run.ranks and ranks:
        ranks = f"{run.ranks} on {ranks}"
    started = format_time(run.started)
    cells = {
        "name": run.name, "started": started, "verb": run.verb, "result": run.result,
        "loss": "" if run.loss is None else f"{run.loss:.4g}", "took": phrases.format_duration(run.seconds),
        "ranks": ranks, "size": format_size(run.bytes),
        "script": run.title,
    }  # fmt: skip
    harmless = {name: one_line(cell) for name, cell in cells.items()}
    styles = {"name": STRONG, "result": _STYLES.get(run.result, WARN)}
    return FittedRow(harmless, styles, {"started": started[5:]}, run.cause)
