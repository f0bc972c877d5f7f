"""Keys of the live screen, read one by one from the terminal without waiting for Enter.

The terminal's state is always put back: at `close`, and at exit. Ctrl-C and Ctrl-Z stay signals. A command in the
background, or without a terminal, has no keys and never touches the terminal."""

import atexit
import os
import re
import select
import signal
import termios
import tty
from typing import Any

_FUNCTION_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")  # arrows too


class Keys:
    """The keys that were pressed, while it is open. ``number`` is the terminal's file descriptor."""

    def __init__(self, number: int = 0) -> None:
        self._number = number
        self._saved: list[Any] | None = None

    @property
    def active(self) -> bool:
        return self._saved is not None

    def open(self) -> "Keys":
        """Starts reading where there is a terminal and we are in its foreground; else does nothing."""
        if not self.active and self._foreground():
            try:
                saved = termios.tcgetattr(self._number)
                tty.setcbreak(self._number, termios.TCSADRAIN)
            except (termios.error, OSError):
                return self
            self._saved = saved
            atexit.register(self.close)
        return self

    def poll(self) -> str:
        """The keys pressed since the last call. Never waits, and never reads in the background (SIGTTIN stops us)."""
        try:
            if not self.active or not self._foreground():
                return ""
            if termios.tcgetattr(self._number)[3] & termios.ICANON:  # the shell's own mode, after Ctrl-Z and fg
                tty.setcbreak(self._number, termios.TCSADRAIN)
            data = os.read(self._number, 64) if select.select([self._number], [], [], 0)[0] else b""
        except (termios.error, OSError):
            return ""
        return _FUNCTION_KEY.sub("", data.decode("utf-8", "ignore"))

    def close(self) -> None:
        """Puts the terminal back. Safe to call twice."""
        saved, self._saved = self._saved, None
        if saved is None:
            return
        atexit.unregister(self.close)
        # From the background this would stop us (SIGTTOU): held back, it is allowed.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if self._foreground():
                termios.tcsetattr(self._number, termios.TCSADRAIN, saved)
        except (termios.error, OSError):
            pass  # the terminal is gone: nothing is left to put back
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _foreground(self) -> bool:
        try:
            return os.isatty(self._number) and os.tcgetpgrp(self._number) == os.getpgrp()
        except OSError:
            return False
