"""Bounded patience: what makes no progress for too long is broken off."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

STALL_TIMEOUT = 60.0  # seconds a host may take to answer, or a transfer may rest


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
                self._stop()
                return
