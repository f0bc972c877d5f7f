"""The page of a long run: its size, what it costs while the run goes on and at its end, and how long a browser needs.

.venv/bin/python -m benchmarks.page [--ranks 64] [--hosts 8] [--hours 24] [--every 10]
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

from ipexctl.decide.page.fold import PageBuilder
from ipexctl.decide.reports import Folding
from ipexctl.loop import read_known_errors
from ipexctl.model import events as e
from ipexctl.model.events import Stamped
from ipexctl.model.figures import read_figures
from ipexctl.model.harmless import find_harmless
from ipexctl.show.page.render import render_run
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds of a step and of a sample")
    parser.add_argument("--times", type=int, default=5, help="how often the page is opened")
    arguments = parser.parse_args()
    pages, reports, count, spent = PageBuilder(read_figures, find_harmless), Folding(read_known_errors), 0, 0.0
    for stamped in make_events(arguments):
        reports.handle_event(stamped)
        begun = time.process_time()
        pages.handle_event(stamped)
        spent += time.process_time() - begun
        count += 1
    begun = time.process_time()
    text = render_run(pages.build_page(reports.report(), make_doctor(names(arguments.hosts))))
    drawn = time.process_time() - begun
    print(f"{arguments.ranks} ranks on {arguments.hosts} hosts, {arguments.hours:g} h: {count:,} events")
    print(f"page           {len(text.encode()) / 1e6:.1f} MB")
    share = spent / (arguments.hours * 3600)
    print(f"while it runs  {spent:.1f} s of CPU, {1e6 * spent / count:.1f} µs an event, {share:.3%} of a core")
    print(f"at its end     {drawn:.1f} s of CPU")
    print(f"memory         {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")
    with tempfile.TemporaryDirectory() as directory, start_browser(Path(directory) / "profile") as browser:
        page = Path(directory) / "page.html"
        page.write_text(text, encoding="utf-8")
        took = []
        for _ in range(arguments.times):
            browser.show(page.as_uri())
            took.append(browser.run(OPENED) / 1000)
        print(f"opened in      {median(took):.2f} s ({min(took):.2f} to {max(took):.2f}), headless Chromium")


if __name__ == "__main__":
    main()
