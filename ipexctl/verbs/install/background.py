"""Work of the controller in a thread, with its progress as events."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

from ipexctl.model.events import Event

T = TypeVar("T")
Emit = Callable[[Event], None]


def in_background(work: Callable[[Emit], T], stop: threading.Event) -> Generator[Event, None, T]:
    """Runs ``work`` in a thread and passes its events on (ten a second); stops it when the generator is closed."""
    events: queue.Queue[Event | None] = queue.Queue(256)
    results: list[T] = []
    errors: list[BaseException] = []
    last = [0.0]

    def tell(event: Event) -> None:
        now = time.monotonic()
        if now - last[0] >= 0.1 and not events.full():
            last[0] = now
            events.put(event)

    def body() -> None:
        try:
            results.append(work(tell))
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)
        events.put(None)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        while (event := events.get()) is not None:
            yield event
    except BaseException:
        stop.set()
        raise
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
