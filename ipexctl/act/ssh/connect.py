"""Connecting: one deadline over name, TCP, banner, key exchange and login; the host's key is judged before any login.

Paramiko's transport is driven directly, because its `SSHClient` costs several times as much and reads known_hosts its
own way. No agent, X11 or port is ever forwarded: nothing here can ask for it, and what a host asks for is refused."""

import os
import random
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko

from ipexctl.act.ssh import hostkeys
from ipexctl.act.ssh.keys import PrivateKeys, UnusableKey
from ipexctl.act.ssh.settings import Settings, SSHSettings, list_known_host_names
from ipexctl.act.ssh.tcp import open_tcp
from ipexctl.act.ssh.transport import LOSSES, ConnectError, ShedError, Transport, abort_connection
from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.hosts import Host, LinkError
from ipexctl.model.json_values import Record
from ipexctl.model.text import pluralize, printable

_JUMP_FAILURE_TTL = 5.0  # seconds for which a jump host that could not be reached is not tried again
_PROXY_GRACE = 2.0  # seconds in which ProxyCommands end
_TRANSPORT_GRACE = 0.3  # seconds after the deadline in which the transport may still say why


class _Attempt(Record):
    """Connecting to one host, or to one jump host on the way to it."""

    settings: Settings
    deadline: float  # on the monotonic clock
    limit: float  # seconds, for messages
    on_socket: Callable[[Any], None]
    notes: list[str]  # for the user

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, and a moment at least."""
        return max(0.1, self.deadline - time.monotonic())

    def make_timeout_error(self, what: str, code: str = "timeout") -> ConnectError:
        return ConnectError(code, f"{what} {self.limit:g} s ({self.settings.endpoint})")


class Dialler:
    """Connects hosts; keeps what several of them share: settings, known hosts, keys, connections to jump hosts."""

    def __init__(
        self, timeout: float, accept_new: bool, settings: SSHSettings, ask: Callable[[str], str | None] | None
    ) -> None:
        self._timeout = timeout
        self._accept_new = accept_new
        self._settings = settings
        self._keys = PrivateKeys(ask)
        self._known: dict[tuple[Path, ...], hostkeys.KnownHosts] = {}
        self._jumps: dict[Settings, _JumpConnection] = {}
        self._proxies: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def dial(self, host: Host, on_socket: Callable[[Any], None]) -> tuple[Transport, list[str]]:
        """Returns an authenticated connection, and notes for the user. Raises `LinkError`. ``on_socket`` gets each
        socket while it is being connected, so that it can be shut down from outside."""
        notes: list[str] = []
        try:
            settings = self._settings.find_settings(host)
            self._check_recording(host, settings)
            limit = min(self._timeout, settings.timeout or self._timeout)
            return self._connect(_Attempt(settings, time.monotonic() + limit, limit, on_socket, notes)), notes
        except ConnectError as error:
            failure = Failure(host.name, Kind.UNREACHABLE, error.what, error.hint or host.hint, error.code)
            raise LinkError(failure) from None

    def close(self) -> None:
        """Ends the connections to jump hosts, and the agent's."""
        with self._lock:
            jumps, self._jumps = list(self._jumps.values()), {}
            proxies, self._proxies = self._proxies, []
        for jump in jumps:
            jump.abort()
        for proxy in proxies:
            proxy.terminate()
        until = time.monotonic() + _PROXY_GRACE
        for proxy in proxies:
            try:
                proxy.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:  # it does not heed SIGTERM
                os.killpg(proxy.pid, signal.SIGKILL)
                proxy.wait()
        self._keys.close()

    def _check_recording(self, host: Host, settings: Settings) -> None:
        """Refuses a hostfile's known_hosts in which a new key may not be recorded, before the host is connected. Raises
        `UsageError`."""
        path = settings.known_hosts[0]
        accept_new = self._accept_new or settings.accept_new
        if not accept_new or not settings.user_known_hosts or path in settings.user_known_hosts:
            return  # nothing is recorded, or in a file that the user's own configuration names
        if self._read_known_hosts(settings.known_hosts).key_types(list_known_host_names(settings)[0]):
            return  # its key is known, or refused
        origin = host.origin
        if origin and origin.file == "--hosts":
            return  # the user named the file
        if why := hostkeys.find_recording_fault(path, Path(origin.file).parent if origin else None):
            place = printable(str(origin or host.name), 300)
            raise UsageError(f"{place}: the host's key cannot be recorded in {printable(str(path), 300)}: {why}")

    def _read_known_hosts(self, files: tuple[Path, ...]) -> hostkeys.KnownHosts:
        with self._lock:
            if files not in self._known:
                self._known[files] = hostkeys.KnownHosts(files)
            return self._known[files]

    def _connect(self, attempt: _Attempt) -> Transport:
        command, jump = attempt.settings.command, attempt.settings.jump
        pause, tries, closed = 0.1, 0, EOFError()
        while True:
            try:
                if command:
                    sock: Any = self._start_proxy_command(command)
                elif jump is None:
                    sock = open_tcp(attempt.settings, attempt.deadline, attempt.limit, attempt.on_socket)
                else:
                    sock = _open_jump_channel(self._connect_jump_host(jump, attempt), jump.name, attempt)
                return self._log_in(sock, attempt)
            except EOFError as error:
                # A busy sshd closes connections at random before they begin (MaxStartups): try again, later.
                pause, tries, closed = pause * 2 + random.random() * 0.2, tries + 1, error
                if time.monotonic() + pause > attempt.deadline or pause > 3:
                    raise _explain_early_close(error, tries, attempt) from None
                time.sleep(pause)
            except ConnectError as error:
                if tries and error.code in ("banner", "timeout"):  # the last try had little time: it is no reason
                    raise _explain_early_close(closed, tries, attempt) from None
                raise

    def _start_proxy_command(self, command: str) -> socket.socket:
        """Starts a ProxyCommand in a shell, as OpenSSH does; returns a socket to it."""
        line, quiet = ("/bin/sh", "-c", f"exec {command}"), subprocess.DEVNULL
        local_end, remote_end = socket.socketpair()
        with remote_end:
            end = remote_end.fileno()
            process = subprocess.Popen(line, stdin=end, stdout=end, stderr=quiet, start_new_session=True)
        with self._lock:
            self._proxies.append(process)
        return local_end

    def _connect_jump_host(self, settings: Settings, behind: _Attempt) -> Transport:
        """Returns the shared connection to a jump host; the first thread makes it, the others wait for it."""
        with self._lock:
            jump = self._jumps.get(settings)
            first = jump is None or jump.is_unusable
            if jump is None or first:
                jump = self._jumps[settings] = _JumpConnection()
        if first:
            failure = ConnectError("jump", f"jump host {settings.name}: the connection was lost")
            try:
                jump.set_result(self._connect(replace(behind, settings=settings, on_socket=jump.set_socket)))
            except ConnectError as error:
                named = error.code == "jump"  # a hop further on already says which one it is
                what = error.what if named else f"jump host {settings.name}: {error.what}"
                code = error.code if error.code.startswith("host-key") else "jump"
                failure = ConnectError(code, what, error.hint)
            finally:
                jump.until = time.monotonic() + _JUMP_FAILURE_TTL
                if not jump.done():
                    jump.set_exception(failure)
        try:
            return jump.result(behind.time_left)
        except FutureTimeoutError:
            raise ConnectError("jump", f"jump host {settings.name}: no answer within {behind.limit:g} s") from None

    def _log_in(self, sock: Any, attempt: _Attempt) -> Transport:
        """Exchanges keys, verifies the host's key and authenticates. Raises `EOFError` if the connection closes before
        a banner, else `ConnectError`."""
        settings = attempt.settings
        known = self._read_known_hosts(settings.known_hosts)
        user_known = self._read_known_hosts(settings.user_known_hosts)
        names = list_known_host_names(settings)
        transport = Transport(sock)
        attempt.on_socket(transport)
        try:
            transport.deadline = attempt.deadline
            types, user_types = hostkeys.list_key_types(known, names), hostkeys.list_key_types(user_known, names)
            types = [*(kind for kind in user_types if kind in types), *user_types] or types
            transport.set_algorithms(types, settings.algorithms)
            transport.banner_timeout = transport.handshake_timeout = attempt.time_left
            ready = threading.Event()
            transport.start_client(event=ready)
            ready.wait(attempt.time_left + _TRANSPORT_GRACE)
            try:
                key = transport.get_remote_server_key()
            except paramiko.SSHException:  # there is none yet, or the connection has ended
                raise _explain_failed_key_exchange(transport, attempt) from None
            with self._lock:
                accept_new = self._accept_new or settings.accept_new
                attempt.notes.extend(_verify_host_key(key, known, user_known, names, accept_new=accept_new))
            self._authenticate(transport, attempt)
            transport.start_keepalive()
            return transport
        except BaseException:
            transport.end()
            raise

    def _authenticate(self, transport: Transport, attempt: _Attempt) -> None:
        user = attempt.settings.user
        tried: list[str] = []
        unusable: list[UnusableKey] = []
        for key in self._keys.select_keys(attempt.settings):
            if isinstance(key, UnusableKey):
                unusable.append(key)
                continue
            if time.monotonic() >= attempt.deadline:
                raise attempt.make_timeout_error("login took longer than")
            transport.auth_timeout = attempt.time_left
            tried.append(key.name)
            try:
                further = transport.auth_publickey(user, key.key)
            except paramiko.BadAuthenticationType as error:
                accepts = printable(", ".join(error.allowed_types), 80)
                accepts = f"only {accepts}" if accepts else "neither a key nor a password"
                raise ConnectError("auth", f"login as {user} refused: the host accepts {accepts}") from None
            except LOSSES as error:
                if not transport.is_active():
                    break
                if isinstance(error, paramiko.AuthenticationException) and time.monotonic() >= attempt.deadline:
                    raise attempt.make_timeout_error("login took longer than") from None
                continue
            if not further:
                return
            needs = printable(", ".join(further), 80)
            raise ConnectError("auth", f"login as {user}: key accepted, but the host also wants {needs}")
        reasons = [key.why for key in unusable]
        if tried:
            words = "" if transport.is_active() else transport.describe_refusal()
            what = f"login as {user} refused{words}; tried {', '.join(tried)}"
            hint = next((key.hint for key in unusable if key.hint), None)
            raise ConnectError("auth", "; ".join([what, *reasons]), hint)
        if unusable and unusable[0].code != "agent":
            raise ConnectError(unusable[0].code, "; ".join(reasons), unusable[0].hint)
        what = "; ".join([f"no key to log in as {user} with", *reasons])
        raise ConnectError("auth", what, "ssh-keygen -t ed25519, then ssh-copy-id")


class _JumpConnection(Future[Transport]):
    """A connection to a jump host that many hosts share."""

    until = 0.0  # the time, monotonic, from which another one is tried where this one failed
    _socket: Any = None

    @property
    def is_unusable(self) -> bool:
        """The connection was lost, or failed more than `_JUMP_FAILURE_TTL` seconds ago."""
        if not self.done():
            return False
        return time.monotonic() > self.until if self.exception() else not self.result().is_active()

    def set_socket(self, sock: Any) -> None:
        self._socket = sock

    def abort(self) -> None:
        abort_connection(self._socket)


def _open_jump_channel(jump: Transport, name: str, attempt: _Attempt) -> paramiko.Channel:
    address = attempt.settings.address, attempt.settings.port
    try:
        return jump.open_channel("direct-tcpip", address, ("", 0), timeout=attempt.time_left)
    except paramiko.ChannelException as error:
        if error.code == 1:  # the same for all hosts behind it
            raise ConnectError("jump", f"jump host {name} forbids forwarding", "AllowTcpForwarding there") from None
        why = printable(str(error.text), 80).lower()
        raise ConnectError("no-route", f"jump host {name} cannot reach {attempt.settings.endpoint}: {why}") from None
    except LOSSES:
        if jump.is_active() and attempt.time_left > 1.0:  # refused; Paramiko keeps one reason, which another thread got
            time.sleep(0.1)
            return _open_jump_channel(jump, name, attempt)
        if jump.is_active():
            raise attempt.make_timeout_error(f"no answer through jump host {name} within") from None
        raise ConnectError("jump", f"jump host {name}: the connection was lost") from None


def _verify_host_key(
    key: paramiko.PKey,
    known: hostkeys.KnownHosts,
    user_known: hostkeys.KnownHosts,
    names: tuple[str, str],
    *,
    accept_new: bool,
) -> list[str]:
    """Notes for the user. A new key is recorded if that is allowed. Raises `ConnectError` for one that is not known,
    and for one that contradicts ``user_known``, whatever ``known`` says."""
    blob, kind, (name, other_name) = key.asbytes(), key.get_name(), names
    shown_key = f"{kind} {hostkeys.compute_fingerprint(blob)}"
    verdict, entry = user_known.judge_key(name, blob, also=other_name)
    if verdict not in hostkeys.CONTRADICTIONS:
        verdict, entry = known.judge_key(name, blob, also=other_name)
    skipped = [f"skipped a line of known hosts: {problem}" for problem in known.problems]
    if verdict == "ok":
        known.problems = []  # reported with this host; a host that is refused below leaves them to the next
        return skipped
    if verdict == "revoked" and entry:
        raise ConnectError("host-key-revoked", f"host key {shown_key} is revoked ({entry.file}:{entry.line})")
    if verdict == "changed" and entry:
        was = f"{entry.kind} {hostkeys.compute_fingerprint(entry.blob)}"
        what = f"host key CHANGED: it is {shown_key}, known is {was} ({entry.file}:{entry.line})"
        hint = f"if it was really set up anew: ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(entry.file)}"
        raise ConnectError("host-key-changed", what, hint)
    if verdict == "unknown" and accept_new:
        try:
            path = known.record_key(name, kind, blob)
        except OSError as error:
            raise ConnectError("host-key-unknown", f"{known.files[0]} cannot be written: {error.strerror}") from None
        known.problems = []
        return [*skipped, f"new host key {shown_key} of {name} recorded in {path}"]
    why = "; certificates of hosts are not supported" if verdict == "certificate" else ""
    line = shlex.quote(hostkeys.format_known_hosts_line(name, kind, blob))
    file = known.files[0]
    first = "" if file.parent.is_dir() else f"mkdir -p -m 700 {shlex.quote(str(file.parent))} && "
    hint = f"if it is right: {first}echo {line} >> {shlex.quote(str(file))}"
    raise ConnectError("host-key-unknown", "; ".join([f"unknown host key {shown_key}{why}", *skipped]), hint)


def _explain_early_close(error: EOFError, tries: int, attempt: _Attempt) -> ConnectError:
    """Why a server closed each connection before it began: by a limit that it names, or without a word."""
    hint = "fewer at once (--forks 4), or raise MaxStartups and PerSourcePenalties in its sshd_config"
    endpoint = attempt.settings.endpoint
    if isinstance(error, ShedError):
        what = f"refused by the server's {error.limit} {pluralize(tries, 'time')}: it says '{error.words}' ({endpoint})"
        return ConnectError("shed", what, hint)
    what = f"connection closed before a banner came, {pluralize(tries, 'time')} ({endpoint})"
    return ConnectError("banner", what, f"if its sshd is busy: {hint}")


def _explain_failed_key_exchange(transport: Transport, attempt: _Attempt) -> Exception:
    """Why there was no key exchange: a `ConnectError`, or an `EOFError` if the connection closed without a banner."""
    error, settings, greeted = transport.get_exception(), attempt.settings, bool(transport.remote_version)
    if isinstance(error, ConnectError):
        return ConnectError(error.code, f"{error.what} ({settings.endpoint})")
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return transport.explain_incompatible(error, settings.pattern)
    if isinstance(error, ShedError):
        return error
    if transport.is_active() or time.monotonic() > transport.deadline - _TRANSPORT_GRACE:
        late = attempt.make_timeout_error
        return late("no key exchange within") if greeted else late("no SSH banner within", "banner")
    if greeted:
        return ConnectError("lost", f"connection closed during the key exchange ({settings.endpoint})")
    if settings.command:
        command = printable(settings.command, 60)
        return ConnectError("jump", f"the ProxyCommand ended without a connection ({command})")
    return EOFError()
