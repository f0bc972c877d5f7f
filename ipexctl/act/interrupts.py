"""Signals to the controller: raised where a verb may be broken off, collected where it must not lose a byte."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ipexctl.model.errors import Interrupted


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP arrive here and nowhere else. While a verb works, a signal raises `Interrupted` in it.
    While a sink takes an event, or a verb is in `defer_signals`, signals wait to be taken."""

    def __init__(self) -> None:
        self.detach = threading.Event()  # somebody asked to let go of the run that is watched
        self.asking = threading.Event()  # a question has the terminal
        self.lost_loss = ""  # the sentence, once the loss of the run that is watched is no number
        self.slow = False  # the run that is watched has become slow
        self.arrived = False  # whether there was any signal yet
        self._waiting: list[int] = []
        self._raising = False
        self._deferring = False
        self._held_until = 0.0  # monotonic

    def install(self) -> None:
        """Takes over the process's signals; a SIGHUP that is ignored (nohup) stays ignored."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.handle_signal)

    def handle_signal(self, number: int, _frame: FrameType | None = None) -> None:
        """Takes a signal: raises it where that is allowed, else keeps it for those who wait for it."""
        self.arrived = True
        if time.monotonic() < self._held_until:
            return
        if self._raising and not self._deferring:
            self._raising = False
            raise Interrupted(number)
        self._waiting.append(number)

    def pop_pending(self) -> Interrupted | None:
        """Returns the oldest signal that is waiting."""
        return Interrupted(self._waiting.pop(0)) if self._waiting else None

    @property
    def has_pending_signal(self) -> bool:
        """Whether a signal waits for a verb that is not deferring."""
        return bool(self._waiting) and not self._deferring

    @contextmanager
    def raise_on_signal(self) -> Iterator[None]:
        self._raising = True
        try:
            yield
        finally:
            self._raising = False

    @contextmanager
    def defer_signals(self) -> Iterator[None]:
        before, self._deferring = self._deferring, True
        try:
            yield
        finally:
            self._deferring = before

    @contextmanager
    def ignore_signals(self, seconds: float) -> Iterator[None]:
        """For so long at most, signals count for nothing: what they ask for is being done. A storm of Ctrl-C is one."""
        self._held_until = time.monotonic() + seconds
        try:
            yield
        finally:
            self._held_until = 0.0
