"""The link over SSH: one connection a host, raw channels, commands that are stopped when their caller is gone."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import paramiko

from ipexctl.act.bundled_files import read_script
from ipexctl.act.ssh.command_link import CommandChannel, CommandLink, CommandLog, make_lost_error
from ipexctl.act.ssh.connect import Dialler
from ipexctl.act.ssh.paramiko_internals import OutputEvent
from ipexctl.act.ssh.quoting import OutputSplitter, format_shell_line, make_nonce, wrap_command
from ipexctl.act.ssh.shared_shell import SharedShellChannel, format_request
from ipexctl.act.ssh.transport import LOSSES, ConnectError, Transport, abort_connection
from ipexctl.act.threads import STALL_TIMEOUT, StallTimer
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.events import Stream
from ipexctl.model.hosts import Command, Host, LinkError
from ipexctl.model.text import printable

_READ_SIZE = 1 << 20
_NO_SESSION = 2  # what OpenSSH answers beyond MaxSessions (RFC 4254, 5.1: SSH_OPEN_CONNECT_FAILED)
_PACKET_SIZE = 1 << 15  # bytes sshd takes in one packet
_END_TIMEOUT = 2.0  # seconds that a session may take to end


class SSHChannel(CommandChannel):
    """A running remote command; see `Channel`."""

    def __init__(self, host: str, channel: paramiko.Channel, nonce: bytes, log: CommandLog) -> None:
        self._host = host
        self._log = log
        self._channel = channel
        self._splitters: dict[Stream, OutputSplitter] = {"out": OutputSplitter(nonce), "err": OutputSplitter(nonce)}
        self._closed = False
        self._wake = OutputEvent(channel)
        self._reading = threading.Lock()

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
                self._wake.rearm()
                over = self._channel.eof_received or self._channel.closed
                available = self._read_available()
                if pieces := [(stream, data) for stream, data in available if data]:
                    return pieces
                if self._closed:
                    return None
                if over and not available:
                    self._check_end()
                    return None
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return []
                if not available:  # else it was noise, behind which more has come already
                    self._wake.wait(left)

    def _read_available(self) -> list[tuple[Stream, bytes]]:
        pieces: list[tuple[Stream, bytes]] = []
        with suppress(*LOSSES):  # no acknowledgement could be sent: the data is valid, the next read reports the loss
            if self._channel.recv_ready():
                pieces.append(("out", self._splitters["out"].extract_output(self._channel.recv(_READ_SIZE))))
            if self._channel.recv_stderr_ready():
                pieces.append(("err", self._splitters["err"].extract_output(self._channel.recv_stderr(_READ_SIZE))))
        return pieces

    def _check_end(self) -> None:
        """Raises `LinkError` if the outputs ended because the connection did, or before the command started."""
        if self._channel.exit_status == -1:
            self._check_connection()
        if not self.has_begun:
            self._channel.status_event.wait(1.0)
            noise = b"\n".join(splitter.noise for splitter in self._splitters.values())  # in the command's place
            output = printable(noise.decode("utf-8", "replace").strip().rpartition("\n")[2], 80)
            what = "the login shell ended before it started a command" + (f": {output}" if output else "")
            hint = "without exit, exec and read in its startup files (~/.bashrc …), but for a terminal: [ -t 0 ]"
            raise LinkError(Failure(self._host, Kind.UNREACHABLE, what, None if output else hint, "no-shell"))

    def has_ended(self) -> bool:
        return bool(self._channel.status_event.is_set() or self._channel.closed)

    def write(self, data: bytes) -> None:
        """Raises `BrokenPipeError` when the command has ended or after `end_input`, `LinkError` for a lost link."""
        remaining = memoryview(data)
        while remaining:
            try:
                sent = self._channel.send(bytes(remaining[:_PACKET_SIZE]))
            except LOSSES:
                sent = 0
            if not sent:
                self._check_connection()
                raise BrokenPipeError("the command's input has ended")
            remaining = remaining[sent:]

    def end_input(self) -> None:
        with suppress(*LOSSES):  # reading reports the loss
            self._channel.shutdown_write()

    def status(self) -> int:
        self._channel.status_event.wait(STALL_TIMEOUT)
        status = int(self._channel.exit_status)
        if status < 0:
            self._check_connection()
        return status if status >= 0 else 255

    def _check_connection(self) -> None:
        """Raises `LinkError` if it was lost and not closed by us."""
        transport = self._channel.get_transport()
        if not self._closed and not transport.is_active():
            raise make_lost_error(self._host, _describe_loss(transport))

    def close(self) -> None:
        self._closed = True
        self._log.log_end(self._channel.exit_status)
        self._wake.set()
        with suppress(*LOSSES):
            self._channel.close()


class SSHLink(CommandLink[CommandChannel]):
    """One host over SSH, whose brief commands share a shell there. `connect` must have been called."""

    def __init__(self, host: Host, dialler: Dialler) -> None:
        super().__init__(host)
        self._dialler = dialler
        self._opening: Any = None  # the socket or transport being connected
        self._transport: Transport | None = None
        self._shell: CommandChannel | None = None  # while no command uses it

    @property
    def alive(self) -> bool:
        return not self._closed and self._transport is not None and self._transport.is_active()

    @property
    def transport(self) -> Transport:
        """The connection, for what is no command. Raises `LinkError` where there is none."""
        if self._transport is None:
            raise self._make_lost_error()
        return self._transport

    def connect(self) -> None:
        """Raises `LinkError` within the connect timeout."""
        try:
            transport, notes = self._dialler.dial(self._host, self._remember_socket)
        except (LinkError, *LOSSES):  # `close` closes the socket, at whatever moment of the login
            if self._closed:
                raise self._make_lost_error() from None
            raise
        with self._lock:
            self._transport, self._notes = transport, tuple(notes)
        if self._closed:
            transport.end()
            raise self._make_lost_error()

    def _remember_socket(self, sock: Any) -> None:
        self._opening = sock
        if self._closed:
            abort_connection(sock)

    def _disconnect(self) -> None:
        abort_connection(self._opening)
        if self._transport is not None:
            self._transport.end()

    def _start_command(self, command: Command, patience: float) -> SSHChannel:
        nonce = make_nonce()
        shell = wrap_command(format_shell_line(command), nonce)
        with self.open_session(patience) as raw:
            channel = SSHChannel(self._host.name, raw, nonce, CommandLog(self._host.name, command))
            with StallTimer(channel.close, patience):  # Paramiko waits for the answer without a limit
                raw.exec_command(shell.line)
            raw.settimeout(patience)  # of a wait until the host takes more input
            channel.write(shell.stdin)
            raw.settimeout(STALL_TIMEOUT)
        return channel

    @contextmanager
    def open_session(self, patience: float) -> Iterator[paramiko.Channel]:
        """The channel of what the block starts. Raises `LinkError` where the host does not open or start it."""
        transport = self.transport
        try:
            yield self._open_session(transport, patience)
        except paramiko.ChannelException as error:
            what = f"the host opens no further session: {printable(str(error.text), 60)}"
            hint = "raise MaxSessions in its sshd_config"
            raise LinkError(Failure(self._host.name, Kind.STEP, what, hint, "sessions")) from None
        except (ConnectError, *LOSSES):  # Paramiko raises what ended it again
            raise self._make_lost_error(_describe_loss(transport)) from None

    def _open_session(self, transport: Transport, patience: float) -> paramiko.Channel:
        """A server that allows few sessions, or one, counts each until its process has ended and it knows that."""
        until = time.monotonic() + _END_TIMEOUT
        while True:
            try:
                return transport.open_session(timeout=patience)
            except paramiko.ChannelException as error:
                if error.code != _NO_SESSION or time.monotonic() > until:
                    raise
            if not self._end_idle_shell():
                time.sleep(0.05)

    def _start_brief_command(self, command: Command, patience: float) -> CommandChannel:
        nonce = make_nonce()
        shell = self._hand_over(format_request(command, nonce), patience)

        def release(usable: bool) -> None:
            with self._lock:
                keep = usable and self._shell is None and not self._closed
                if keep:
                    self._shell = shell
            if not keep:
                shell.close()

        return SharedShellChannel(shell, nonce, CommandLog(self._host.name, command), release)

    def _hand_over(self, request: bytes, patience: float) -> CommandChannel:
        """Returns the shell that executes the request: the one that waits, or a new one."""
        shell = self._take_shell()
        if shell is not None:
            if _write_request(shell, request):
                return shell
            shell.close()  # it was ended on the host since its last command
        start = Command(("ipexctl-shared_shell.sh",), script=read_script("shared_shell.sh"))
        shell = self._start_command(start, patience)
        _write_request(shell, request)  # why it did not start is read from its outputs
        return shell

    def _take_shell(self) -> CommandChannel | None:
        with self._lock:
            shell, self._shell = self._shell, None
        if shell is not None and shell.has_ended():
            shell.close()
            return None
        return shell

    def _end_idle_shell(self) -> bool:
        """Returns whether there was one. Waits for its end."""
        shell = self._take_shell()
        if shell is None:
            return False
        with suppress(LinkError), shell:
            shell.end_input()
            until = time.monotonic() + _END_TIMEOUT
            while (left := until - time.monotonic()) > 0 and shell.read(left):
                pass
        return True


def _describe_loss(transport: paramiko.Transport) -> str:
    if transport.is_active():
        return "the host started no command"
    error = transport.get_exception()
    return error.what if isinstance(error, ConnectError) else "the connection was lost"


def _write_request(shell: CommandChannel, request: bytes) -> bool:
    """Returns whether the shell still took it."""
    try:
        shell.write(request)
    except BrokenPipeError:
        return False
    except BaseException:
        shell.close()
        raise
    return True
