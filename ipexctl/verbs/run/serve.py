"""``ipexctl watch``: the page of a run while it goes on, for browsers on this machine."""

import threading
import time
import webbrowser
from collections.abc import Generator, Mapping
from contextlib import closing

from ipexctl.act.context import Context
from ipexctl.act.page_server import ServedPage, parse_address, serve_page
from ipexctl.decide.reports import Folding
from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.errors import Exit
from ipexctl.model.events import Answer, Ended, Event, HostFailed, Message, Stamped
from ipexctl.model.hosts import Inventory
from ipexctl.show.masking import Masker
from ipexctl.verbs.common.pages import find_doctor_record
from ipexctl.verbs.run.manage import find_watcher
from ipexctl.verbs.run.page_sink import ReadErrors
from ipexctl.verbs.run.report import make_page_builder

_LEAST = 2.0  # seconds between two drawings, for any number of viewers
_SHARE = 5  # and at least so many times as long as the last one took
_FAREWELL = 6.0  # seconds after the run in which open pages get its end


class LivePage:
    """The page of a running run: events come from one thread, requests of viewers from others. A request draws it, at
    most every `_LEAST` seconds: viewers cost the run nothing, and many cost this machine no more than one."""

    def __init__(self, context: Context, environ: Mapping[str, str], known: ReadErrors) -> None:
        self._state, self._clock = context.state, context.clock
        self._pages, self._reports, self._masker = make_page_builder(known), Folding(known), Masker(environ)
        self._events = threading.Lock()  # of what events change
        self._drawing = threading.Lock()
        self._count = 0
        self._drawn = ServedPage("", b"", b"")
        self._drawn_count = -1
        self._drawn_at = self._took = 0.0

    def handle_event(self, event: Event) -> None:
        with self._events:
            at = self._clock()
            self._count += 1
            self._reports.handle_event(Stamped(at, event))
            for masked in self._masker.mask_event(event):
                self._pages.handle_event(Stamped(at, masked))

    def draw(self) -> ServedPage:
        """The page as it is, or was a moment ago."""
        with self._drawing:
            begun = time.monotonic()
            wait = max(_LEAST, _SHARE * self._took)
            if self._drawn.tag and (self._count == self._drawn_count or begun < self._drawn_at + wait):
                return self._drawn
            self._drawn = self._draw_anew()
            self._took, self._drawn_at = time.monotonic() - begun, begun
            return self._drawn

    def finish(self) -> None:
        """Makes the next request draw the final page."""
        with self._drawing:
            self._drawn_at, self._took = -_LEAST, 0.0

    def _draw_anew(self) -> ServedPage:
        from ipexctl.show.page.render import render_part, render_run

        with self._events:
            self._drawn_count = self._count
            if not self._pages.started:
                waiting = render_waiting()
                return ServedPage("waiting", waiting.encode(), waiting.encode())
            page = self._pages.build_page(self._reports.report(), find_doctor_record(self._state, self._pages.hosts))
        text = render_run(page, live=True)
        return ServedPage(str(self._drawn_count), text.encode(), render_part(text).encode())


def render_waiting() -> str:
    """What is shown before anything of the run was read."""
    from ipexctl.show.page.render import render_template

    return render_template("waiting", live=True)


def watch(
    prefix: str | None,
    inventory: Inventory,
    context: Context,
    environ: Mapping[str, str],
    known: ReadErrors,
    *,
    serve: str,
    show: bool,
) -> Generator[Event, None, None]:
    """Serves the page of a run to its end: one more watcher of the run, which sends no orders, for all viewers.

    ``serve`` is an address of loopback and a port. Raises `UsageError`."""
    address = parse_address(serve)
    _, watcher = yield from find_watcher("watch", prefix, inventory, context, newest=True)
    if watcher is None:
        return
    page = LivePage(context, environ, known)
    with serve_page(address, page.draw) as url:
        yield Message(f"run {watcher.running.run} is shown at {url} (Ctrl-C ends this, not the run)", code="serving")
        if show and not webbrowser.open(url):
            yield Message("no browser could be started", "warning", code="browser")
        with closing(watcher.read_files(follow=True)) as events:
            for event in events:
                page.handle_event(event)
                if isinstance(event, HostFailed) or (isinstance(event, Message) and event.level == "warning"):
                    yield event
        if watcher.run_ended:
            page.handle_event(watcher.run_ended)
        page.handle_event(Ended("run", Exit.OK))
        page.finish()
        yield Message("the run has ended; its page is served for a moment more", code="over")
        time.sleep(_FAREWELL)
    yield Answer(RunAnswer(watcher.running.run, watcher.run_ended.reason if watcher.run_ended else None, False))
    yield Ended("watch", watcher.exit)
