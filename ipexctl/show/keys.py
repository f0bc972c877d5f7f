"""Keys of the live screen, read one by one from the terminal without waiting for Enter.

The terminal's state is always put back: at `close`, and at exit. Ctrl-C and Ctrl-Z stay signals. A command in the
background, or without a terminal, has no keys and never touches the terminal. What is pasted is no key: the terminal is
asked to mark it (bracketed paste). More characters at once than fingers type were pasted, too: they are left where they
are, for the shell, and there are no keys any more; the terminal does not echo them into the screen."""

import atexit
import fcntl
import os
import re
import signal
import struct
import termios
import time
import tty
from typing import Any

# Characters, and as many more for each second: beyond both they were pasted. A key that is held down sends up to 3
# characters 30 times a second.
BURST, RATE = 12, 100
_MARK, _UNMARK = b"\x1b[?2004h", b"\x1b[?2004l"  # asks the terminal to mark what is pasted, or not to
_PASTE = re.compile(r"(?:\x1b\[200~|\A\0).*?(?:\x1b\[201~|(\Z))", re.DOTALL)
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_NAMES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\t": "tab", "\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\b": "backspace",
}  # fmt: skip


class PressedKeys:
    """The keys that were pressed, while it is open. ``number`` is the terminal's file descriptor."""

    def __init__(self, number: int = 0) -> None:
        self._number = number
        self._saved: list[Any] | None = None
        self.pasted = False
        self._pasting = ""  # a mark, while the end of what is pasted is still to come
        self._polled = time.monotonic()

    @property
    def active(self) -> bool:
        return self._saved is not None

    def open(self) -> "PressedKeys":
        """Starts reading where there is a terminal and we are in its foreground; else does nothing."""
        if not self.active and self._foreground():
            try:
                saved = termios.tcgetattr(self._number)
                tty.setcbreak(self._number, termios.TCSADRAIN)
                os.write(self._number, _MARK)
            except (termios.error, OSError):
                return self
            self._saved, self._polled = saved, time.monotonic()
            atexit.register(self.close)
        return self

    def poll(self) -> list[str]:
        """The keys pressed since the last call: characters, or names as ``up`` and ``enter``; other function keys are
        left out. Never waits, and never reads in the background (SIGTTIN stops us)."""
        try:
            if not self.active or self.pasted or not self._foreground():
                return []
            if termios.tcgetattr(self._number)[3] & termios.ICANON:  # the shell's own mode, after Ctrl-Z and fg
                tty.setcbreak(self._number, termios.TCSADRAIN)
            waiting = struct.unpack("i", fcntl.ioctl(self._number, termios.FIONREAD, bytes(4)))[0]
            since, self._polled = self._polled, time.monotonic()
            if waiting > BURST + RATE * (self._polled - since):
                self.pasted = True
                return []
            data = os.read(self._number, waiting) if waiting else b""
        except (termios.error, OSError):
            return []
        text = self._pasting + data.decode("utf-8", "ignore")
        self._pasting = "\0" if any(paste[1] is not None for paste in _PASTE.finditer(text)) else ""
        keys = [match.group() for match in _KEY.finditer(_PASTE.sub("", text))]
        return [_NAMES.get(key, key) for key in keys if key in _NAMES or len(key) == 1]

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
                os.write(self._number, _UNMARK)
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
