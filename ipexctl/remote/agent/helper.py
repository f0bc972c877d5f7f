"""A process beside the guard, for work that may hang on files of the system (a device, a dead server): the guard must
not. What it says the guard passes on to the keeper; it ends when the guard ends what it says to it, or dies."""

import os
import signal
import socket
from contextlib import suppress
from typing import Callable, Iterator, Optional

from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.messages import Message, RanksOutput
from ipexctl.protocol.paths import Role
from ipexctl.remote.agent import files, procs, rpc


class Helper(rpc.Wire):
    """The guard's end of the connection to such a process."""

    def __init__(self, sock: "socket.socket", process: "procs.Process") -> None:
        rpc.Wire.__init__(self, sock)
        self.process = process

    def receive(self) -> "Iterator[Message]":
        for message in rpc.Wire.receive(self):
            if not isinstance(message, (Unreadable, RanksOutput)):
                yield message

    def end(self, patience: float) -> "Iterator[Message]":
        """Yields its last words, for which it has so many seconds; then it is ended."""
        yield from self.finish(patience)
        procs.send_signal([self.process], signal.SIGKILL)
        self.close()


def start_helper(directory: str, name: str, nice: int, work: "Callable[[rpc.Wire], None]") -> "Optional[Helper]":
    """Starts a process that calls itself ``name`` and does ``work``, which gets its connection to the guard. None where
    no process can be had."""
    own, other = socket.socketpair()
    try:
        pid = os.fork()
    except OSError:
        own.close()
        other.close()
        return None
    if pid == 0:
        try:
            procs.die_with_parent()
            procs.rename_word(Role.GUARD.encode(), name.encode())
            procs.close_files(other.fileno())  # of the guard's: its lock and its connection are among them
            with suppress(OSError):
                os.nice(nice)
            files.run_then_record_crash(directory, name, lambda: work(rpc.Wire(other)))
        finally:
            os._exit(1)
    other.close()
    return Helper(own, procs.find_process(pid) or procs.Process(pid, -1, os.getpid(), "X"))
