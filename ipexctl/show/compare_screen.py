"""Runs side by side, on a terminal."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from ipexctl.model.answers.saved import CompareAnswer, RankSpread, ReportedRun
from ipexctl.model.text import group_pairs, pluralize
from ipexctl.show.phrases import format_duration
from ipexctl.show.sanitise import one_line
from ipexctl.show.typeset import QUIET, STRONG, labelled, text

_PACKAGES = 10  # rows of packages; the page and --json have all
_UNITS = {"pace": "it/s", "samples_s": "samples/s", "tokens_s": "tokens/s"}
_WORDS = {
    "samples_s": "samples", "tokens_s": "tokens", "grad_norm": "gradient norm", "eval_loss": "evaluation loss",
    "eval_accuracy": "evaluation accuracy",
}  # fmt: skip


def format_comparison(value: CompareAnswer) -> list[RenderableType]:
    """A column per run: how it ended, its figures, then what differed."""
    letters = name_columns(len(value.compared))
    items: list[RenderableType] = []
    for letter, run in zip(letters, value.compared, strict=True):
        items.append(labelled(letter, (one_line(run.name), STRONG), f"  {one_line(describe_run(run))}"))
    items = [*(text((one_line(line), STRONG)) for line in value.summary), *items]
    items += ["", _make_table(letters, [("figures", list_figure_rows(value))]), ""]
    if value.differences:
        groups = group_pairs((each.of, (each.name, *each.values)) for each in value.differences)
        rows = groups.get("stack", [])
        if len(rows) > _PACKAGES:
            groups["stack"] = [*rows[: _PACKAGES - 1], (f"… {len(rows) - _PACKAGES + 1} more: --json",)]
        items.append(_make_table(letters, list(groups.items())))
    else:
        items.append(text("nothing that is recorded differs between these runs"))
    return [*items, labelled("page", value.page)] if value.page else items


def describe_run(run: ReportedRun) -> str:
    """Its script; of a record with several runs also which of them it is."""
    return f"{run.title} (run {run.run}, the last of {run.earlier + 1})" if run.earlier else run.title


def name_columns(count: int) -> list[str]:
    """``A``, ``B`` … of so many runs; after ``Z`` numbers."""
    return [chr(ord("A") + number) if number < 26 else str(number) for number in range(count)]


def _make_table(letters: Sequence[str], groups: Sequence[tuple[str, Sequence[tuple[str, ...]]]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column(text(groups[0][0] if len(groups) == 1 else "what differs"), no_wrap=True)
    for letter in letters:
        table.add_column(letter, overflow="fold")
    for name, rows in groups:
        if len(groups) > 1:
            table.add_row(text((name, QUIET)))
        for row in rows:
            table.add_row(*(text(one_line(cell)) for cell in row))
    return table


def list_figure_rows(value: CompareAnswer) -> list[tuple[str, ...]]:
    """The figures of runs as rows of words; those of later runs with their ratio to the first."""
    runs = value.compared
    rows = [
        ("result", *(run.result for run in runs)),
        ("time", *(format_duration(run.seconds) for run in runs)),
        ("ranks", *(f"{run.ranks} on {pluralize(len(run.hosts), 'host')}" for run in runs)),
    ]
    for name in dict.fromkeys(name for run in runs for name in run.phases):
        seconds = [run.phases.get(name, 0.0) for run in runs]
        if max(seconds) >= 0.05:
            rows.append((f"  {name}", *map(format_duration, seconds)))
    lost = ["loss"] if any(run.lost_loss for run in runs) else []
    for name in dict.fromkeys((*lost, *(name for run in runs for name in run.figures))):
        cells = [_format_spread(run.figures.get(name), name) + _format_ratio(value, run, name) for run in runs]
        if name == "loss":
            cells = [run.lost_loss or cell for run, cell in zip(runs, cells, strict=True)]
        rows.append((_WORDS.get(name, name), *cells))
    energy = ["" if run.joules is None else f"{run.joules / 3600:.4g} Wh" for run in runs]
    if any(energy):
        ratios = (_format_ratio(value, run, "energy") for run in runs)
        rows.append(("energy", *(f"{words or '-'}{ratio}" for words, ratio in zip(energy, ratios, strict=True))))
    return rows


def _format_spread(spread: RankSpread | None, name: str) -> str:
    """``2.31 it/s (2.30 to 2.33)``: the median rank, the least and the greatest."""
    if spread is None:
        return "-"
    unit = f" {_UNITS[name]}" if name in _UNITS else ""
    least, greatest = f"{spread.least:.4g}", f"{spread.greatest:.4g}"
    between = f" ({least} to {greatest})" if least != greatest else ""
    return f"{spread.median:.4g}{unit}{between}"


def _format_ratio(value: CompareAnswer, run: ReportedRun, figure: str) -> str:
    ratio = next((each for each in value.ratios if each.name == run.name and each.figure == figure), None)
    if ratio is None:
        return ""
    return f"  × {ratio.ratio:.3g}" + ("" if ratio.apart else ", ranks overlap")
