"""Running a command to its end over a channel: capped outputs, one deadline. The same for local and SSH links."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from ipexctl.model.commands import Command, Completed
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Stream
from ipexctl.model.links import LinkError

# After the command itself has ended, its outputs may be held open by a process it left in the background.
_QUIET = 0.5  # seconds of silence after which such outputs count as ended
_SMALL = 32 << 10  # bytes of input that fit into any pipe or window, so that writing cannot block on reading


_log = logging.getLogger(__name__)


class CommandLog:
    """One command on a host in debug.log: a line when it starts, and one when its channel is closed."""

    def __init__(self, host: str, command: Command) -> None:
        self._host, self._begun = host, time.monotonic()
        self._line = str(command)[:500]
        self._ended = False
        _log.debug("%s: starts: %s", host, self._line)

    def end(self, status: int | None) -> None:
        """``status`` is None or negative where the end of the command was not seen. Only the first call counts."""
        if not self._ended:
            self._ended = True
            seen = "not known" if status is None or status < 0 else status
            _log.info("%s: status %s after %.3f s: %s", self._host, seen, time.monotonic() - self._begun, self._line)


class ReadableCommand(Protocol):
    """A running command that can be read with a time limit."""

    def read(self, timeout: float | None) -> list[tuple[Stream, bytes]] | None:
        """What has come, [] when nothing came within ``timeout`` seconds, None when both outputs have ended."""

    def ended(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    def end_input(self) -> None: ...
    def status(self) -> int: ...
    def close(self) -> None: ...


class TimedOut(Exception):
    """The command outlived its timeout; it still runs."""


def collect(channel: ReadableCommand, command: Command, deadline: float) -> Completed:
    """Feeds the input, reads both outputs and waits for the end. Raises `TimedOut` at ``deadline`` (monotonic)."""
    if len(command.stdin) <= _SMALL:
        _feed_input(channel, command.stdin)
    else:
        threading.Thread(target=_feed_input, args=(channel, command.stdin), daemon=True).start()
    outputs: dict[Stream, bytearray] = {"out": bytearray(), "err": bytearray()}
    truncated = False
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimedOut
        pieces = channel.read(min(left, _QUIET))
        if pieces is None:
            break
        if not pieces and channel.ended():
            break
        for stream, data in pieces:
            room = command.cap - len(outputs[stream])
            truncated = truncated or len(data) > room
            outputs[stream] += data[:room]
    while not channel.ended():  # it closed its outputs and lives on
        if time.monotonic() > deadline:
            raise TimedOut
        time.sleep(0.01)
    return Completed(channel.status(), bytes(outputs["out"]), bytes(outputs["err"]), truncated)


def _feed_input(channel: ReadableCommand, data: bytes) -> None:
    try:
        if data:
            channel.write(data)
        channel.end_input()
    except (BrokenPipeError, LinkError, ValueError):
        pass  # it ended without reading all: its status says how; a lost link is met by the reader


def timeout_error(host: str, command: Command, alive: str = "") -> LinkError:
    """``alive`` names what may still be running."""
    words = str(command)
    what = f"timed out after {command.timeout:g} s: {words if len(words) <= 60 else words[:59] + '…'}"
    kind = Kind.RESIDUE if alive else Kind.STEP
    return LinkError(Failure(host, kind, f"{what}; {alive}" if alive else what, code="timeout-command"))
