"""The screen of a saved run as an SVG picture, for docs/images: at some moment, or what stays at the end.

.venv/bin/python tools/picture.py RUN [SECONDS] > docs/images/NAME.svg
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.loop import get_state_directory
from ipexctl.model import events as e
from ipexctl.model.answers import is_dry
from ipexctl.model.events import Stamped
from ipexctl.model.reports import CommandReport
from ipexctl.show import screens, typeset
from ipexctl.show.pending_failures import PendingFailures
from ipexctl.show.rank_log import RankLogs
from ipexctl.show.run_frame import draw_run
from ipexctl.show.steps_frame import draw_steps
from ipexctl.show.view import View
from ipexctl.store.masking import Masker
from ipexctl.verbs.run.replay import find_saved_run, read_saved_run


def picture(
    events: Iterable[Stamped],
    *,
    width: int = 100,
    height: int = 24,
    at: float | None = None,
    title: str = "ipexctl",
    report: CommandReport | None = None,
) -> str:
    """SVG text. ``at`` is in seconds after the first event; without it, the verb's answer and the report are drawn.

    The same events give the same picture. No font and nothing else is fetched by those who look at it.
    """
    console = Console(
        record=True,
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    fold, dry = RunFold(), False
    state = fold.state
    view = View(state, RankLogs(), keys=True, can_detach=True)
    failures = PendingFailures()
    first: float | None = None
    for stamped in events:
        first = stamped.at if first is None else first
        if at is not None and stamped.at - first > at:
            break
        fold.handle_event(stamped)
        view.logs.add_lines(state)
        failures.update(state, stamped.at)
        if isinstance(stamped.event, e.Answer):
            dry = is_dry(stamped.event.value)
            for item in screens.format_answer(stamped.event.value) if at is None else ():
                console.print(item)
    if at is not None:
        now = max(state.at, (first or 0.0) + at)
        steps = state.attempt is None
        console.print(draw_steps(state, width, height, now) if steps else draw_run(view, width, height, now))
    for line in typeset.format_failures(failures.pop_failures()) if at is None else ():
        console.print(line)
    for item in screens.format_ending(report, dry=dry) if at is None and report else ():
        console.print(item)
    for item in screens.format_next_steps(report, None, failures.pop_hints()) if at is None else ():
        console.print(item)
    svg = console.export_svg(title=typeset.text(title).plain, unique_id="ipexctl")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def draw_saved_run(directory: Path, *, width: int = 100, height: int = 24, at: float | None = None) -> str:
    """The screen of a saved run ``at`` so many seconds after its beginning (without: at its end), as SVG text."""
    events = list(read_saved_run(directory, Masker({})))
    fold = RunFold()
    for stamped in events:
        fold.handle_event(stamped)
    title = f"ipexctl replay {directory.name}"
    return picture(events, width=width, height=height, at=at, title=title, report=make_report(fold.state))


if __name__ == "__main__":
    run, *seconds = sys.argv[1:]
    moment = float(seconds[0]) if seconds else None
    sys.stdout.write(draw_saved_run(find_saved_run(get_state_directory() / "runs", run), at=moment))
