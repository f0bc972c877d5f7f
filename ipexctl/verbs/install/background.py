"""Downloads wheels in a thread, with the progress as events."""

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from ipexctl.act.packages.download import download_wheels
from ipexctl.act.packages.sources import Sources
from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.events import Event, HostFailed, Progress, StepStarted, Workflow
from ipexctl.model.wheels import Wheel

FETCH = "fetch the wheels"


def fetch_wheels(
    wheels: Sequence[Wheel], cache: Path, sources: Sources, stop: threading.Event
) -> Workflow[dict[str, Path] | Failure]:
    """Downloads wheels into the cache, as a step that the caller ends. Returns them by package, or the last failure.
    Sets ``stop`` when the generator is closed."""
    yield StepStarted("", FETCH)
    events = queue.SimpleQueue[Event | None]()
    future = Future[dict[str, Path]]()
    last = 0.0

    def tell(done: int, total: int, name: str) -> None:
        """Passes the progress on, ten times a second."""
        nonlocal last
        if time.monotonic() - last >= 0.1:
            last = time.monotonic()
            events.put(Progress("", FETCH, done, total, "B", name))

    def download() -> None:
        try:
            future.set_result(download_wheels(wheels, cache, sources, stop, tell))
        except BaseException as error:  # raised again in the caller's thread
            future.set_exception(error)
        events.put(None)

    threading.Thread(target=download, daemon=True).start()
    try:
        while (event := events.get()) is not None:
            yield event
    except BaseException:
        stop.set()
        raise
    try:
        return future.result()
    except UsageError as error:
        failures = [Failure("", Kind.STEP, reason, code="wheel") for reason in error.reasons]
        yield from map(HostFailed, failures)
        return failures[-1]
