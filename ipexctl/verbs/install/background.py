"""Downloads wheels in a thread, with the progress as events."""

import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from ipexctl.act.packages.download import Tell, download_wheels
from ipexctl.act.packages.sources import Sources
from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.events import Event, HostFailed, Progress, StepStarted
from ipexctl.model.wheels import Wheel

FETCH = "fetch the wheels"


def _run_in_background(
    work: Callable[[Tell], dict[str, Path]], stop: threading.Event
) -> Generator[Event, None, dict[str, Path]]:
    """Runs ``work`` in a thread, with its progress as that of `FETCH` (ten a second). Sets ``stop`` when the generator
    is closed."""
    events: queue.Queue[Event | None] = queue.Queue(256)
    future: Future[dict[str, Path]] = Future()
    last = 0.0

    def tell(done: int, total: int, name: str) -> None:
        nonlocal last
        if time.monotonic() - last >= 0.1 and not events.full():
            last = time.monotonic()
            events.put(Progress("", FETCH, done, total, "B", name))

    def body() -> None:
        try:
            future.set_result(work(tell))
        except BaseException as error:  # raised again in the caller's thread
            future.set_exception(error)
        events.put(None)

    threading.Thread(target=body, daemon=True).start()
    try:
        while (event := events.get()) is not None:
            yield event
    except BaseException:
        stop.set()
        raise
    return future.result()


def fetch_wheels(
    wheels: Sequence[Wheel], cache: Path, sources: Sources, stop: threading.Event
) -> Generator[Event, None, dict[str, Path] | Failure]:
    """Downloads wheels into the cache, as a step that the caller ends. Returns them by package, or the last failure."""
    yield StepStarted("", FETCH)
    try:
        return (yield from _run_in_background(partial(download_wheels, wheels, cache, sources, stop), stop))
    except UsageError as error:
        failures = [Failure("", Kind.STEP, reason, code="wheel") for reason in error.reasons]
        yield from map(HostFailed, failures)
        return failures[-1]
