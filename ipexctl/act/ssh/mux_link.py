"""The link over a persistent connection (`holder`): sessions without a login, their bytes through pipes.

Where no holder can be had, or the host opens no further session on its connection, the link logs in by itself."""

import fcntl
import os
import resource
import select
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ipexctl.act.ssh.command_link import CommandChannel, CommandLog, make_lost_error, make_no_shell_error
from ipexctl.act.ssh.holder import HolderError, Holders, PersistentConnection
from ipexctl.act.ssh.mux import MuxConnection, MuxError, MuxTimeoutError, SessionRefusedError
from ipexctl.act.ssh.quoting import (
    OutputSplitter,
    ShellCommand,
    format_shell_line,
    make_nonce,
    report_signals,
    wrap_command,
)
from ipexctl.act.ssh.shared_shell import ENDING, SharedShellLink, make_shell_command
from ipexctl.model.commands import Command
from ipexctl.model.errors import ConnectError, Failure, Kind
from ipexctl.model.events import Stream
from ipexctl.model.hosts import Host
from ipexctl.model.links import LinkError

_PIECE = 1 << 18
_PIPE = 1 << 18  # bytes that an output may be ahead of its reader here, if the system allows
_NOTICE = 1.0  # seconds after the end of both outputs in which the status, or the loss of the connection, comes
_FILES = 1 << 16  # open files of this process, if the system allows
_SHARE = 0.25  # of the connect timeout: for an answer over a connection that may be dead, before another one is made


class MuxChannel(CommandChannel):
    """A running remote command; see `Channel`. Its status is 255 where a signal also ended the shell that reports it.

    ``descriptors`` are our ends of its standard input and outputs. ``is_connected``: the connection lives."""

    def __init__(
        self,
        host: str,
        session: MuxConnection,
        descriptors: tuple[int, int, int],
        nonce: bytes,
        log: CommandLog,
        is_connected: Callable[[], bool],
    ) -> None:
        self._host, self._session, self._log, self._is_connected = host, session, log, is_connected
        self._stdin, *outputs = descriptors
        os.set_blocking(self._stdin, False)
        self._splitters: dict[Stream, OutputSplitter] = {"out": OutputSplitter(nonce), "err": OutputSplitter(nonce)}
        self._outputs: dict[int, Stream] = dict(zip(outputs, self._splitters, strict=True))  # that have not ended
        self._descriptors = set(descriptors)
        self._status: int | None = None
        self._lost = self._aborted = self._closed = False
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._waiting, self._closing = threading.Lock(), threading.Lock()

    @property
    def pid(self) -> int:
        return self._splitters["out"].pid or self._splitters["err"].pid

    @property
    def has_begun(self) -> bool:
        return any(splitter.started for splitter in self._splitters.values())

    def read(self, timeout: float | None) -> list[tuple[Stream, bytes]] | None:
        """See `Pieces`. Raises `LinkError` when the connection was lost."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            while True:
                if self._closed:
                    return None
                if self._aborted:
                    raise make_lost_error(self._host, "the connection was lost")
                if not self._outputs:
                    self._check_end()
                    return None
                left = None if until is None else max(0.0, until - time.monotonic())
                ready = self._poll(self._outputs, select.POLLIN, left)
                pieces = [self._read_output(number) for number in ready if number in self._outputs]
                if found := [(stream, data) for stream, data in pieces if data]:
                    return found
                if left == 0.0 and self._outputs and not ready:
                    return []

    def _read_output(self, number: int) -> tuple[Stream, bytes]:
        stream = self._outputs[number]
        if data := os.read(number, _PIECE):
            return stream, self._splitters[stream].extract_output(data)
        del self._outputs[number]
        return stream, b""

    def _poll(self, numbers: Any, event: int, left: float | None) -> list[int]:
        """Those of the descriptors that are ready within ``left`` seconds. Returns early when the session has ended."""
        poll = select.poll()
        for number in numbers:
            poll.register(number, event)
        poll.register(self._session.socket, 0)  # tells its end only, which `close` brings about
        ready = [number for number, _ in poll.poll(None if left is None else left * 1000)]
        if ready == [self._session.socket.fileno()] and not self._closed:
            time.sleep(0.005)  # the holder closes its ends one after the other
        return ready

    def _check_end(self) -> None:
        """Raises `LinkError` if the outputs ended because the connection did, or before the command started."""
        self._receive_status(_NOTICE)
        self._check_connection()
        if not self.has_begun:
            raise make_no_shell_error(self._host, [bytes(splitter.noise) for splitter in self._splitters.values()])

    def _receive_status(self, timeout: float | None) -> int | None:
        """The status, None if it is not there within ``timeout`` seconds; 255 where none will come."""
        with self._waiting:
            if self._status is None:
                try:
                    self._status = self._session.read_status(timeout)
                except MuxError:
                    self._lost = not self._closed and not self._is_connected()
                    self._status = 255
            return self._status

    def _check_connection(self) -> None:
        if self._lost and not self._closed:
            raise make_lost_error(self._host, "the connection was lost")

    def has_ended(self) -> bool:
        if self._status is None and not self._waiting.locked():  # else a thread waits for it
            self._receive_status(0.0)
        return self._status is not None

    def write(self, data: bytes) -> None:
        """Raises `BrokenPipeError` when the command has ended or after `end_input`, `LinkError` for a lost link."""
        remaining = memoryview(data)
        with self._writing:
            while remaining:
                if self._closed or self._stdin not in self._descriptors:
                    raise BrokenPipeError("the command's input has ended")
                try:
                    remaining = remaining[os.write(self._stdin, remaining) :]
                except BlockingIOError:
                    self._poll([self._stdin], select.POLLOUT, None)
                except BrokenPipeError:
                    self._receive_status(0.0)
                    self._check_connection()
                    raise

    def end_input(self) -> None:
        with self._writing:
            self._close_descriptors({self._stdin} & self._descriptors)

    def status(self) -> int:
        status = self._receive_status(None)
        self._check_connection()
        return 255 if status is None else status

    def abort(self) -> None:
        """Ends the session, from any thread: for who reads, writes or waits, the connection was lost."""
        self._aborted = True
        self._session.wake()

    def close(self) -> None:
        """Ends our side at once, also while other threads read, write or wait."""
        with self._closing:
            if self._closed:
                return
            self.has_ended()
            self._closed = True
        self._log.log_end(self._status)
        self._session.wake()
        with self._reading, self._writing, self._waiting:
            self._close_descriptors(set(self._descriptors))
            self._session.close()

    def _close_descriptors(self, numbers: set[int]) -> None:
        for number in numbers:
            self._descriptors.discard(number)
            os.close(number)


class MuxLink(SharedShellLink):
    """One host over SSH, over a persistent connection if there can be one. `connect` must have been called.

    ``make_direct_link`` makes one that logs in by ourselves, within the connect timeout less these seconds. ``report``
    gets the reason why there is no persistent connection, and returns a note for the user, or ""."""

    def __init__(
        self,
        host: Host,
        holders: Holders,
        make_direct_link: Callable[[float], SharedShellLink],
        report: Callable[[str], str],
    ) -> None:
        super().__init__(host)
        self._holders, self._make_direct_link, self._report = holders, make_direct_link, report
        self._connection: PersistentConnection | None = None
        self._direct: SharedShellLink | None = None  # where there is no such connection, or no further session on it
        self._opening: Any = None  # the socket being connected
        self._logging_in = threading.Lock()
        self._channels: weakref.WeakSet[MuxChannel] = weakref.WeakSet()  # each has a control connection of its own

    @property
    def alive(self) -> bool:
        if self._closed:
            return False
        if self._connection is not None:
            return not self._connection.control.has_ended()
        return self._direct is not None and self._direct.alive

    @property
    def is_unusable(self) -> bool:
        unusable = super().is_unusable
        if unusable and (shell := self._take_shell()):  # another link replaces this one
            shell.close()
        return unusable

    def connect(self) -> None:
        """Raises `LinkError` within the connect timeout."""
        notes: list[str] = []
        begun = time.monotonic()
        try:
            self._hold_connection(notes)
        except ConnectError as error:
            if self._closed:
                raise self._make_lost_error() from None
            failure = Failure(self._host.name, Kind.UNREACHABLE, error.what, error.hint, error.code)
            raise LinkError(failure) from None
        except HolderError as error:
            if self._closed:
                raise self._make_lost_error() from None
            spent = time.monotonic() - begun
            self._log_in(spent)
            if error.note and (note := self._report(error.note)):
                notes.append(note)
        self._notes = (*self._notes, *notes)
        if self._closed:
            self._disconnect()
            raise self._make_lost_error()

    def _hold_connection(self, notes: list[str]) -> None:
        """Finds or makes it. That its host still answers is shown by a shared shell, which the first brief command
        needs anyway. Raises `ConnectError` and `HolderError`."""
        patience = _SHARE * self._holders.timeout
        for _ in range(2):
            connection = self._holders.hold(self._host, self._set_socket, lambda: self._closed, notes)
            if not connection.is_new:
                try:
                    self._shell = self._open_channel(connection, make_shell_command(), patience)
                except MuxError:  # it was lost, which the holder noticed only now
                    connection.control.close()
                    continue
                except MuxTimeoutError:
                    connection.control.close()
                    raise HolderError(f"the host opened no session on it within {patience:g} s") from None
                except SessionRefusedError:
                    connection.control.close()
                    raise HolderError("the host opens no further session on it") from None
            self._connection = connection
            return
        raise HolderError("it was lost, twice")

    def _log_in(self, spent: float = 0.0) -> SharedShellLink:
        with self._logging_in:
            if self._direct is None or not self._direct.alive:
                self._direct = self._make_direct_link(spent)  # before it connects: closing this link breaks that off
                if self._closed:
                    raise self._make_lost_error()
                self._direct.connect_once()
                self._notes = (*self._notes, *self._direct.notes())
            return self._direct

    def _set_socket(self, sock: Any) -> None:
        self._opening = sock
        if self._closed:
            self._abort_connecting()

    def _abort_connecting(self) -> None:
        with suppress(OSError):
            self._opening.shutdown(2)

    def _disconnect(self) -> None:
        if self._opening is not None:
            self._abort_connecting()
        shell = self._take_shell()
        if shell is not None:
            shell.close()
        if self._connection is not None:
            self._connection.control.close()
        with self._lock:
            channels = [*self._channels]
        for channel in channels:
            channel.abort()
        if self._direct is not None:
            self._direct.close()

    def _start_command(self, command: Command, patience: float) -> CommandChannel:
        if self._connection is None:
            return self._log_in().start_command(command, patience)
        until = time.monotonic() + ENDING
        while True:
            try:
                return self._open_channel(self._connection, command, patience)
            except MuxTimeoutError:
                raise self._make_lost_error(f"the host opened no session within {patience:g} s") from None
            except MuxError:
                raise self._make_lost_error() from None
            except SessionRefusedError:
                # As in `SSHLink`; but sessions of other commands count, too: then a connection of our own it is.
                if time.monotonic() > until:
                    return self._log_in().start_command(command, patience)
            if not self._end_idle_shell():
                time.sleep(0.05)

    def _start_brief_command(self, command: Command, patience: float) -> CommandChannel:
        if self._connection is None:
            return self._log_in()._start_brief_command(command, patience)
        return super()._start_brief_command(command, patience)

    def _open_channel(self, connection: PersistentConnection, command: Command, patience: float) -> MuxChannel:
        """Raises `MuxError`, `MuxTimeoutError` and `SessionRefusedError`."""
        nonce = make_nonce()
        shell = wrap_command(report_signals(format_shell_line(command)), nonce)
        log = CommandLog(self._host.name, command)
        try:
            local, remote = _make_pipes()
        except OSError as error:
            raise SessionRefusedError(str(error)) from None
        try:
            try:
                session = MuxConnection(connection.path)
            except OSError as error:  # too many open files
                raise SessionRefusedError(str(error)) from None
            try:
                session.open_session(shell.line, remote, patience)
            except BaseException:
                session.close()
                raise
        except BaseException:
            for number in local:
                os.close(number)
            raise
        finally:
            for number in remote:
                os.close(number)
        channel = MuxChannel(
            self._host.name, session, local, nonce, log, lambda: not connection.control.has_ended(_NOTICE)
        )
        with self._lock:
            self._channels.add(channel)
        return _write_prefix(channel, shell)


def _write_prefix(channel: MuxChannel, shell: ShellCommand) -> MuxChannel:
    """Writes what stands before the command's own input."""
    try:
        if shell.stdin:
            channel.write(shell.stdin)
        return channel
    except BaseException:
        channel.close()
        raise


def raise_file_limit() -> None:
    """Each session has four open files here: hundreds of hosts need more than the usual soft limit of 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _make_pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Pipes for a standard input and two outputs: our ends, and those of the command."""
    numbers: list[int] = []
    try:
        for _ in range(3):
            numbers += os.pipe()
    except OSError:
        for number in numbers:
            os.close(number)
        raise
    stdin, local_in, out, remote_out, err, remote_err = numbers
    for number in (out, local_in):
        with suppress(OSError):  # beyond what a user may have in all pipes
            fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, _PIPE)
    return (local_in, out, err), (stdin, remote_out, remote_err)
