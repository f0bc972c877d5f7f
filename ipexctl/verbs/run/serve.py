"""``ipexctl watch``: the page of a run while it goes on, drawn anew for browsers on this machine."""

import threading
import time
from contextlib import closing

from ipexctl.act.context import Context
from ipexctl.act.page_server import serve_page
from ipexctl.model.errors import Exit
from ipexctl.model.events import Ended, Event, HostFailed, Message, RunEnded, Stamped, Workflow, get_event_time
from ipexctl.model.hosts import Inventory
from ipexctl.show.page.render import render_run
from ipexctl.verbs.common.pages import open_page, write_redirect
from ipexctl.verbs.run.manage import find_watcher
from ipexctl.verbs.run.report import MaskedFold

_DRAW_INTERVAL_FACTOR = 6  # times as long as a drawing took is the time to the next one, for any number of viewers


class LivePage:
    """The page of a running run: events come from one thread, requests of viewers from others."""

    def __init__(self, fold: MaskedFold, context: Context) -> None:
        self._fold, self._context, self._lock = fold, context, threading.Lock()
        self._drawn = '<meta http-equiv="refresh" content="2"><p>Nothing of the run was read yet.'
        self._next = 0.0

    def handle_event(self, event: Event) -> None:
        with self._lock:
            self._fold.handle_event(Stamped(get_event_time(event, self._context.clock()), event))
            self._next = 0.0 if isinstance(event, RunEnded | Ended) else self._next

    def draw(self) -> str:
        """Draws the page of all events so far, or gives that of a moment ago."""
        with self._lock:
            begun = time.monotonic()
            if self._fold.state.run.attempts and begun >= self._next:
                page = self._fold.build_page(self._context.state)
                self._drawn = render_run(page, renew=page.live)
                self._next = begun + _DRAW_INTERVAL_FACTOR * (time.monotonic() - begun)
            return self._drawn


def watch(
    prefix: str | None, inventory: Inventory, context: Context, page: LivePage, address: tuple[str, int], *, show: bool
) -> Workflow[None]:
    """Serves the page of a run to its end: one more watcher of it, which sends no orders. Raises `UsageError`."""
    _, watcher = yield from find_watcher("watch", prefix, inventory, context, newest=True)
    if watcher is None:
        return
    with (
        serve_page(address, page.draw) as url,
        closing(watcher.read_files(follow=True)) as events,
        write_redirect(url, context.state) as redirect,
    ):
        yield Message(f"run {watcher.running.run} is shown at {url} (Ctrl-C ends this, not the run)", code="serving")
        if show:
            yield from open_page(redirect)
        for event in events:
            page.handle_event(event)
            if isinstance(event, HostFailed) or (isinstance(event, Message) and event.level == "warning"):
                yield event
        page.handle_event(watcher.run_ended or Ended("run", Exit.OK))
        time.sleep(6.0)  # open pages get its end
    yield from watcher.report_end("watch", False)
