"""How the script of this process ended, and how MPI is left where it must not be finalised."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from opcode import opname
from types import FrameType
from typing import Any, NoReturn

from ._calls import printable
from ._launch import ImpiError, finalises_itself, mpi

INTERRUPTED = 130  # what shells make of SIGINT, by which Python ends itself then


@dataclass(frozen=True)
class Ending:
    """A script that did not end well: in words, and the exit status of its process."""

    words: str
    status: int
    of_script: bool = False  # an error of the script itself, rather than one that a group or a user raised


class Exits:
    """Finds out at the end of Python how the script ended. `sys.excepthook` would not do: anybody may replace it, and
    Python does not call it for SystemExit, the status of which it has forgotten by then."""

    def __init__(self) -> None:
        self._main = main_frame()
        self._status: Any = None
        self._in_hook = False
        self._exit = sys.exit
        sys.exit = self._note

    def _note(self, status: Any = None, /) -> NoReturn:
        self._status, self._in_hook = status, self._printed()
        self._exit(status)

    def _printed(self) -> bool:
        """Whether Python has handed an exception that ended the script to sys.excepthook."""
        trace = getattr(sys, "last_traceback", None)  # of what Python, or C code, printed last
        return trace is not None and trace.tb_frame is self._main

    def ending(self) -> Ending | None:
        """What ended the script: an exception that nobody caught, or `sys.exit` with another status than 0. None where
        it ran to its end, or where that is not known (`raise SystemExit`)."""
        status = (self._status if isinstance(self._status, int) else int(self._status is not None)) & 0xFF
        if self._printed():
            error = sys.last_value
            if not self._in_hook:
                status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
            of_script = isinstance(error, Exception) and not isinstance(error, ImpiError)
            return Ending(describe_error(error), status, of_script)
        if self._main is None or returned(self._main) or not status:
            return None
        return Ending(f"exit status {status}", status)


def describe_error(error: BaseException | None) -> str:
    """The type and the words of an exception, as the store takes them: those of a file's name may be no UTF-8. Its
    `__str__` may fail: nothing may keep this process from its end, for which the others wait."""
    try:
        words = str(error)
    except Exception:
        words = "<exception str() failed>"  # as Python prints it
    return printable(f"{type(error).__name__}: {words}".rstrip(": ")[:500])


def main_frame() -> FrameType | None:
    """The outermost frame of the main thread: the script's."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def returned(frame: FrameType) -> bool:
    """Whether a frame that has ended did so by returning, rather than by an exception."""
    return opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")


def leave(ending: Ending | None) -> None:
    """Let this process end by itself without MPI_Finalize.

    Under mpirun alone one that failed ends by MPI_Abort with its own status, as the last thing it does: Intel MPI's
    would otherwise report only the ranks that it kills. ipexctl's guards see how each rank ends, and end the others.
    """
    if finalises_itself():
        mpi()._set_abort_status(ending.status if ending else 1)  # else it would wait for ever
    elif ending is not None and "IPEXCTL_RUN" not in os.environ:
        mpi()._set_abort_status(ending.status)
