"""``ipexctl report``: the page of a saved run; and the page that each run leaves in its record."""

from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path

from ipexctl.act.context import Context
from ipexctl.act.inputs import expand_home
from ipexctl.decide.page.compare import compare_runs, overlay_figures
from ipexctl.decide.page.fold import PageBuilder
from ipexctl.decide.reports import Folding
from ipexctl.model.answers.saved import ReportAnswer
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.events import Answer, Ended, Event, Stamped, Started
from ipexctl.model.figures import read_figures
from ipexctl.model.harmless import find_harmless
from ipexctl.model.hints import advise
from ipexctl.model.page import RunPage
from ipexctl.model.text import printable
from ipexctl.show.masking import Masker
from ipexctl.show.record import read_report
from ipexctl.verbs.common.pages import check_destination, find_doctor_record, open_page, write_page
from ipexctl.verbs.run.page_sink import PAGE, ReadErrors
from ipexctl.verbs.run.replay import find_saved_run, read_saved_run


def make_page_builder(known: ReadErrors) -> PageBuilder:
    """A builder with the readers of printed figures and of harmless messages; ``known`` reads the catalogue of
    errors."""
    return PageBuilder(read_figures, find_harmless, known)


def report(
    words: tuple[str, ...],
    context: Context,
    environ: Mapping[str, str],
    known: ReadErrors,
    *,
    page: str | None,
    show: bool,
) -> Generator[Event, None, None]:
    """Writes the page of a saved run, by default into its record; ``show`` opens it in a browser. Several runs are set
    side by side; their page is written if one is wanted. ``known`` reads the catalogue of errors; secrets of
    ``environ`` are masked. Raises `UsageError`."""
    from ipexctl.show.page.render import render_comparison, render_run

    directories = [find_saved_run(context.state / "runs", word, with_ranks=True) for word in words or ("last",)]
    if page is not None:
        check_destination(expand_home(page))
    yield Started("report", ", ".join(directory.name for directory in directories), ())
    if len(directories) > 1:
        pages = [(each.name, read_page(each, context.state, environ, known)) for each in directories]
        comparison = compare_runs(pages)
        if page or show:
            file = expand_home(page or "comparison.html")
            write_page(file, render_comparison(comparison, overlay_figures(pages)))
            comparison = replace(comparison, page=str(file))
            if show:
                yield from open_page(file)
        yield Answer(comparison)
        yield Ended("report", Exit.OK)
        return
    (directory,) = directories
    value = read_page(directory, context.state, environ, known)
    text = render_run(value)
    path = expand_home(page) if page else directory / PAGE
    write_page(path, text)
    if show:
        yield from open_page(path)
    yield Answer(ReportAnswer(str(path), len(text.encode()), (value.run,)))
    yield Ended("report", Exit.OK)


def read_page(directory: Path, state: Path, environ: Mapping[str, str], known: ReadErrors) -> RunPage:
    """The page of a saved run as a value. What looks secret in the ranks' own files, and secrets of environ, are
    masked: a page is sent to others. Raises `UsageError` where no rank was started."""
    pages, reports, masker = make_page_builder(known), Folding(known), Masker(environ)
    for stamped in read_saved_run(directory):
        reports.handle_event(stamped)
        for event in masker.mask_event(stamped.event):
            pages.handle_event(Stamped(stamped.at, event))
    if not pages.started:
        what = f"no rank was started in {printable(directory.name, 200)}, so that there is nothing to draw"
        raise UsageError(what, hint=advise("replay", printable(directory.name, 200)))
    report = replace(read_report(directory) or reports.report(), place=reports.place)
    return pages.build_page(report, find_doctor_record(state, pages.hosts))
