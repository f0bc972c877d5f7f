"""The sink that leaves a page in the record of a run."""

import logging
from collections.abc import Callable
from pathlib import Path

from ipexctl.decide.run.report import ReadErrors
from ipexctl.model.events import Stamped
from ipexctl.model.reports import CommandReport
from ipexctl.model.run_state import RunState
from ipexctl.model.text import printable

PAGE = "report.html"
_log = logging.getLogger(__name__)


class PageSink:
    """Leaves `PAGE` in a run's record when the command ends, or one warning: a page never fails a run."""

    def __init__(self, directory: Path, saved: Path, warn: Callable[[str], None], known: ReadErrors = tuple) -> None:
        self._directory, self._saved, self._warn, self._known = directory, saved, warn, known
        self._state = RunState()

    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        self._state = state

    def close(self, report: CommandReport | None = None) -> None:
        if report is None or not self._state.run.attempts:
            return
        try:
            from ipexctl.decide.page.build import build_page
            from ipexctl.show.page.render import render_run
            from ipexctl.verbs.common.pages import find_doctor_record, write_page

            saved = find_doctor_record(self._saved, self._state.run.hosts, self._state.at)
            write_page(self._directory / PAGE, render_run(build_page(self._state, report, saved, self._known)))
        except Exception as error:
            _log.debug("the run's page could not be made", exc_info=error)
            why = printable(str(error), 200) or type(error).__name__
            self._warn(f"the run's page could not be made ({why}); the run is not affected")
