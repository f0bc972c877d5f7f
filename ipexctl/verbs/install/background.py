"""Work of the controller in a thread, with its progress as events."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

from ipexctl.model.events import Event, Progress

T = TypeVar("T")
Tell = Callable[[int, int, str], None]  # (bytes done, bytes in all or 0, file name)


def run_in_background(step: str, work: Callable[[Tell], T], stop: threading.Event) -> Generator[Event, None, T]:
    """Runs ``work`` in a thread, with its progress as that of ``step`` (ten a second). Sets ``stop`` when the generator
    is closed."""
    events: queue.Queue[Event | None] = queue.Queue(256)
    future: Future[T] = Future()
    last = 0.0

    def tell(done: int, total: int, name: str) -> None:
        nonlocal last
        if time.monotonic() - last >= 0.1 and not events.full():
            last = time.monotonic()
            events.put(Progress("", step, done, total, "B", name))

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
