"""Connecting: one deadline over name, TCP, banner, key exchange and login; the host's key is judged before any login.

Paramiko's transport is driven directly, because its `SSHClient` costs several times as much and reads known_hosts its
own way. No agent, X11 or port is ever forwarded: nothing here can ask for it, and what a host asks for is refused.
"""

from __future__ import annotations

import random
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import paramiko

from ipexctl.act.ssh.hostkeys import KnownHosts, fingerprint, format_known_host, known_host_name
from ipexctl.act.ssh.keys import Keys, UnusableKey
from ipexctl.act.ssh.settings import Settings, SSHSettings
from ipexctl.act.ssh.tcp import open_tcp
from ipexctl.act.ssh.transport import ConnectError, Transport, abort
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.hosts import Host
from ipexctl.model.links import LinkError
from ipexctl.model.text import printable

_REMEMBERED = 5.0  # seconds for which a jump host that could not be reached is not tried again
_GRACE = 0.3  # seconds after the deadline in which the transport may still say why
_GLOBAL_KNOWN = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
_USER_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")


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
        self._jumps: dict[tuple[str, ...], _JumpConnection] = {}
        self._proxies: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def dial(self, host: Host, opening: Callable[[Any], None]) -> tuple[Transport, list[str]]:
        """An authenticated connection, and notes for the user. Raises `LinkError`.

        ``opening`` gets each socket while it is being connected, so that it can be shut down from outside.
        """
        settings = self._settings.find_settings(host)
        limit = min(self._timeout, settings.timeout or self._timeout)
        notes: list[str] = []
        try:
            return self._connect(settings.jumps, settings, time.monotonic() + limit, limit, opening, notes), notes
        except ConnectError as error:
            failure = Failure(host.name, Kind.UNREACHABLE, error.what, error.hint, error.code)
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

    def _connect(
        self,
        jumps: tuple[str, ...],
        settings: Settings,
        deadline: float,
        limit: float,
        opening: Callable[[Any], None],
        notes: list[str],
    ) -> Transport:
        if settings.command:
            return self._log_in(self._start_proxy_command(settings.command), settings, deadline, limit, opening, notes)

        def open_socket() -> Any:
            if not jumps:
                return open_tcp(settings, deadline, limit, opening)
            return self._open_jump_channel(
                self._connect_jump(jumps, deadline, limit, notes), jumps[-1], settings, deadline, limit
            )

        pause = 0.1
        while True:
            try:
                return self._log_in(open_socket(), settings, deadline, limit, opening, notes)
            except EOFError:
                # A busy sshd closes connections at random before they begin (MaxStartups): try again, later.
                pause = pause * 2 + random.random() * 0.2
                if time.monotonic() + pause > deadline or pause > 2:
                    raise ConnectError("banner", f"connection closed before a banner came ({settings.at})") from None
                time.sleep(pause)

    def _open_jump_channel(
        self, jump: Transport, name: str, settings: Settings, deadline: float, limit: float
    ) -> paramiko.Channel:
        """A channel to the host through the jump host of that name."""
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

    def _start_proxy_command(self, command: str) -> socket.socket:
        """Starts a ProxyCommand in a shell, as OpenSSH does; returns a socket to it."""
        local_end, remote_end = socket.socketpair()
        with remote_end:
            process = subprocess.Popen(
                ("/bin/sh", "-c", f"exec {command}"),
                stdin=remote_end.fileno(),
                stdout=remote_end.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        with self._lock:
            self._proxies.append(process)
        return local_end

    def _connect_jump(self, jumps: tuple[str, ...], deadline: float, limit: float, notes: list[str]) -> Transport:
        """The shared connection to a jump host; the first thread makes it, the others wait for it."""
        with self._lock:
            jump = self._jumps.get(jumps)
            first = jump is None or jump.is_unusable
            if jump is None or first:
                jump = self._jumps[jumps] = _JumpConnection()
        if first:
            try:
                hop = self._settings.find_jump_settings(jumps[-1])
                jump.transport = self._connect(jumps[:-1], hop, deadline, limit, jump.opening, notes)
            except ConnectError as error:
                named = error.code == "jump"  # a hop further on already says which one it is
                what = error.what if named else f"jump host {jumps[-1]}: {error.what}"
                code = error.code if error.code.startswith("host-key") else "jump"
                jump.error = ConnectError(code, what, error.hint)
            finally:
                jump.until = time.monotonic() + _REMEMBERED
                jump.done.set()
        if not jump.done.wait(max(0.1, deadline - time.monotonic())):
            raise ConnectError("jump", f"jump host {jumps[-1]}: no answer within {limit:g} s")
        if jump.transport is None:
            raise jump.error or ConnectError("jump", f"jump host {jumps[-1]}: the connection was lost")
        return jump.transport

    def _log_in(
        self,
        sock: Any,
        settings: Settings,
        deadline: float,
        limit: float,
        opening: Callable[[Any], None],
        notes: list[str],
    ) -> Transport:
        """Exchanges keys, verifies the host's key and authenticates. Raises `EOFError` if the connection closes before
        a banner, else `ConnectError`."""
        known, name, other_name = self._known_hosts_of(settings)
        transport = Transport(sock)
        opening(transport)
        try:
            transport.deadline = deadline
            transport.set_algorithms(known.key_types(name) or known.key_types(other_name))
            left = max(0.1, deadline - time.monotonic())
            transport.banner_timeout = transport.handshake_timeout = left
            ready = threading.Event()
            transport.start_client(event=ready)
            ready.wait(left + _GRACE)
            try:
                key = transport.get_remote_server_key()
            except paramiko.SSHException:  # there is none yet, or the connection has ended
                _raise_session_error(transport, settings, limit, greeted=bool(transport.remote_version))
            self._verify_host_key(key, settings, known, name, other_name, notes)
            self._authenticate(transport, settings, deadline, limit)
            transport.start_keepalive()
            return transport
        except BaseException:
            transport.end()
            raise

    def _known_hosts_of(self, settings: Settings) -> tuple[KnownHosts, str, str]:
        """The known_hosts files of a host, its name in them, and its name without a port."""
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
        return (
            known,
            known_host_name(settings.address, settings.port),
            settings.address.lower() if settings.port != 22 else "",
        )

    def _verify_host_key(
        self, key: paramiko.PKey, settings: Settings, known: KnownHosts, name: str, other_name: str, notes: list[str]
    ) -> None:
        blob, kind = key.asbytes(), key.get_name()
        shown_key = f"{kind} {fingerprint(blob)}"
        with self._lock:
            verdict = known.judge_key(name, blob, also=other_name)
            problems, known.problems = known.problems, []
            notes += [f"skipped a line of known hosts: {problem}" for problem in problems]
            entry = verdict.entry
            if verdict.state == "ok":
                return
            if verdict.state == "revoked" and entry:
                raise ConnectError("host-key-revoked", f"host key {shown_key} is revoked ({entry.file}:{entry.line})")
            if verdict.state == "changed" and entry:
                was = f"{entry.kind} {fingerprint(entry.blob)}"
                raise ConnectError(
                    "host-key-changed",
                    f"host key CHANGED: it is {shown_key}, known is {was} ({entry.file}:{entry.line})",
                    f"if it was really set up anew: ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(entry.file)}",
                )
            if verdict.state == "unknown" and (self._accept_new or settings.accept_new):
                try:
                    path = known.record_key(name, kind, blob)
                except OSError as error:
                    raise ConnectError(
                        "host-key-unknown", f"{known.files[0]} cannot be written: {error.strerror}"
                    ) from None
                notes.append(f"new host key {shown_key} of {name} recorded in {path}")
                return
        why = f"unknown host key {shown_key}"
        if verdict.state == "certificate":
            why += "; certificates of hosts are not supported"
        line = shlex.quote(format_known_host(name, kind, blob))
        raise ConnectError(
            "host-key-unknown", why, f"if it is right: echo {line} >> {shlex.quote(str(known.files[0]))}"
        )

    def _authenticate(self, transport: Transport, settings: Settings, deadline: float, limit: float) -> None:
        tried: list[str] = []
        unusable: list[UnusableKey] = []
        for key in self._keys.keys_for(settings):
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


class _JumpConnection:
    """A connection to a jump host that many hosts share."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.transport: Transport | None = None
        self.error: ConnectError | None = None
        self.until = 0.0
        self._socket: Any = None

    @property
    def is_unusable(self) -> bool:
        """The connection was lost, or failed more than `_REMEMBERED` seconds ago."""
        if not self.done.is_set():
            return False
        if self.transport is None:
            return time.monotonic() > self.until
        return not self.transport.is_active()

    def opening(self, sock: Any) -> None:
        self._socket = sock

    def end(self) -> None:
        abort(self._socket)


def _raise_session_error(transport: Transport, settings: Settings, limit: float, *, greeted: bool) -> NoReturn:
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
