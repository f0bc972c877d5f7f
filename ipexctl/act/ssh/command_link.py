"""What links over SSH and to this machine share: commands with capped outputs, one deadline, a log, and an end."""

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from ipexctl.act.ssh.quoting import make_stop_script
from ipexctl.act.threads import feed_input
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Stream
from ipexctl.model.hosts import NO_COMMAND_IO, Channel, Command, CommandIO, Completed, Host, Link, LinkError

# After the command itself has ended, its outputs may be held open by a process it left in the background.
_QUIET_TIMEOUT = 0.5  # seconds of silence after which such outputs count as ended
_START_TIMEOUT = 30.0  # seconds a host may take to start a command
_STOP_TIMEOUT = 4.0  # seconds to stop a command on a host

_log = logging.getLogger(__name__)


class CommandLog:
    """One command on a host in debug.log: a line when it starts, and one when its channel is closed."""

    def __init__(self, host: str, command: Command) -> None:
        self._host, self._begun = host, time.monotonic()
        self._line = str(command)[:500]
        self._ended = False
        _log.debug("%s: starts: %s", host, self._line)

    def log_end(self, status: int | None) -> None:
        """``status`` is None or negative where the end of the command was not seen. Only the first call counts."""
        if not self._ended:
            self._ended = True
            seen = "not known" if status is None or status < 0 else status
            _log.info("%s: status %s after %.3f s: %s", self._host, seen, time.monotonic() - self._begun, self._line)


class CommandChannel(Channel):
    """A running command; see `Channel`."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process id on the host, 0 while it is not known."""

    @property
    def has_begun(self) -> bool:
        """Whether the login shell has started the command."""
        return True

    @abstractmethod
    def has_ended(self) -> bool: ...

    def __iter__(self) -> Iterator[tuple[Stream, bytes]]:
        while (pieces := self.read(None)) is not None:
            yield from pieces

    def __enter__(self) -> "CommandChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AnyChannel = TypeVar("AnyChannel", bound=CommandChannel)


class CommandLink(Link, Generic[AnyChannel]):
    """A link that can start commands; this class runs and stops them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._running: set[AnyChannel] = set()  # what `run` waits for
        self._lock = threading.Condition()
        self._starting = 0  # commands whose start is under way
        self._closed = False
        self._connecting = threading.Lock()
        self._connected = False
        self._notes: tuple[str, ...] = ()  # of connecting, for the user
        self._error: BaseException | None = None  # why it could not be connected

    @property
    def host(self) -> Host:
        return self._host

    @property
    def alive(self) -> bool:
        return not self._closed

    @property
    def is_unusable(self) -> bool:
        """It could not be connected, or was lost."""
        return self._error is not None or (self._connected and not self.alive)

    def connect_once(self) -> None:
        """The first thread connects, others wait for it. Raises `LinkError` in all of them."""
        with self._connecting:
            if not self._connected and not self._error:
                name, begun = self._host.name, time.monotonic()
                try:
                    self.connect()
                    self._connected = True
                    _log.info("%s: connected after %.3f s", name, time.monotonic() - begun)
                except BaseException as error:
                    self._error = error
                    _log.info("%s: not connected after %.3f s: %s", name, time.monotonic() - begun, error)
        if self._error:
            raise self._error

    def notes(self) -> tuple[str, ...]:
        notes, self._notes = self._notes, ()
        return notes

    def connect(self) -> None:
        """Raises `LinkError`. There is nothing to do for this machine."""

    def _disconnect(self) -> None:
        """Ends what `connect` has made."""

    @abstractmethod
    def _start_command(self, command: Command, patience: float) -> AnyChannel:
        """Starts a command within ``patience`` seconds. Raises `LinkError`."""

    def _start_brief_command(self, command: Command, patience: float) -> AnyChannel:
        return self._start_command(command, patience)

    def run(self, command: Command, command_io: CommandIO = NO_COMMAND_IO) -> Completed:
        deadline = time.monotonic() + command.timeout
        channel = self.start_command(command, min(command.timeout, _START_TIMEOUT), is_run=True)
        try:
            stdin = command_io.get_input() if command_io.get_input else command.stdin
            if command_io.get_input and len(stdin) != command.late_input:
                raise ValueError(f"{len(stdin)} bytes of input in place of {command.late_input}")
            if time.monotonic() >= deadline:
                raise _TimedOut
            completed = _collect_output(channel, command, deadline, stdin, command_io.on_output)
        except _TimedOut:
            alive = self._stop_command(channel, 0.0)
            words = str(command)
            what = f"timed out after {command.timeout:g} s: {words if len(words) <= 60 else words[:59] + '…'}"
            kind = Kind.RESIDUE if alive else Kind.STEP
            failure = Failure(self._host.name, kind, f"{what}; {alive}" if alive else what, code="timeout-command")
            raise LinkError(failure) from None
        except BaseException as error:
            if not isinstance(error, LinkError):
                self._stop_command(channel)
            if self._closed:
                raise self._make_lost_error() from None
            raise
        finally:
            with self._lock:
                self._running.discard(channel)
            channel.close()
        if self._closed:
            raise self._make_lost_error()
        return completed

    def stream(self, command: Command) -> AnyChannel:
        channel = self.start_command(command, _START_TIMEOUT)
        if command.stdin:
            channel.write(command.stdin)
        return channel

    def _stop_command(self, channel: AnyChannel, patience: float = _STOP_TIMEOUT) -> str:
        """Stops a command on its host; returns what may still run, or "". Its id may come for ``patience`` seconds."""
        deadline = time.monotonic() + patience
        with suppress(LinkError):
            while not channel.pid and not channel.has_ended() and time.monotonic() < deadline:
                channel.read(0.1)
        if not channel.pid:
            return "" if channel.has_begun else "its login shell did not start the command"
        command = Command(("/bin/sh", "-c", make_stop_script(channel.pid)))
        try:
            with self._start_command(command, _STOP_TIMEOUT) as killer:
                alive = b"alive" in _collect_output(killer, command, time.monotonic() + _STOP_TIMEOUT, b"").out
        except (LinkError, _TimedOut):
            alive = True
        channel.has_ended()  # takes the status of a local one, so that no zombie is left
        return f"process {channel.pid} may still be running" if alive else ""

    def start_command(self, command: Command, patience: float, *, is_run: bool = False) -> AnyChannel:
        """Starts a command within ``patience`` seconds. Raises `LinkError`, also where the link was closed."""
        with self._lock:
            closed = self._closed
            self._starting += not closed
        if closed:
            raise self._make_lost_error()
        try:
            start = self._start_brief_command if is_run and command.brief else self._start_command
            channel = start(command, patience)
            if self._closed:  # meanwhile
                self._stop_command(channel)
                channel.close()
                raise self._make_lost_error()
            if is_run:
                self._running.add(channel)
            return channel
        finally:
            with self._lock:
                self._starting -= 1
                self._lock.notify_all()

    def close(self) -> None:
        """Stops the commands that `run` waits for, then ends the connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            # Each stops its command, or leaves that to us.
            self._lock.wait_for(lambda: not self._starting, _STOP_TIMEOUT)
            running = list(self._running)
        for channel in running:
            self._stop_command(channel)
        self._disconnect()

    def _make_lost_error(self, what: str = "the connection was lost") -> LinkError:
        return make_lost_error(self._host.name, "the link was closed" if self._closed else what)


def make_lost_error(host: str, what: str) -> LinkError:
    return LinkError(Failure(host, Kind.UNREACHABLE, what, code="lost"))


class _TimedOut(Exception):
    """The command outlived its timeout; it still runs."""


def _collect_output(
    channel: "CommandChannel",
    command: Command,
    deadline: float,
    stdin: bytes,
    on_output: Callable[[bytes], None] | None = None,
) -> Completed:
    """Feeds the input, reads both outputs and waits for the end. Raises `_TimedOut` at ``deadline`` (monotonic)."""
    if stdin:
        feed_input(channel, stdin)
    else:
        channel.end_input()
    outputs: dict[Stream, bytearray] = {"out": bytearray(), "err": bytearray()}
    truncated = False
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _TimedOut
        ended = channel.has_ended()  # before the silence: what is written at its very end is still to be read
        pieces = channel.read(min(left, _QUIET_TIMEOUT))
        if pieces is None or (not pieces and ended):
            break
        for stream, data in pieces:
            room = command.cap - len(outputs[stream])
            truncated = truncated or len(data) > room
            outputs[stream] += data[:room]
            if on_output is not None and stream == "out":
                on_output(data)
    while not channel.has_ended():  # it closed its outputs and lives on
        if time.monotonic() > deadline:
            raise _TimedOut
        time.sleep(0.01)
    return Completed(channel.status(), bytes(outputs["out"]), bytes(outputs["err"]), truncated)
