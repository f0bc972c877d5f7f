"""``debug.log``: what one command was asked, what it executed on hosts, and the traceback of an error of our own.

Modules write to loggers below ``ipexctl`` (Python's `logging`); `DebugLog` is their handler while a command goes on."""

import logging
import os
import platform
import shlex
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ipexctl import __version__
from ipexctl.model.errors import Exit, UnwatchedRunError, UsageError
from ipexctl.model.text import printable
from ipexctl.store.masking import Masker
from ipexctl.store.private_files import claim_private_directory

NAME = "debug.log"
_LIMIT = 1 << 20  # bytes of the log that several commands share; what is older becomes debug.log.1
_LINE = 4000  # characters of one line
_WAITING = 2000  # records kept until the log has a file
_LIBRARIES = ("typer", "rich", "msgspec", "pydantic", "fabric", "paramiko", "cryptography", "uv")


class DebugLog(logging.Handler):
    """The handler of one command's log records: a file (mode 0600), and ``write``, for records of the level that was
    set for the logger ``ipexctl`` beforehand (``-v``: INFO, ``-vv``: DEBUG; none is shown without).

    The file is ``shared`` (of all commands that save no run) until `set_directory` names another. Nothing is created
    before a command is executed on a host (level INFO) or an error is logged: ``hosts`` and ``--help`` leave no trace.
    A log that cannot be written ends nothing."""

    def __init__(self, shared: Path, *, write: Callable[[str], object], environ: Mapping[str, str]) -> None:
        super().__init__(logging.DEBUG)
        self.path: Path | None = None  # of the file, once it exists
        self._shared = shared
        self.shown = logging.NOTSET  # least level of the records that are shown; none without
        self._write = write
        self.masker = Masker(environ, sys.argv)
        self._waiting: deque[str] = deque(maxlen=_WAITING)
        self._file = -1
        self._failed = False
        self.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))

    def __enter__(self) -> "DebugLog":
        logger = logging.getLogger("ipexctl")
        self.shown = logger.level
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)
        return self

    def __exit__(self, *raised: object) -> None:
        logger = logging.getLogger("ipexctl")
        logger.removeHandler(self)
        logger.setLevel(self.shown)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def format(self, record: logging.LogRecord) -> str:
        """Masked, and in printable characters only; every line ends with a newline."""
        lines = self.masker.mask_text(super().format(record)).splitlines()
        return "".join(f"{line[:_LINE] if line.isprintable() else printable(line, _LINE)}\n" for line in lines)

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if self.shown and record.levelno >= self.shown:
            self._write(text)
        if self._file >= 0:
            self._append_text(text)
        elif not self._failed:
            self._waiting.append(text)
            if record.levelno >= logging.INFO:
                self._open_file(self._shared)

    def set_directory(self, directory: Path) -> None:
        """From now on the log is in this directory, with all that was logged before."""
        self.acquire()
        try:
            self._open_file(directory / NAME)
        finally:
            self.release()

    def log_internal_error(self, error: Exception, command: str) -> UsageError:
        """Logs the traceback; what to tell the user: one sentence, what may go on, and the log's path."""
        logging.getLogger(__name__).error("internal error in %s", command, exc_info=error)
        cause = error.__cause__ if isinstance(error, UnwatchedRunError) and error.__cause__ else error
        what = printable(self.masker.mask_text(f"{type(cause).__name__}: {cause}"), 400)
        hint = f"the traceback is in {printable(str(self.path), 400)}" if self.path else "-v shows the traceback"
        sentence = f"internal error in {command}: {what}"
        reasons = []
        if isinstance(error, UnwatchedRunError):
            reasons, hint = [hint], error.hint
        return UsageError(sentence, reasons=reasons, hint=hint, exit=Exit.INTERNAL, code="internal")

    def _open_file(self, path: Path) -> None:
        try:
            if path == self._shared:
                claim_private_directory(path.parent)
                if path.exists() and path.stat().st_size > _LIMIT:
                    path.replace(path.with_name(f"{NAME}.1"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            number = os.open(path, flags, 0o600)
            os.fchmod(number, 0o600)
        except (OSError, UsageError):
            self._failed = self._file < 0
            return
        if self._file >= 0:
            os.close(self._file)
        self._file, self.path = number, path
        versions = ", ".join(f"{name} {version}" for name, version in list_versions().items())
        argv = printable(shlex.join(self.masker.mask_words(sys.argv)), _LINE)
        self._append_text(f"{versions}\nargv: {argv}\n")
        while self._waiting:
            self._append_text(self._waiting.popleft())

    def _append_text(self, text: str) -> None:
        with suppress(OSError):  # a full disk: the saved run counts and reports its own losses
            os.write(self._file, text.encode("utf-8", "replace"))


def list_versions() -> dict[str, str]:
    """The versions of what ipexctl runs on, by name."""
    versions = {"ipexctl": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for library in _LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = "missing"
    return versions
