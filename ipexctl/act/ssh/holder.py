"""Connections that outlive a command: an ``ssh`` of the user's own holds each, in the background, for a while.

OpenSSH logs in over a connection that ipexctl has opened, checks the host's key, and then serves a control socket
(`mux`). Sockets lie in a directory of ours; each is named by a hash of all that decides the connection, so that a
command finds what it would make itself. Beside it lies a lock file, which says for whom the connection was made.

Where no holder can be had, `HolderError` says why, and the caller logs in by itself: its errors are the contract."""

import fcntl
import hashlib
import json
import logging
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipexctl.act.inputs import expand_home
from ipexctl.act.private_files import make_private_directories
from ipexctl.act.ssh.algorithms import CIPHERS, HOST_KEYS, KEX, MACS, RSA, change_algorithms
from ipexctl.act.ssh.banner import await_banner
from ipexctl.act.ssh.hostkeys import CONTRADICTIONS, Entry, KnownHosts, list_key_types
from ipexctl.act.ssh.mux import MuxConnection, MuxError
from ipexctl.act.ssh.settings import DEFAULT_KEYS, Settings, SSHSettings, list_known_host_names
from ipexctl.act.ssh.tcp import open_tcp
from ipexctl.model.errors import ConnectError
from ipexctl.model.hosts import Host
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable

_FORMAT = 2  # of names: another one finds no holder of an older ipexctl
_LONGEST_PATH = 108 - 1 - 17  # bytes of a socket's path; ssh binds it with 17 more, and then gives it its name
_REMEMBERED = 60.0  # seconds for which a holder that could not be had is not tried again by the same command
_UNREACHED = 5.0  # the same for a jump host that could not be reached, as in `Dialler`; a host itself is tried again
_LOCAL = 2.0  # seconds for a reply of a process of this machine
_KEEPALIVE, _UNANSWERED = 7, 3  # as of `Transport`: a host that is gone is noticed within 30 s
_OTHER_KEX = (
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "diffie-hellman-group16-sha512",
    "diffie-hellman-group14-sha256",
)
_TUNED = (("Ciphers", CIPHERS), ("MACs", MACS), ("KexAlgorithms", (*KEX, *_OTHER_KEX)))
# Nothing is asked, forwarded, executed here or written to known hosts; no certificate of a host is taken.
_FIXED = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "VerifyHostKeyDNS": "no",
    "CheckHostIP": "no",
    "GlobalKnownHostsFile": "/dev/null",
    "PreferredAuthentications": "publickey",
    "AddKeysToAgent": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "Tunnel": "no",
    "PermitLocalCommand": "no",
    "EscapeChar": "none",
    "Compression": "no",
    "LogLevel": "ERROR",
    "ServerAliveInterval": str(_KEEPALIVE),
    "ServerAliveCountMax": str(_UNANSWERED),
    "ControlMaster": "yes",
}

# The fields of `Settings` that decide a connection, with those of its jump host.
_DECIDING = ("address", "user", "port", "keys", "certificates", "only_these_keys", "alias", "known_hosts", "command",
             "algorithms")  # fmt: skip

_log = logging.getLogger(__name__)


class HolderError(Exception):
    """There is no persistent connection. ``note`` says why, for the user; empty where a login by ourselves says it."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.note = note


class PersistentConnection(Record):
    """A connection that a holder has. ``is_new``: it was made by this command, and its host has just answered."""

    path: Path  # of the control socket
    pid: int  # of the holder
    control: MuxConnection
    is_new: bool


class ConnectionRecord(Record):
    """What a lock file says of the holder beside it."""

    name: str
    address: str
    user: str | None
    port: int | None
    key: str | None
    endpoint: str
    jump: str  # the name of the holder that it goes through, or ""

    def is_for(self, host: Host) -> bool:
        """Whether the connection was made for this host of the inventory."""
        made_for = (self.address, self.user, self.port, self.key)  # by another name it is the same connection
        return made_for == (host.address, host.user, host.port, host.key)


class _Wanted(Record):
    """A persistent connection that is asked for."""

    settings: Settings
    host: Host | None  # None: a jump host
    deadline: float  # on the monotonic clock
    limit: float  # seconds, for messages
    on_socket: Callable[[Any], None]
    is_cancelled: Callable[[], bool]


def make_holder_directory(directory: Path) -> None:
    """Makes it, for nobody else. Raises `HolderError` for one that others can use."""
    try:
        make_private_directories(directory)
        status = directory.lstat()
    except OSError as error:
        raise HolderError(f"{directory}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise HolderError(f"{directory} is not a directory of mode 0700 of your own")


class _Start(Future[bool]):
    """The start of a holder by one thread, for which others wait."""

    until = 0.0  # the time, monotonic, until which one that failed is not tried again

    @property
    def is_over(self) -> bool:
        """Another start may be tried: it succeeded (and the holder has ended since), or failed a while ago."""
        return self.done() and (not self.exception() or time.monotonic() > self.until)


class Holders:
    """Finds and starts the holders of connections. ``persist``: seconds that they outlive their last use."""

    def __init__(self, settings: SSHSettings, timeout: float, persist: float, directory: Path) -> None:
        self._settings = settings
        self.timeout = timeout
        self._persist = max(1, round(persist))
        self._directory = directory
        self._known: dict[tuple[Path, ...], KnownHosts] = {}
        self._starts: dict[str, _Start] = {}
        self._lock, self._reading = threading.Lock(), threading.Lock()

    def hold(
        self, host: Host, on_socket: Callable[[Any], None], is_cancelled: Callable[[], bool], notes: list[str]
    ) -> PersistentConnection:
        """The persistent connection to a host; it is made if there is none. ``notes`` gets what the user should know.

        Raises `ConnectError` where the host cannot be reached at all, `HolderError` where the caller is to log in."""
        settings = self._settings.find_settings(host)
        limit = min(self.timeout, settings.timeout or self.timeout)
        make_holder_directory(self._directory)
        wanted = _Wanted(settings, host, time.monotonic() + limit, limit, on_socket, is_cancelled)
        try:
            connection = self._hold(wanted)
        except OSError as error:  # no space, a file system without locks, too many open files
            raise HolderError(f"{self._directory}: {error.strerror}") from None
        known = self._read_known_hosts(settings.known_hosts)
        with self._lock:
            notes.extend(f"skipped a line of known hosts: {problem}" for problem in known.problems)
            known.problems = []
        return connection

    def end(self, host: Host) -> bool:
        """Ends the holders of a host's connections, also of those that were made by other settings or known keys;
        whether there was one as of now."""
        made = list_connections(self._directory).items()
        end_connections(self._directory, [name for name, (record, _) in made if record.is_for(host)])
        path = self._directory / self._compute_name(self._settings.find_settings(host))
        try:
            control = MuxConnection(path, _LOCAL)
        except MuxError:
            return False
        _terminate(control)
        return True

    def _hold(self, wanted: _Wanted) -> PersistentConnection:
        name = self._compute_name(wanted.settings)
        path = self._directory / name
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise HolderError(f"the path of {self._directory} is too long for a socket")
        with suppress(MuxError):
            return _connect(path)
        if not self._list_key_types(wanted.settings):
            raise HolderError("")  # the login refuses the host, or records its key
        if self._is_contradicted(wanted.settings):
            raise HolderError("the hostfile's known_hosts and yours differ")  # the login judges the key that is shown
        with self._lock:
            start = self._starts.get(name)
            is_first = start is None or start.is_over
            if start is None or is_first:
                start = self._starts[name] = _Start()
        if is_first:
            try:
                start.set_result(self._start_locked(wanted, path))
            except BaseException as error:
                unreached = 0.0 if wanted.host else _UNREACHED
                start.until = time.monotonic() + (_REMEMBERED if isinstance(error, HolderError) else unreached)
                start.set_exception(error)
                raise
        with suppress(FutureTimeoutError):
            start.result(max(0.1, wanted.deadline - time.monotonic()))
        try:
            return replace(_connect(path), is_new=True)
        except MuxError as error:
            raise HolderError(str(error)) from None

    def _start_locked(self, wanted: _Wanted, path: Path) -> bool:
        """Starts a holder unless another command has done so meanwhile. Raises `ConnectError` and `HolderError`."""
        with _locked(path, wanted) as lock:
            with suppress(MuxError):
                _connect(path).control.close()
                return False
            path.unlink(missing_ok=True)  # of a holder that was killed
            self._start(wanted, path, lock)
            return True

    def _start(self, wanted: _Wanted, path: Path, lock: int) -> None:
        """Starts a holder. Its record comes first: also one that outlives a killed command can be found and ended."""
        settings, sock, jump = wanted.settings, None, ""
        program = shutil.which("ssh")
        if program is None:
            raise HolderError("there is no ssh program")
        if settings.command:
            proxy = settings.command
        elif settings.jump:
            jump, proxy = self._go_through(settings, wanted, program)
        else:
            proxy, sock = "-", self._open_socket(wanted)
        try:
            types = self._list_key_types(settings)
            options = make_options(settings, types, path, proxy, self._persist, wanted.limit)
            line = [program, "-F", "none", "-f", "-N", *(f"-o{key}={value}" for key, value in options)]
            line += ["-p", str(settings.port), "-l", settings.user, "--", settings.address]
            _write_record(lock, wanted, jump)
            _run_holder(line, sock, wanted)
        finally:
            if sock is not None:
                sock.close()

    def _open_socket(self, wanted: _Wanted) -> socket.socket:
        """A socket to a server that greets as SSH does. Raises `ConnectError`."""
        settings = wanted.settings
        sock = open_tcp(settings, wanted.deadline, wanted.limit, wanted.on_socket)
        try:
            await_banner(sock, wanted.deadline)
        except ConnectError as error:
            what = f"no SSH banner within {wanted.limit:g} s" if error.code == "banner" else error.what
            sock.close()
            raise ConnectError(error.code, f"{what} ({settings.endpoint})") from None
        except EOFError:  # a busy server: logging in by ourselves tries again
            sock.close()
            raise HolderError("") from None
        sock.settimeout(None)
        return sock

    def _go_through(self, settings: Settings, wanted: _Wanted, program: str) -> tuple[str, str]:
        """The name of the holder of the jump host's connection, and a command that goes through it."""
        jump = settings.jump
        assert jump is not None
        try:
            connection = self._hold(replace(wanted, settings=jump, host=None))
        except ConnectError as error:
            named = error.code == "jump"  # a hop further on already says which one it is
            what = error.what if named else f"jump host {jump.name}: {error.what}"
            raise ConnectError("jump", what, error.hint) from None
        connection.control.close()
        path = str(connection.path).replace("%", "%%")
        options = (f"-oControlPath={_quote(path)}", "-oControlMaster=no", "-oBatchMode=yes", "-oProxyCommand=false")
        line = [program, "-F", "none", *options, "-W", settings.endpoint, "--", jump.address]
        return connection.path.name, shlex.join(line)

    def _read_known_hosts(self, files: tuple[Path, ...]) -> KnownHosts:
        with self._reading:
            if files not in self._known:
                self._known[files] = KnownHosts(files)
            return self._known[files]

    def _list_key_types(self, settings: Settings) -> list[str]:
        return list_key_types(self._read_known_hosts(settings.known_hosts), list_known_host_names(settings))

    def _find_entries(self, settings: Settings, files: tuple[Path, ...]) -> list[Entry]:
        """The lines about a host in some known_hosts files."""
        known = self._read_known_hosts(files)
        return [entry for name in list_known_host_names(settings) if name for entry in known.find_entries(name)]

    def _is_contradicted(self, settings: Settings) -> bool:
        """Whether the user's known hosts refuse a key that the hostfile's allow: ``ssh`` reads only the latter."""
        user_known, (name, other) = self._read_known_hosts(settings.user_known_hosts), list_known_host_names(settings)
        entries = self._find_entries(settings, settings.known_hosts)
        verdicts = (user_known.judge_key(name, entry.blob, also=other) for entry in entries if not entry.marker)
        return any(verdict.state in CONTRADICTIONS for verdict in verdicts)

    def _compute_name(self, settings: Settings) -> str:
        """The name of a connection's socket. What is known of the host's keys is part of it: a line that is removed,
        revoked or replaced leads to another connection, for which the key is checked anew."""
        hops = []
        hop: Settings | None = settings
        while hop is not None:
            entries = [*self._find_entries(hop, hop.known_hosts), *self._find_entries(hop, hop.user_known_hosts)]
            keys = {(entry.file, entry.marker, entry.blob) for entry in entries}
            files = [_find_file(name) for name in (*hop.keys, *hop.certificates)]  # relative to here
            hops.append((*(getattr(hop, field) for field in _DECIDING), files, sorted(keys)))
            hop = hop.jump
        text = repr((_FORMAT, socket.gethostname(), os.getuid(), hops))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def make_options(
    settings: Settings, key_types: list[str], path: Path, proxy: str, persist: int, limit: float
) -> Iterator[tuple[str, str]]:
    """The options of ``ssh`` for a holder: what `Dialler` does, in OpenSSH's words. ``proxy`` is its ProxyCommand, "-"
    for a connection that is its standard input. Raises `HolderError` for what those words cannot say."""
    yield from _FIXED.items()
    yield "ControlPath", _quote(str(path).replace("%", "%%"))
    yield "ControlPersist", str(persist)
    yield "ProxyCommand", proxy.replace("%", "%%")
    yield "ConnectTimeout", str(max(1, round(limit)))
    yield "UserKnownHostsFile", " ".join(_quote_path(_find_file(str(path))) for path in settings.known_hosts)
    yield "IdentitiesOnly", "yes" if settings.only_these_keys or settings.keys else "no"  # else the agent's come first
    for key in settings.keys or (("none",) if settings.only_these_keys else DEFAULT_KEYS):
        yield "IdentityFile", _quote_path(key if key.lower() == "none" else _find_file(key))
    for certificate in settings.certificates:
        yield "CertificateFile", _quote_path(_find_file(certificate))
    if settings.alias:
        yield "HostKeyAlias", settings.alias
    wishes = dict(settings.algorithms)
    types = [name for known in key_types for name in (RSA if known == "ssh-rsa" else (known,))]
    first = [name for name in dict.fromkeys([*types, *HOST_KEYS, *RSA]) if name in (*HOST_KEYS, *RSA)]
    for keyword, names in (*_TUNED, ("HostKeyAlgorithms", first)):
        yield keyword, ",".join(_apply_wish(wishes.get(keyword.lower(), ""), names))


def _apply_wish(wish: str, names: Sequence[str]) -> Sequence[str]:
    """``names`` as ssh_config changes them: the base of ``+`` is ours, OpenSSH's has certificates of hosts in it."""
    changed = change_algorithms(names, wish) if wish else names
    return [name for name in changed if "-cert-v0" not in name and not {*"*?"} & {*name}] or names


def list_connections(directory: Path) -> dict[str, tuple[ConnectionRecord, int]]:
    """The persistent connections of a directory: by name, with the process ids of their holders."""
    found = {}
    for lock in sorted(directory.glob("*.lock")) if directory.is_dir() else ():
        record = _read_record(lock)
        with suppress(MuxError, HolderError):
            make_holder_directory(directory)
            connection = _connect(lock.with_suffix(""))
            connection.control.close()
            if record:
                found[lock.stem] = record, connection.pid
    return found


def end_connections(directory: Path, names: list[str]) -> None:
    """Ends persistent connections, and those to jump hosts that no other one goes through. Raises nothing."""
    others = {name: record for name, (record, _) in list_connections(directory).items() if name not in names}
    ended = [_read_record(directory / f"{name}.lock") for name in names]
    needless = {record.jump for record in ended if record} - {record.jump for record in others.values()} - {""}
    for name in names:
        with suppress(MuxError):
            _terminate(MuxConnection(directory / name, _LOCAL))
    if needless - {*names}:
        end_connections(directory, sorted(needless - {*names}))


def _terminate(control: MuxConnection) -> None:
    try:
        with suppress(MuxError):
            control.terminate(_LOCAL)
    finally:
        control.close()


def _connect(path: Path) -> PersistentConnection:
    """Raises `MuxError`."""
    control = MuxConnection(path, _LOCAL)
    try:
        return PersistentConnection(path, control.check_alive(_LOCAL), control, is_new=False)
    except MuxError:
        control.close()
        raise


def _run_holder(line: list[str], sock: socket.socket | None, wanted: _Wanted) -> None:
    """Runs ``ssh`` until it has logged in and gone to the background. It keeps nothing of ours open.

    Raises `ConnectError` when the time is over, `HolderError` if it fails."""
    _log.debug("starts a holder: %s", shlex.join(line))
    end = subprocess.DEVNULL if sock is None else sock.fileno()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            line,
            stdin=end,
            stdout=end,
            stderr=errors,
            cwd="/",
            env={**os.environ, "SHELL": "/bin/sh"},  # for a ProxyCommand
            start_new_session=True,
        )
        status = None
        try:
            while status is None:
                if time.monotonic() > wanted.deadline:
                    raise ConnectError("timeout", f"no login within {wanted.limit:g} s ({wanted.settings.endpoint})")
                if wanted.is_cancelled():
                    raise HolderError("")
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.1)
        finally:
            if status is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        if status:
            errors.seek(0)
            output = printable(errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2], 160)
            _log.info("the holder ended with status %s: %s", status, output)
            raise HolderError(f"ssh could not log in: {output}" if output else "ssh could not log in")


@contextmanager
def _locked(path: Path, wanted: _Wanted) -> Iterator[int]:
    """The lock of a name, by descriptor: one command at a time starts its holder."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > wanted.deadline or wanted.is_cancelled():
                    raise HolderError("another command is logging in to the host") from None
                time.sleep(0.02)
        yield lock
    finally:
        os.close(lock)


def _write_record(lock: int, wanted: _Wanted, jump: str) -> None:
    settings = wanted.settings
    host = wanted.host or Host(settings.name, settings.address, settings.user, settings.port)
    record = ConnectionRecord(host.name, host.address, host.user, host.port, host.key, settings.endpoint, jump)
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(vars(record)).encode(), 0)


def _read_record(lock: Path) -> ConnectionRecord | None:
    """None for a file that is not whole."""
    try:
        return ConnectionRecord(**json.loads(lock.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _quote_path(path: str) -> str:
    """A path as a word of ssh_config, without tokens. Raises `HolderError`."""
    return _quote(path.replace("%", "%%"))


def _quote(word: str) -> str:
    if any(mark in word for mark in ('"', "\\", "${", "\n")):
        raise HolderError(f"ssh_config has no words for the name {printable(word, 80)}")
    return f'"{word}"'


def _find_file(path: str) -> str:
    return os.path.abspath(expand_home(path))  # noqa: PTH100
