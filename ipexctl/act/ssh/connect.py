"""Connecting: one deadline over name, TCP, banner, key exchange and login; the host's key is judged before any login.

Paramiko's transport is driven directly, because its `SSHClient` costs several times as much and reads known_hosts its
own way. No agent, X11 or port is ever forwarded: nothing here can ask for it, and what a host asks for is refused.
"""

from __future__ import annotations

import errno
import logging
import random
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import paramiko
from paramiko.common import (
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_WINDOW_ADJUST,
    MSG_REQUEST_FAILURE,
    MSG_REQUEST_SUCCESS,
    cMSG_GLOBAL_REQUEST,
)
from paramiko.message import Message

from ipexctl.act.ssh.hostkeys import KnownHosts, fingerprint, known_line, name_of
from ipexctl.act.ssh.keys import Keys, UnusableKey
from ipexctl.act.ssh.settings import Settings, SSHSettings
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.hosts import Host
from ipexctl.model.links import LinkError
from ipexctl.model.text import printable

# The first of each that the host has too is taken. Measured: curve25519 and AES-GCM cost a fraction of the defaults.
_KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256")
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
_HOST_KEYS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
_RSA = ("rsa-sha2-512", "rsa-sha2-256")

_WINDOW = 4 << 20  # bytes a host may send ahead on one channel: enough for 1 Gbit/s at 30 ms
_AHEAD = 4 << 10  # bytes read ahead: each quiet connection has a buffer of this size waiting
_BANNER = 16 << 10  # bytes looked through for the banner
_TICK = 2.4  # seconds: how often a quiet transport looks at its clock; hundreds of them do
_ASK = 7.0  # seconds of quiet after which a host is asked whether it lives; three unanswered make it lost
_LOST = 30  # seconds without any sign from a host, after which it is lost
_REMEMBERED = 5.0  # seconds for which a jump host that could not be reached is not tried again
_GRACE = 0.3  # seconds after the deadline in which the transport may still say why
_GLOBAL_KNOWN = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
_USER_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")

_log = logging.getLogger("ipexctl.ssh")
_log.addHandler(logging.NullHandler())
_log.propagate = False  # Paramiko logs what it raises; we say it ourselves, once
_log.setLevel(logging.CRITICAL)


class ConnectError(Exception):
    """Why a hop could not be reached; becomes the `Failure` of every host behind it."""

    def __init__(self, code: str, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.code, self.what, self.hint = code, what, hint


class _Buffered:
    """A socket that is read ahead. Paramiko asks for each packet's head and body apart; every question to the kernel
    is two system calls and a fight for the interpreter, which on hundreds of connections is most of the work."""

    def __init__(self, sock: socket.socket) -> None:
        self.real = sock
        self._ahead = b""
        self._at = 0
        self.send, self.settimeout, self.shutdown = sock.send, sock.settimeout, sock.shutdown
        self.close, self.getpeername = sock.close, sock.getpeername

    @property
    def _closed(self) -> bool:  # what Paramiko asks when it ends its thread
        return self.real.fileno() < 0

    def recv(self, size: int) -> bytes:
        if not self._ahead:
            if size >= _AHEAD:
                return self.real.recv(size)
            self._ahead = self.real.recv(_AHEAD)
        data = self._ahead[self._at : self._at + size]
        self._at += len(data)
        if self._at == len(self._ahead):
            self._ahead, self._at = b"", 0  # hundreds of quiet connections keep nothing
        return data


class Transport(paramiko.Transport):
    """Paramiko's transport with bounded waits, signals as statuses, and questions that notice a silent host."""

    deadline: float = 0.0
    trouble: ConnectError | None = None  # what we found out ourselves; Paramiko would report an end of file

    def __init__(self, sock: Any) -> None:
        read: Any = _Buffered(sock) if isinstance(sock, socket.socket) else sock
        super().__init__(read, default_window_size=_WINDOW)
        self.set_log_channel("ipexctl.ssh")
        self._channel_handler_table = {
            **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
            MSG_CHANNEL_REQUEST: _request,
            MSG_CHANNEL_WINDOW_ADJUST: _window,
        }
        for answer in (MSG_REQUEST_SUCCESS, MSG_REQUEST_FAILURE):
            self._handler_table[answer] = self._answered  # type: ignore[attr-defined]
        # Paramiko's timer would be one more thread a connection; whoever connects waits with a deadline of his own.
        self.packetizer.start_handshake = lambda timeout: None  # type: ignore[method-assign]
        self._unanswered = 0

    def tune(self, known: Sequence[str]) -> None:
        """Sets the algorithms; ``known`` are the types of the host's known keys, which it is asked to show."""
        options = self.get_security_options()
        options.kex = _available(_KEX, options.kex)
        options.ciphers = _available(_CIPHERS, options.ciphers, only=True)
        kinds = [kind for name in known for kind in (_RSA if name == "ssh-rsa" else (name,))]
        options.key_types = _available([*kinds, *_HOST_KEYS, *_RSA], options.key_types, only=True)

    def quiet_means_lost(self) -> None:
        """From now on a host that does not answer for `_LOST` seconds is disconnected."""
        self.packetizer.set_keepalive(_ASK, self._ask)
        self.sock.settimeout(_TICK)

    def end(self) -> None:
        """Ends the connection and wakes whoever waits on it."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError, TypeError):
            pass  # never connected, or a channel through a jump host
        self.close()
        self.sock.close()
        if self.completion_event is not None:
            self.completion_event.set()  # Paramiko leaves it unset when a connection is closed while it is being made

    def get_exception(self) -> Exception | None:
        return self.trouble or super().get_exception()

    def _ask(self) -> None:
        if self._unanswered >= 3:
            self.trouble = ConnectError("lost", f"no sign of life for {_LOST} s")
            self.packetizer.close()
            return
        self._unanswered += 1
        question = Message()
        question.add_byte(cMSG_GLOBAL_REQUEST)
        question.add_string("keepalive@openssh.com")
        question.add_boolean(True)  # Paramiko's own keepalive wants no answer, so it notices nothing
        if self.clear_to_send.is_set():
            self._send_message(question)  # type: ignore[attr-defined]

    def _answered(self, message: Message) -> None:
        self._unanswered = 0

    def _check_banner(self) -> None:
        if isinstance(self.sock, _Buffered):
            _await_banner(self.sock.real, self.deadline)
        super()._check_banner()  # type: ignore[misc]

    def _log(self, level: int, msg: object, *args: object) -> None:
        """Nothing: nobody reads it, and some forty lines a connection would be made."""

    def _parse_debug(self, message: Message) -> None:
        """What a server says for debugging is not read."""


def _available(wanted: Sequence[str], have: Sequence[str], *, only: bool = False) -> tuple[str, ...]:
    first = [name for name in dict.fromkeys(wanted) if name in have]
    rest = [] if only and first else [name for name in have if name not in first]
    return tuple(first + rest)


def _request(channel: paramiko.Channel, message: Message) -> None:
    """Paramiko forgets how a command died by a signal: keep it as a shell would say it."""
    start = message.packet.tell()
    name = message.get_text()
    if name == "exit-signal":
        message.get_boolean()
        number = getattr(signal, f"SIG{message.get_text()}", None)
        channel.exit_status = 128 + number if number else 255
        channel.status_event.set()
        return
    message.packet.seek(start)
    channel._handle_request(message)  # type: ignore[attr-defined]


def _window(channel: paramiko.Channel, message: Message) -> None:
    channel._window_adjust(message)  # type: ignore[attr-defined]


def _await_banner(sock: socket.socket, deadline: float) -> None:
    """Waits until the banner has come, without taking it. Raises `ConnectError` for anything else that comes."""
    seen = b""
    while True:
        left = deadline - time.monotonic()
        try:
            sock.settimeout(max(0.01, left))
            data = sock.recv(_BANNER, socket.MSG_PEEK) if left > 0 else b""
        except TimeoutError:
            data, left = b"", 0.0
        except OSError as error:
            raise EOFError from error
        lines = data.split(b"\n")
        if any(line.startswith(b"SSH-") for line in lines[:-1]):
            sock.settimeout(_TICK)  # whoever waits has a deadline of his own, and `end` wakes all
            return
        if not data or len(data) >= _BANNER or (len(data) == len(seen) and left <= 0):
            seen = data or seen
            if seen:
                first = seen.decode("utf-8", "replace").strip().partition("\n")[0].rstrip()
                raise ConnectError("not-ssh", f"not an SSH server: it says '{printable(first, 40)}'")
            if left <= 0:
                raise ConnectError("banner", "no SSH banner")
            raise EOFError
        if len(data) == len(seen):  # what was seen is still there: give the rest time to come
            time.sleep(0.05)
        seen = data


class Dialler:
    """Connects hosts; keeps what several of them share: settings, known hosts, keys, connections to jump hosts."""

    def __init__(
        self,
        *,
        timeout: float,
        accept_new: bool,
        known_hosts: Path | None,
        config: Path | None,
        ask: Callable[[str], str | None] | None,
    ) -> None:
        self._timeout = timeout
        self._accept_new = accept_new
        self._known_path = known_hosts
        self._settings = SSHSettings(config)
        self._keys = Keys(ask)
        self._known: dict[tuple[Path, ...], KnownHosts] = {}
        self._jumps: dict[tuple[str, ...], _Jump] = {}
        self._proxies: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def dial(self, host: Host, opening: Callable[[Any], None]) -> tuple[Transport, list[str]]:
        """A connection that is logged in, and what the user should know of it. Raises `LinkError`.

        ``opening`` gets each socket while it is being connected, so that it can be shut down from outside.
        """
        settings = self._settings.of(host)
        limit = min(self._timeout, settings.timeout or self._timeout)
        notes: list[str] = []
        try:
            return self._through(settings.jumps, settings, time.monotonic() + limit, limit, opening, notes), notes
        except ConnectError as trouble:
            failure = Failure(host.name, Kind.UNREACHABLE, trouble.what, trouble.hint, trouble.code)
            raise LinkError(failure) from None

    def close(self) -> None:
        """Ends the connections to jump hosts, and the agent's."""
        with self._lock:
            jumps, self._jumps = list(self._jumps.values()), {}
            proxies, self._proxies = self._proxies, []
        for jump in jumps:
            jump.end()
        for proxy in proxies:
            proxy.terminate()
            proxy.wait()
        self._keys.close()

    def _through(
        self,
        jumps: tuple[str, ...],
        settings: Settings,
        deadline: float,
        limit: float,
        opening: Callable[[Any], None],
        notes: list[str],
    ) -> Transport:
        if settings.command:
            return self._login(self._proxy(settings.command), settings, deadline, limit, opening, notes)

        def socket_to_it() -> Any:
            if not jumps:
                return _tcp(settings, deadline, limit, opening)
            return self._channel(self._jump(jumps, deadline, limit, notes), jumps[-1], settings, deadline, limit)

        pause = 0.1
        while True:
            try:
                return self._login(socket_to_it(), settings, deadline, limit, opening, notes)
            except EOFError:
                # A busy sshd closes connections at random before they begin (MaxStartups): come again, later.
                pause = pause * 2 + random.random() * 0.2
                if time.monotonic() + pause > deadline or pause > 2:
                    raise ConnectError("banner", f"connection closed before a banner came ({settings.at})") from None
                time.sleep(pause)

    def _channel(
        self, jump: Transport, name: str, settings: Settings, deadline: float, limit: float
    ) -> paramiko.Channel:
        """A way to the host through the jump host of that name."""
        try:
            return jump.open_channel(
                "direct-tcpip",
                (settings.address, settings.port),
                ("", 0),
                timeout=max(0.1, deadline - time.monotonic()),
            )
        except paramiko.ChannelException as error:
            if error.code == 1:
                what = f"jump host {name} forbids forwarding to {settings.at}"
                raise ConnectError("jump", what, "AllowTcpForwarding on the jump host") from None
            why = printable(str(error.text), 80).lower()
            raise ConnectError("no-route", f"jump host {name} cannot reach {settings.at}: {why}") from None
        except (paramiko.SSHException, EOFError, OSError):
            if jump.is_active():
                raise ConnectError(
                    "timeout", f"no answer within {limit:g} s through jump host {name} ({settings.at})"
                ) from None
            raise ConnectError("jump", f"jump host {name}: the connection was lost") from None

    def _proxy(self, command: str) -> socket.socket:
        """A ProxyCommand, talked to over a real socket. OpenSSH, too, gives it to a shell."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                ("/bin/sh", "-c", f"exec {command}"),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        with self._lock:
            self._proxies.append(process)
        return ours

    def _jump(self, jumps: tuple[str, ...], deadline: float, limit: float, notes: list[str]) -> Transport:
        """The one connection to a jump host; the first that needs it makes it, the others wait for it."""
        with self._lock:
            jump = self._jumps.get(jumps)
            first = jump is None or jump.gone
            if jump is None or first:
                jump = self._jumps[jumps] = _Jump()
        if first:
            try:
                hop = self._settings.hop(jumps[-1])
                jump.transport = self._through(jumps[:-1], hop, deadline, limit, jump.opening, notes)
            except ConnectError as trouble:
                named = trouble.code == "jump"  # a hop further on already says which one it is
                what = trouble.what if named else f"jump host {jumps[-1]}: {trouble.what}"
                code = trouble.code if trouble.code.startswith("host-key") else "jump"
                jump.trouble = ConnectError(code, what, trouble.hint)
            finally:
                jump.until = time.monotonic() + _REMEMBERED
                jump.done.set()
        if not jump.done.wait(max(0.1, deadline - time.monotonic())):
            raise ConnectError("jump", f"jump host {jumps[-1]}: no answer within {limit:g} s")
        if jump.transport is None:
            raise jump.trouble or ConnectError("jump", f"jump host {jumps[-1]}: the connection was lost")
        return jump.transport

    def _login(
        self,
        sock: Any,
        settings: Settings,
        deadline: float,
        limit: float,
        opening: Callable[[Any], None],
        notes: list[str],
    ) -> Transport:
        """Key exchange, the judgement of the host's key, then authentication. Raises `EOFError` where the other side
        went before it said a word, else `ConnectError`."""
        known, name, also = self._known_to(settings)
        transport = Transport(sock)
        opening(transport)
        try:
            transport.deadline = deadline
            transport.tune(known.kinds(name) or known.kinds(also))
            left = max(0.1, deadline - time.monotonic())
            transport.banner_timeout = transport.handshake_timeout = left
            ready = threading.Event()
            transport.start_client(event=ready)
            ready.wait(left + _GRACE)
            try:
                key = transport.get_remote_server_key()
            except paramiko.SSHException:  # there is none yet, or the connection has ended
                _no_session(transport, settings, limit, greeted=bool(transport.remote_version))
            self._judge(key, settings, known, name, also, notes)
            self._authenticate(transport, settings, deadline, limit)
            transport.quiet_means_lost()
            return transport
        except BaseException:
            transport.end()
            raise

    def _known_to(self, settings: Settings) -> tuple[KnownHosts, str, str]:
        """The lines that count for a host, its name there, and the name without a port."""
        own = settings.known_hosts or _USER_KNOWN
        if self._known_path and not settings.own_known_hosts:
            own = (str(self._known_path),)
        files = (*(Path(name).expanduser() for name in own if name.lower() != "none"), *_GLOBAL_KNOWN)
        with self._lock:
            if files not in self._known:
                self._known[files] = KnownHosts(files)
            known = self._known[files]
        if settings.alias:
            return known, settings.alias.lower(), ""
        return known, name_of(settings.address, settings.port), settings.address.lower() if settings.port != 22 else ""

    def _judge(
        self, key: paramiko.PKey, settings: Settings, known: KnownHosts, name: str, also: str, notes: list[str]
    ) -> None:
        blob, kind = key.asbytes(), key.get_name()
        print_ = f"{kind} {fingerprint(blob)}"
        with self._lock:
            verdict = known.verdict(name, blob, also=also)
            problems, known.problems = known.problems, []
            notes += [f"skipped a line of known hosts: {problem}" for problem in problems]
            entry = verdict.entry
            if verdict.state == "ok":
                return
            if verdict.state == "revoked" and entry:
                raise ConnectError("host-key-revoked", f"host key {print_} is revoked ({entry.file}:{entry.line})")
            if verdict.state == "changed" and entry:
                was = f"{entry.kind} {fingerprint(entry.blob)}"
                raise ConnectError(
                    "host-key-changed",
                    f"host key CHANGED: it is {print_}, known is {was} ({entry.file}:{entry.line})",
                    f"if it was really set up anew: ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(entry.file)}",
                )
            if verdict.state == "unknown" and (self._accept_new or settings.accept_new):
                try:
                    path = known.add(name, kind, blob)
                except OSError as error:
                    raise ConnectError(
                        "host-key-unknown", f"{known.files[0]} cannot be written: {error.strerror}"
                    ) from None
                notes.append(f"new host key {print_} of {name} recorded in {path}")
                return
        why = f"unknown host key {print_}"
        if verdict.state == "certificate":
            why += "; certificates of hosts are not supported"
        line = shlex.quote(known_line(name, kind, blob))
        raise ConnectError(
            "host-key-unknown", why, f"if it is right: echo {line} >> {shlex.quote(str(known.files[0]))}"
        )

    def _authenticate(self, transport: Transport, settings: Settings, deadline: float, limit: float) -> None:
        tried: list[str] = []
        unusable: list[UnusableKey] = []
        for key in self._keys.of(settings):
            if isinstance(key, UnusableKey):
                unusable.append(key)
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                raise ConnectError("timeout", f"login took longer than {limit:g} s ({settings.at})")
            transport.auth_timeout = left
            tried.append(key.name)
            try:
                further = transport.auth_publickey(settings.user, key.key)
            except paramiko.BadAuthenticationType as error:
                accepts = printable(", ".join(error.allowed_types), 80)
                raise ConnectError(
                    "auth", f"login as {settings.user} refused: the host accepts only {accepts}"
                ) from None
            except paramiko.AuthenticationException:
                if transport.is_active() and time.monotonic() < deadline:
                    continue
                if transport.is_active():
                    raise ConnectError("timeout", f"login took longer than {limit:g} s ({settings.at})") from None
                break
            except (paramiko.SSHException, EOFError, OSError):
                if not transport.is_active():
                    break
                continue
            if not further:
                return
            needs = printable(", ".join(further), 80)
            raise ConnectError("auth", f"login as {settings.user}: key accepted, but the host also wants {needs}")
        reasons = [key.why for key in unusable]
        if tried:
            what = f"login as {settings.user} refused; tried {', '.join(tried)}"
            raise ConnectError(
                "auth", "; ".join([what, *reasons]), next((key.hint for key in unusable if key.hint), None)
            )
        if unusable:
            first = unusable[0]
            raise ConnectError(first.code, "; ".join(reasons), first.hint)
        raise ConnectError(
            "auth", f"no key to log in as {settings.user} with", "ssh-keygen -t ed25519, then ssh-copy-id"
        )


class _Jump:
    """A connection that many hosts share, perhaps still being made."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.transport: Transport | None = None
        self.trouble: ConnectError | None = None
        self.until = 0.0
        self._socket: Any = None

    @property
    def gone(self) -> bool:
        """It was lost, or could not be made and that is a while ago."""
        if not self.done.is_set():
            return False
        if self.transport is None:
            return time.monotonic() > self.until
        return not self.transport.is_active()

    def opening(self, sock: Any) -> None:
        self._socket = sock

    def end(self) -> None:
        shut(self._socket)


def shut(sock: Any) -> None:
    """Breaks off a socket or transport, also while another thread waits for it."""
    if isinstance(sock, Transport):
        sock.end()
    elif sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        sock.close()


def _tcp(settings: Settings, deadline: float, limit: float, opening: Callable[[Any], None]) -> socket.socket:
    trouble = ConnectError("timeout", f"no answer within {limit:g} s ({settings.at})")
    addresses = _resolved(settings, deadline)
    for number, (family, address) in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, socket.SOCK_STREAM)
        opening(sock)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(left / (len(addresses) - number))
            sock.connect(address)
            _watchful(sock)
            return sock
        except TimeoutError:
            trouble = ConnectError("timeout", f"no answer within {limit:g} s ({settings.at})")
        except OSError as error:
            trouble = _tcp_trouble(error, settings)
        sock.close()
    raise trouble


def _tcp_trouble(error: OSError, settings: Settings) -> ConnectError:
    if error.errno == errno.ECONNREFUSED:
        return ConnectError("refused", f"connection refused ({settings.at})")
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.EACCES):
        return ConnectError("no-route", f"{(error.strerror or 'no route to host').lower()} ({settings.at})")
    return ConnectError("lost", f"{(error.strerror or str(error)).lower()} ({settings.at})")


def _watchful(sock: socket.socket) -> None:
    """The kernel, too, gives up on a host that does not acknowledge, also while we are writing."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", _LOST * 1000),
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_QUICKACK", 1),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _resolved(settings: Settings, deadline: float) -> list[tuple[int, Any]]:
    """Addresses of a host. The resolver knows no deadline, so it is left behind in a thread when it is late."""
    numeric = settings.address.replace(".", "").isdigit() or ":" in settings.address
    answer: list[Any] = []

    def ask() -> None:
        try:
            found = socket.getaddrinfo(settings.address, settings.port, type=socket.SOCK_STREAM)
            answer.extend((family, address) for family, _, _, _, address in found)
        except (OSError, UnicodeError) as error:
            answer.append(error)

    if numeric:
        ask()
    else:
        asking = threading.Thread(target=ask, name=f"resolve {settings.address}", daemon=True)
        asking.start()
        asking.join(max(0.1, deadline - time.monotonic()))
    if not answer:
        raise ConnectError("dns", f"the name {settings.address} was not resolved in time")
    if isinstance(answer[0], Exception):
        raise ConnectError("dns", f"the name {settings.address} cannot be resolved")
    return answer


def _no_session(transport: Transport, settings: Settings, limit: float, *, greeted: bool) -> NoReturn:
    error = transport.get_exception()
    if isinstance(error, ConnectError):
        raise ConnectError(error.code, f"{error.what} ({settings.at})")
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        raise ConnectError("not-ssh", f"no common algorithm: {printable(str(error), 100)}")
    if transport.is_active() or time.monotonic() > transport.deadline - _GRACE:
        if greeted:
            raise ConnectError("timeout", f"no key exchange within {limit:g} s ({settings.at})")
        raise ConnectError("banner", f"no SSH banner within {limit:g} s ({settings.at})")
    if not greeted:
        if settings.command:
            raise ConnectError(
                "jump", f"the ProxyCommand ended without a connection ({printable(settings.command, 60)})"
            )
        raise EOFError
    raise ConnectError("lost", f"connection closed during the key exchange ({settings.at})")
