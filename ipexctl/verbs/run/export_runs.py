"""``runs --export``: the figures and samples of saved runs, for other programs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.saved_runs import RunFilter, list_figures
from ipexctl.model.answers.saved import ExportAnswer, SavedRun
from ipexctl.model.errors import UsageError, advise
from ipexctl.model.events import Message, Started, Workflow, finish_verb
from ipexctl.model.saved_runs import ExportFormat, FigureRow
from ipexctl.model.text import pluralize, printable
from ipexctl.store import figure_files
from ipexctl.store.masking import EventMasker, Masker
from ipexctl.store.private_files import refuse_os_errors
from ipexctl.verbs.run.replay import read_saved_run
from ipexctl.verbs.run.saved_runs import select_saved_runs

_ENDINGS: dict[str, ExportFormat] = {".csv": "csv", ".json": "json"}


def export_runs(
    runs: Path,
    names: Sequence[str],
    chosen: RunFilter,
    target: str,
    form: ExportFormat | None,
    environ: Mapping[str, str],
) -> Workflow[None]:
    """Writes the figures of the saved runs that are named, or that match, into a file, as they are without secrets of
    the run or of ``environ``. Raises `UsageError` where that is not possible."""
    yield Started("runs", "", ())
    form = form or choose_format(target)
    selected = select_saved_runs(runs, names, chosen)
    if not selected:
        raise UsageError(f"no saved run matches in {printable(str(runs), 400)}", hint=advise("runs"))
    damaged: list[str] = []
    path = Path(target)
    rows = _read_all(selected, damaged, environ)
    with refuse_os_errors(target, "cannot be written"):
        count = figure_files.write_csv(path, rows) if form == "csv" else figure_files.write_json(path, rows)
    yield from (Message(text, "warning", code="record-gap") for text in damaged)
    if not count:
        text = f"{pluralize(len(selected), 'run')} without a figure: no rank printed one, and no host was sampled"
        yield Message(text, "warning", code="no-figures")
    yield from finish_verb("runs", ExportAnswer(str(path), form, tuple(run.name for run in selected), count))


def choose_format(target: str) -> ExportFormat:
    """Returns the format by the ending of a file's name. Raises `UsageError` for any other ending."""
    if (form := _ENDINGS.get(Path(target).suffix.lower())) is None:
        raise UsageError(
            f"{printable(target, 200)} names no format",
            reasons=[f"files end with {' or '.join(_ENDINGS)}"],
            meant=(target, f"{target.rstrip('/')}.csv"),
        )
    return form


def _read_all(selected: Sequence[SavedRun], damaged: list[str], environ: Mapping[str, str]) -> Iterator[FigureRow]:
    """Yields the figures of all runs, the oldest run first; what cannot be read of them is added to ``damaged``."""
    for run in reversed(selected):
        fold, masker = RunFold(every_line=True), Masker(environ)  # of one run: hashes of hundreds cost too much
        for stamped in EventMasker(masker).mask_events(read_saved_run(Path(run.directory), masker)):
            fold.handle_event(stamped)
            yield from list_figures(run.name, stamped, fold.state)
            if isinstance(stamped.event, Message) and stamped.event.code == "record-gap":
                damaged.append(f"{run.name}: {stamped.event.text}")
