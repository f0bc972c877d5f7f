"""Calls that may never end, in threads that no exit of this process waits for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


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
