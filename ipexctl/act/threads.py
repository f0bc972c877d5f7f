"""Threads that no exit of this process waits for: calls that may never end; and a timer for those without progress."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

from ipexctl.model.hosts import Channel

T = TypeVar("T")
STALL_TIMEOUT = 60.0  # seconds a host may take to answer, or a transfer may rest


def start_thread(call: Callable[[], T]) -> Future[T]:
    """Calls in a thread of its own; what it returns, or raises, is that of the future."""
    future = Future[T]()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised again in the caller's thread
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def feed_input(channel: Channel, data: bytes) -> None:
    """Writes a command's whole input in a thread of its own: a host need not take any of it, or not before its output
    is read. The status of a command that ends early tells why; a lost link is met by the reader."""

    def write() -> None:
        channel.write(data)
        channel.end_input()

    start_thread(write)


class StallTimer(AbstractContextManager["StallTimer"]):
    """Calls ``stop`` once when it was not ``reset`` for ``patience`` seconds; ``stalled`` tells so afterwards."""

    def __init__(self, stop: Callable[[], None], patience: float = STALL_TIMEOUT) -> None:
        self._stop = stop
        self.patience = patience
        self._until = time.monotonic() + patience
        self._over = threading.Event()
        self.stalled = False
        threading.Thread(target=self._run_timer_thread, name="stall timer", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def reset(self, patience: float = STALL_TIMEOUT) -> None:
        """It goes on; the next sign of life is due in ``patience`` seconds."""
        self.patience = patience
        self._until = time.monotonic() + patience

    def _run_timer_thread(self) -> None:
        while not self._over.wait(max(0.05, min(1.0, self._until - time.monotonic()))):
            if time.monotonic() > self._until:
                self.stalled = True
                with suppress(EOFError, OSError):  # the connection is lost already
                    self._stop()
                return
