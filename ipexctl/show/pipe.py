"""Standard output or error of ours as a place that may vanish: a reader that went away never ends a command."""

import errno
import io
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, TextIO

# For terminals whose locale has ASCII only: signs of ours that mean something, each as wide as before.
_ASCII = str.maketrans(
    "✓✗·│▌◀›‹─━…×≠±−–←→↔↑↓▏▎▍▋▊▉⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏▁▂▃▄▅▆▇█«»‘’“”µ≥≤├╰╭└",
    "+x-||<><-=~x!~--<>=^v||||||" + 10 * "*" + "_.-~=+*#" + "<>''\"\"u><++++",
)


def choose_terminal_encoding(environ: Mapping[str, str]) -> str:
    """ "ascii" where the user's terminal shows no other signs: its locale is C, or it is a dumb one; else "".

    Python writes UTF-8 under LC_ALL=C, and under LANG=C it sets LC_CTYPE itself (PEP 538 and 540): its encoding does
    not say what the terminal can show."""
    coerced = environ.get("LC_CTYPE", "") in ("", "C.UTF-8", "C.utf8", "UTF-8")
    locale = environ.get("LC_ALL") or (environ.get("LANG", "") if coerced else environ["LC_CTYPE"])
    return "ascii" if locale in ("C", "POSIX") or environ.get("TERM") == "dumb" else ""


_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def describe_full(error: Exception | None) -> str | None:
    """Of an error that says that a file system is full, what the system says; else None."""
    return error.strerror if isinstance(error, OSError) and error.errno in _FULL_DISK_ERRORS else None


class Pipe(io.TextIOBase):
    """Takes bytes and text, and drops them quietly once the reader is gone.

    Text goes out in ``encoding``; what it cannot hold becomes a sign of ASCII or a question mark. ``error`` is why
    nothing is written any more: a broken pipe, a hung-up terminal, a full disk. Also good as a file for Rich."""

    encoding: str = "utf-8"
    error: OSError | ValueError | None = None

    def __init__(self, stream: TextIO | IO[bytes], terminal: str = "") -> None:
        """``terminal`` is the encoding where the stream is a terminal; empty: that of the stream."""
        self._stream = stream
        self._out: Any = getattr(stream, "buffer", stream)
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        if terminal and self.isatty():
            self.encoding = terminal

    @property
    def loss(self) -> str | None:
        """Why text is missing that somebody waits for: a file system is full. None where the reader went away."""
        return describe_full(self.error)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False

    def columns(self) -> int:
        """How wide the terminal is; 0 where there is none."""
        if not self.isatty():
            return 0
        columns = os.environ.get("COLUMNS", "")
        try:
            return int(columns) if columns.isdigit() else os.get_terminal_size(self.fileno()).columns
        except (OSError, ValueError):
            return 80

    def fileno(self) -> int:
        return self._stream.fileno()

    def encode(self, text: str) -> bytes:
        """The bytes of a text of ours for this reader."""
        shown = text if "utf" in self.encoding.lower() else text.translate(_ASCII)
        return shown.encode(self.encoding, "replace")

    def write(self, text: str) -> int:
        self.send(self.encode(text))
        return len(text)

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self._try_call(self._out.write, data)

    def flush(self) -> None:
        self._try_call(self._out.flush)

    def _try_call(self, call: Callable[..., object], *data: bytes) -> None:
        if self.error is not None:
            return
        try:
            call(*data)
        except (OSError, ValueError) as error:
            self.error = error
            # What Python still holds for this descriptor would fail again at exit, with a trace: it goes to /dev/null.
            with suppress(OSError, ValueError, AttributeError):
                number = self._stream.fileno()
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, number)
                os.close(null)
