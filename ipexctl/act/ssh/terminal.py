"""A shell in the user's terminal, and forwarded ports: Fabric's, over the connection of a link.

Fabric never connects here: hosts, keys and known_hosts are judged by `connect`. docs/decisions/0012-fabric.md says what
it is used for, and what not."""

import errno
import os
import signal
import socket
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import paramiko
from fabric import Config, Connection
from fabric.runners import Remote
from fabric.tunnels import Tunnel
from invoke.exceptions import ThreadException, UnexpectedExit
from invoke.terminals import pty_size

from ipexctl.act.ssh.link import SSHLink
from ipexctl.act.ssh.transport import LOSSES, Transport
from ipexctl.act.threads import StallTimer
from ipexctl.model.text import printable

_LOOPBACK = "127.0.0.1"
_STARTING = 30.0  # seconds in which a host must start a shell
_OPENING = 10.0  # seconds in which a host must accept or refuse a forwarded connection
_BYTES = "latin-1"  # decodes and encodes any bytes without a change


class _Terminal(Remote):  # type: ignore[misc]
    """Fabric's runner, for sessions of any length: it stores no output, and passes bytes on as they are."""

    def start(self, *args: Any, **options: Any) -> None:
        self.channel = self.context.create_session()
        signal.signal(signal.SIGWINCH, self.handle_window_change)

    def respond(self, buffer_: list[str]) -> None:
        buffer_.clear()

    def write_our_output(self, stream: Any, string: str) -> None:
        try:
            sys.stdout.buffer.write(string.encode(_BYTES))
            sys.stdout.buffer.flush()
        except OSError:  # the terminal is gone
            self.channel.close()

    def write_proc_stdin(self, data: str) -> None:
        with suppress(*LOSSES):  # the session or its connection has ended, which the status tells
            super().write_proc_stdin(data)

    def send_interrupt(self, interrupt: KeyboardInterrupt) -> None:
        """Ends the session at a signal to ipexctl. The keys themselves, Ctrl-C too, reach the host as bytes."""
        self.channel.close()
        raise interrupt


def open_shell(link: SSHLink, command: str | None) -> int:
    """Connects the user's terminal with a login shell on the host, or with a line of it; the exit status, -1 where the
    connection was lost before the end. Raises `LinkError` where the host starts none."""
    with link.open_session(_STARTING) as session, StallTimer(session.close, _STARTING):  # Ctrl-C is a signal until then
        session.get_pty(os.environ.get("TERM", "vt100"), *pty_size())
        session.exec_command(command) if command else session.invoke_shell()
    connection = _make_connection(link.transport)
    connection.create_session = lambda: session
    stdin = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115  # reads nothing ahead
    options = {"in_stream": stdin, "encoding": _BYTES}
    with _raw_mode(stdin.fileno()):
        try:
            result = connection.run(command, pty=True, **options) if command else connection.shell(**options)
        except UnexpectedExit as unexpected:  # `shell` has no ``warn``
            result = unexpected.result
        return int(result.exited)


@contextmanager
def forward_port(link: SSHLink, port: int, remote_port: int, on_refusal: Callable[[str], object]) -> Iterator[None]:
    """Listens on a loopback port; what connects to it reaches a port of the host. Raises `OSError` where the port is
    not free. ``on_refusal`` gets a sentence, in another thread, for each connection that the host does not take."""
    socket.create_server((_LOOPBACK, port)).close()
    forwarding = _Forwarding(link.transport, on_refusal)
    try:
        with _make_connection(forwarding).forward_local(port, remote_port, local_host=_LOOPBACK):
            forwarding.wait_for_listener(port)
            try:
                yield
            finally:
                _end_tunnels()
    except ThreadException as error:  # of connections that broke, each for itself: it hides what ended the block
        if error.__context__ is not None:
            raise error.__context__ from None


def _end_tunnels() -> None:
    """Ends Fabric's connections of a forwarding, which are waited for: also one that writes to who does not read."""
    for thread in threading.enumerate():
        if isinstance(thread, Tunnel):
            with suppress(OSError):  # it has ended
                thread.sock.shutdown(socket.SHUT_RDWR)
            thread.channel.close()


def _make_connection(transport: Any) -> Connection:
    """Returns a connection that is open already. No fabric.yml and no ssh_config is read for it."""
    config = Config(overrides={"runners": {"remote": _Terminal, "remote_shell": _Terminal}}, lazy=True)
    connection = Connection("host", user="user", port=22, config=config, gateway=False, forward_agent=False)
    connection.transport = transport
    return connection


@contextmanager
def _raw_mode(terminal: int) -> Iterator[None]:
    """Every key is a byte for the host, until the end."""
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


class _Forwarding:
    """A transport as Fabric's tunnels use it. Where the host refuses a connection, that one ends, not all of them."""

    active = True

    def __init__(self, transport: Transport, on_refusal: Callable[[str], object]) -> None:
        self._transport, self._on_refusal = transport, on_refusal
        self._own: tuple[str, int] | None = None  # the connection by which `wait_for_listener` tries the port

    def wait_for_listener(self, port: int) -> None:
        """Returns once Fabric's thread listens. Raises `OSError` where it does not."""
        until = time.monotonic() + _OPENING
        while True:
            with socket.socket() as sock:
                sock.bind((_LOOPBACK, 0))
                self._own = sock.getsockname()
                if sock.connect_ex((_LOOPBACK, port)) == 0:
                    return
            if time.monotonic() > until:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            time.sleep(0.01)

    def open_channel(self, kind: str, remote: tuple[str, int], local: tuple[str, int]) -> Any:
        """Returns a channel, or a socket whose other end is closed."""
        try:
            if local != self._own:
                return self._transport.open_channel(kind, remote, local, timeout=_OPENING)
        except paramiko.ChannelException as error:
            self._on_refusal(printable(str(error.text), 80).lower())
        except LOSSES:
            self._on_refusal("no answer")
        local_end, remote_end = socket.socketpair()
        remote_end.close()
        return local_end
