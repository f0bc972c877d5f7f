"""``ipexctl report``: the page of a saved run; and the page that each run leaves in its record."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.inputs import expand_home
from ipexctl.decide.page.build import build_page
from ipexctl.decide.page.compare import compare_runs, overlay_figures
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import ReadErrors, make_report
from ipexctl.model.answers.saved import ReportAnswer
from ipexctl.model.errors import UsageError, advise
from ipexctl.model.events import Message, Stamped, Started, Workflow, finish_verb
from ipexctl.model.page import RunPage
from ipexctl.model.reports import CommandReport
from ipexctl.model.text import printable
from ipexctl.store.masking import EventMasker, Masker
from ipexctl.store.private_files import open_regular_file
from ipexctl.store.record import read_name, read_report
from ipexctl.verbs.common.pages import check_destination, find_doctor_record, open_page, write_page
from ipexctl.verbs.run.page_sink import PAGE
from ipexctl.verbs.run.replay import find_run, find_saved_run, read_run


class MaskedFold:
    """The fold of events without secrets, which the ranks' own files have: a page is sent to others. ``known`` reads
    the catalogue of errors."""

    def __init__(self, masker: Masker, known: ReadErrors) -> None:
        self._fold, self._masker, self._known = RunFold(), EventMasker(masker), known
        self.state = self._fold.state

    def handle_event(self, stamped: Stamped) -> None:
        for masked in self._masker.mask_events([stamped]):
            self._fold.handle_event(masked)

    def build_page(self, state: Path, saved: CommandReport | None = None) -> RunPage:
        """Builds the page of all events so far; of a run that was ``saved``, with its report. ``state`` has what doctor
        reported of the hosts."""
        report = (
            replace(saved, selection_flags=self.state.selection_flags)
            if saved
            else make_report(self.state, self._known)
        )
        doctor = find_doctor_record(state, self.state.run.hosts, self.state.at)
        return build_page(self.state, report, doctor, self._known)


def report(
    words: tuple[str, ...], context: Context, known: ReadErrors, *, page: str | None, show: bool
) -> Workflow[None]:
    """Writes the page of a saved run, by default into its record; ``show`` opens it in a browser. Several are set side
    by side, and their page written if it is wanted. ``known`` reads the known errors. Raises `UsageError`."""
    from ipexctl.show.page.render import render_comparison, render_run

    runs = [*dict.fromkeys(_find_run(context.state / "runs", word) for word in words or ("last",))]
    if page is not None:
        _check_page(expand_home(page))
    yield Started("report", ", ".join(run or find_run(each, "")[1] or read_name(each) for each, run in runs), ())
    if len(runs) > 1:
        read = [read_page(each, context, known, run) for each, run in runs]
        apart = len({page.run for page in read}) == len(read)
        pages = [(page.run if apart else each.name, page) for (each, _), page in zip(runs, read, strict=True)]
        comparison = context.masker.mask_value(compare_runs(pages))  # facts are none of what the fold masks
        if page or show:
            file = expand_home(page or "comparison.html")
            write_page(file, render_comparison(comparison, overlay_figures(pages)))
            comparison = replace(comparison, page=str(file))
            if show:
                yield from open_page(file.resolve().as_uri())
        yield from finish_verb("report", comparison)
        return
    ((directory, run),) = runs
    value = read_page(directory, context, known, run)
    text = render_run(value)
    path = expand_home(page) if page else directory / (f"report-{run}.html" if run else PAGE)
    write_page(path, text)
    if run:
        yield Message(advise("report", find_run(directory, run)[1], text="the last run of the same command:"))
    if show:
        yield from open_page(path.resolve().as_uri())
    yield from finish_verb("report", ReportAnswer(str(path), len(text.encode()), (value.run,)))


def _check_page(path: Path) -> None:
    """Raises `UsageError` for what no page can be written to, and for an existing file that is none."""
    check_destination(path)
    with suppress(OSError), open_regular_file(path, follow=True) as file:
        if (beginning := file.read(9)) and beginning.lower() != b"<!doctype":
            what = f"{printable(str(path), 300)} exists and is no page"
            raise UsageError(what, hint="name another file with -o")


def _find_run(runs: Path, word: str) -> tuple[Path, str]:
    """Returns the saved command that ``word`` names, and which of its runs, if that is not the last one."""
    directory = find_saved_run(runs, word, with_ranks=True)
    run, last = find_run(directory, word)
    return directory, "" if run == last else run


def read_page(directory: Path, context: Context, known: ReadErrors, run: str = "") -> RunPage:
    """The page of a saved run as a value; of a command that started several, of ``run``, else of the last. Raises
    `UsageError` where no rank was started."""
    fold = MaskedFold(context.masker, known)
    for stamped in read_run(directory, run, context.masker):
        fold.handle_event(stamped)
    if not fold.state.run.attempts:
        name = printable(read_name(directory), 200)
        what = f"no rank was started in {name}, so that there is nothing to draw"
        raise UsageError(what, hint=advise("replay", name))
    saved = None if run else read_report(directory)  # which is of the last run
    return fold.build_page(context.state, context.masker.mask_value(saved))
