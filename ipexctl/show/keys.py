"""Keys of the live screen, read one by one from the terminal without waiting for Enter.

The terminal's state is always put back: at `close`, and at exit. Ctrl-C and Ctrl-Z stay signals. A command in the
background, or without a terminal, has no keys and never touches the terminal.
"""

from __future__ import annotations

import atexit
import os
import queue
import select
import signal
import termios
import threading
import time
import tty
from types import TracebackType
from typing import Any


class Keys:
    """``poll()`` gives the next key or None. ``number`` is the terminal's file descriptor."""

    def __init__(self, number: int = 0) -> None:
        self._number = number
        self._saved: list[Any] | None = None
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._wake: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        return self._saved is not None

    def open(self) -> Keys:
        """Starts reading where there is a terminal and we are in its foreground; else does nothing."""
        if self.active or not self._foreground():
            return self
        try:
            saved = termios.tcgetattr(self._number)
            tty.setcbreak(self._number, termios.TCSADRAIN)
        except (termios.error, OSError):
            return self
        self._saved = saved
        atexit.register(self.close)
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(self._wake[0],), name="keys", daemon=True)
        self._thread.start()
        return self

    def poll(self) -> str | None:
        """The next key that was pressed, or None. Never waits."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Puts the terminal back. Safe to call twice."""
        saved, self._saved = self._saved, None
        if saved is None:
            return
        atexit.unregister(self.close)
        if self._wake is not None:
            os.write(self._wake[1], b"x")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)
        # From the background this would stop us (SIGTTOU): held back, it is allowed.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if self._foreground():
                termios.tcsetattr(self._number, termios.TCSADRAIN, saved)
        except (termios.error, OSError):
            pass  # the terminal is gone: nothing is left to put back
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._wake is not None:
            for end in self._wake:
                os.close(end)
            self._wake = None

    def __enter__(self) -> Keys:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _foreground(self) -> bool:
        try:
            return os.isatty(self._number) and os.tcgetpgrp(self._number) == os.getpgrp()
        except OSError:
            return False

    def _hold(self) -> None:
        """After Ctrl-Z and fg the shell has put its own mode back: ours again."""
        if self.active and termios.tcgetattr(self._number)[3] & termios.ICANON:
            tty.setcbreak(self._number, termios.TCSADRAIN)

    def _read(self, wake: int) -> None:
        while True:
            try:
                ready, _, _ = select.select([self._number, wake], [], [], 1.0)
                if wake in ready:
                    return
                if not self._foreground():
                    time.sleep(0.5)  # reading now would stop us (SIGTTIN)
                    continue
                self._hold()
                if not ready:
                    continue
                data = os.read(self._number, 64)
            except (termios.error, OSError):
                return
            if not data:
                return
            if data[0] == 0x1B and len(data) > 1:
                continue  # an arrow or function key
            for key in data.decode("utf-8", "ignore"):
                self._queue.put(key)
