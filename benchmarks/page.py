"""The page of a long run: its size, what it costs while the run goes on and at its end, and how long a browser needs.

Needs a checkout with its tests (the run comes from them) and Chromium.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from ground import arguments, conditions, read_load
from tables import Cell, Measurement, Table, publish

from ipexctl.decide.page.build import build_page
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.events import Stamped
from ipexctl.show.page.render import render_run
from ipexctl.verbs.common.known_errors import read_known_errors
from tests.browser.driver import start_browser
from tests.unit.page.runs import make_doctor, make_run
from tests.unit.show.streams import names

OPENED = "const [entry] = performance.getEntriesByType('navigation'); return entry.loadEventEnd"


def make_events(arguments: argparse.Namespace) -> Iterator[Stamped]:
    """The run; each fifth line of a rank comes with twenty others, so that no page could hold all of its output."""
    noise = b"".join(b"INFO worker %d: the queue of batches holds 12 of 64\n" % number for number in range(20))
    stream = make_run("good", arguments.ranks, arguments.hosts, arguments.hours * 3600.0, arguments.every)
    for number, stamped in enumerate(stream):
        event = stamped.event
        if isinstance(event, e.Output) and number % 5 == 0:
            stamped = replace(stamped, event=replace(event, data=event.data + noise))
        yield stamped


def main() -> None:
    given = arguments(__doc__ or "", ranks=64, hosts=8, hours=24, every=10, times=5).parse_args()
    said, load = conditions(), read_load()
    fold, count, spent = RunFold(), 0, 0.0
    for stamped in make_events(given):
        begun = time.process_time()
        fold.handle_event(stamped)
        spent += time.process_time() - begun
        count += 1
    begun = time.process_time()
    report = make_report(fold.state, read_known_errors)
    text = render_run(build_page(fold.state, report, make_doctor(names(given.hosts))))
    drawn = time.process_time() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows: list[list[Cell]] = [
        ["size of the page, MB", len(text.encode()) / 1e6],
        ["opened in headless Chromium, s", open_page(text, given.times)],
        ["CPU while the run goes on, s", spent],
        ["the same, % of a core", 100 * spent / (given.hours * 3600)],
        ["CPU at the end, s", drawn],
        ["memory, all in all, MiB", memory],
    ]
    subject = (
        f"{given.ranks} ranks on {given.hosts} hosts for {given.hours} hours, a step of each rank and a sample of each"
        f" host every {given.every} s: {count:,} events; opened {given.times} times (median)"
    )
    table = Table(["what", "measured"], rows, digits={"measured": 3})
    publish(Measurement("page", subject, said, [table], [load]), given)


def open_page(text: str, times: int) -> float:
    """Seconds until a browser has loaded it: the median of so many times."""
    with tempfile.TemporaryDirectory() as directory, start_browser(Path(directory) / "profile") as browser:
        page = Path(directory) / "page.html"
        page.write_text(text, encoding="utf-8")
        taken = []
        for _ in range(times):
            browser.show(page.as_uri())
            taken.append(browser.run(OPENED) / 1000)
    return float(median(taken))


if __name__ == "__main__":
    main()
