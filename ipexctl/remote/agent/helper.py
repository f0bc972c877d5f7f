"""A process beside the guard, for work that may hang on files of the system (a device, a dead server): the guard must
not. What it writes into its pipe the guard passes on to the keeper; it ends when the guard closes the other pipe, or
dies."""

import os
import select
import signal
import time
from contextlib import suppress
from typing import Any, Callable, Generic, Iterator, List, Optional, TypeVar

from ipexctl.protocol.codec import Kinds, Unreadable
from ipexctl.protocol.paths import Role
from ipexctl.remote.agent import files, procs

T = TypeVar("T")


class Helper(Generic[T]):
    """The guard's end. ``kinds`` are those of what the process writes."""

    def __init__(self, process: "procs.Process", output: int, control: int, kinds: "Kinds[T]") -> None:
        self.process, self.output, self.control, self.kinds = process, output, control, kinds
        self.unread = self.unsent = b""
        self.open = True
        os.set_blocking(output, False)
        os.set_blocking(control, False)

    def send(self, line: bytes = b"") -> None:
        """Passes a line on to it, as soon as it reads: what waits is sent by the next call. Raises nothing."""
        self.unsent += line and line + b"\n"
        with suppress(OSError):
            while self.unsent:
                self.unsent = self.unsent[os.write(self.control, self.unsent) :]

    def receive(self) -> "List[T]":
        """Returns what it has written since the last call. Raises nothing."""
        while self.open:
            try:
                piece = os.read(self.output, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self.unread += piece
            self.open = bool(piece)
        *lines, self.unread = self.unread.split(b"\n")
        values = map(self.kinds.read, lines)
        return [value for value in values if not isinstance(value, Unreadable)]

    def finish(self, patience: float) -> "Iterator[T]":
        """Yields its last words, for which it has so many seconds; then it is ended."""
        os.close(self.control)
        until = time.monotonic() + patience
        while self.open and time.monotonic() < until:
            select.select([self.output], [], [], max(0.0, until - time.monotonic()))
            yield from self.receive()
        procs.send_signal([self.process], signal.SIGKILL)
        os.close(self.output)


def start_helper(
    directory: str, name: str, nice: int, kinds: "Kinds[Any]", work: "Callable[[], None]"
) -> "Optional[Helper[Any]]":
    """Starts a process that calls itself ``name`` and does ``work``: it reads from 0, and writes to 1. None where no
    process can be had."""
    output, output_end = os.pipe()
    control_end, control = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        for number in (output, output_end, control, control_end):
            os.close(number)
        return None
    if pid == 0:
        try:
            _run_helper(directory, name, nice, work, control_end, output_end)
        finally:
            os._exit(1)
    os.close(output_end)
    os.close(control_end)
    return Helper(procs.find_process(pid) or procs.Process(pid, -1, os.getpid(), "X"), output, control, kinds)


def _run_helper(directory: str, name: str, nice: int, work: "Callable[[], None]", control: int, output: int) -> None:
    """The process: has no other file of the guard's open, among them its lock and its connection."""
    procs.die_with_parent()
    procs.rename_word(Role.GUARD.encode(), name.encode())
    os.dup2(control, 0)
    os.dup2(output, 1)
    procs.close_files()
    with suppress(OSError):
        os.nice(nice)
    files.run_then_record_crash(directory, name, work)
