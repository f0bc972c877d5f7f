"""The sink that leaves a page in the record of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.decide.diagnosis.known_errors import KnownErrors
from ipexctl.model.events import Output, RankEnded, RankStage, Stamped
from ipexctl.model.reports import CommandReport
from ipexctl.model.text import printable

if TYPE_CHECKING:
    from ipexctl.decide.page.fold import PageBuilder

PAGE = "report.html"
ReadErrors = Callable[[], KnownErrors]
_log = logging.getLogger(__name__)


class PageSink:
    """Leaves `PAGE` in a run's record when the command ends. What it cannot do is one warning: a page never fails a
    run. Events cost it what their lines cost to read; nothing is drawn before the end.

    What reads events is imported with the first event of a rank: before that, somebody waits for the run to start."""

    def __init__(self, directory: Path, state: Path, warn: Callable[[str], None], known: ReadErrors = tuple) -> None:
        self._directory, self._state, self._warn, self._known = directory, state, warn, known
        self._builder: PageBuilder | None = None
        self._early: list[Stamped] = []  # events before the first of a rank
        self._gave_up = False

    def handle_event(self, stamped: Stamped) -> None:
        if self._gave_up:
            return
        try:
            if self._builder is None and not isinstance(stamped.event, Output | RankStage | RankEnded):
                self._early.append(stamped)
            else:
                self._get_builder().handle_event(stamped)
        except Exception as error:
            self._give_up(error)

    def close(self, report: CommandReport | None = None) -> None:
        if self._gave_up or report is None:
            return
        try:
            builder = self._get_builder()
            if not builder.started:
                return
            from ipexctl.show.page.render import render_run
            from ipexctl.verbs.common.pages import find_doctor_record, write_page

            page = builder.build_page(report, find_doctor_record(self._state, builder.hosts))
            write_page(self._directory / PAGE, render_run(page))
        except Exception as error:
            self._give_up(error)

    def _get_builder(self) -> PageBuilder:
        """The builder, which has the events so far."""
        if self._builder is None:
            from ipexctl.verbs.run.report import make_page_builder

            self._builder = make_page_builder(self._known)
            for stamped in self._early:
                self._builder.handle_event(stamped)
            self._early = []
        return self._builder

    def _give_up(self, error: Exception) -> None:
        self._builder, self._gave_up = None, True
        _log.debug("the run's page could not be made", exc_info=error)
        why = printable(str(error), 200) or type(error).__name__
        self._warn(f"the run's page could not be made ({why}); the run is not affected")
