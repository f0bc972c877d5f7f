"""The user's keys, from files and the agent, each loaded once."""

import base64
import copy
import os
import shlex
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
from paramiko.agent import AgentKey

from ipexctl.act.inputs import expand_home
from ipexctl.act.ssh.hostkeys import compute_fingerprint
from ipexctl.act.ssh.paramiko_internals import SharedAgent
from ipexctl.act.ssh.settings import DEFAULT_KEYS, Settings
from ipexctl.model.json_values import Record

_MOST = 6  # keys offered to one host: sshd ends the connection after six failures


class Key(Record):
    """``name`` identifies the key in messages."""

    name: str
    key: paramiko.PKey


class UnusableKey(Record):
    """A requested key that cannot be used, with reason and hint. ``code`` is "key-mode" or "auth"."""

    why: str
    code: str = "auth"
    hint: str | None = None


class Keys:
    """Loads keys on demand and caches them. ``ask`` prompts for a passphrase and returns it, or None."""

    def __init__(self, ask: Callable[[str], str | None] | None) -> None:
        self._ask = ask
        self._loaded: dict[str, Key | UnusableKey] = {}
        self._agent: SharedAgent | None = None
        self._agent_keys: list[Key] | None = None
        self._lock = threading.Lock()

    def select_keys(self, settings: Settings) -> Iterator[Key | UnusableKey]:
        """The keys to offer to a host, in order: named files, the agent, default files."""
        offered: set[bytes] = set()
        count = 0
        for key in self._list_candidates(settings):
            if isinstance(key, UnusableKey):
                yield key
            elif (blob := _get_public_blob(key.key)) not in offered and count < _MOST:
                offered.add(blob)
                count += 1
                yield key

    def close(self) -> None:
        """Disconnects from the agent; keys from files stay loaded, so that no passphrase is asked for twice."""
        with self._lock:
            if self._agent is not None:
                self._agent.close()
            self._agent = self._agent_keys = None
            kept = {path: key for path, key in self._loaded.items() if isinstance(key, Key)}
            self._loaded = {path: key for path, key in kept.items() if not isinstance(key.key, AgentKey)}

    def _list_candidates(self, settings: Settings) -> Iterator[Key | UnusableKey]:
        for path in settings.keys:
            if path.lower() != "none":
                yield from self._load_key(path, settings.certificates, requested=True)
        if not settings.only_these_keys:
            yield from self._load_agent_keys()
            if not settings.keys:
                for path in DEFAULT_KEYS:
                    yield from self._load_key(path, (), requested=False)

    def _load_agent_keys(self) -> list[Key]:
        with self._lock:
            if self._agent_keys is None:
                try:
                    self._agent = SharedAgent()
                    found = self._agent.get_keys()
                    self._agent_keys = [Key(f"agent key {key.comment or key.get_name()}", key) for key in found]
                except (paramiko.SSHException, OSError):
                    self._agent_keys = []  # an agent that does not answer is no agent
            return self._agent_keys

    def _load_key(self, path: str, certificates: tuple[str, ...], *, requested: bool) -> Iterator[Key | UnusableKey]:
        """The key, after its certificates if there are any, or why it cannot be used."""
        agent = {bytes(key.key.asbytes()): key for key in self._load_agent_keys()}
        with self._lock:
            if path not in self._loaded:
                self._loaded[path] = self._read_key_file(path, agent)
            key = self._loaded[path]
        if isinstance(key, UnusableKey):
            if requested or key.code == "key-mode":
                yield key
            return
        if not isinstance(key.key, AgentKey):
            for certificate in map(str, map(expand_home, (f"{path}-cert.pub", *certificates))):
                signed = copy.copy(key.key)
                try:
                    signed.load_certificate(certificate)
                except (OSError, ValueError, paramiko.SSHException):
                    continue  # there is none, or it is of another key
                yield Key(f"{path} with certificate {certificate}", signed)
        yield key

    def _read_key_file(self, path: str, agent: dict[bytes, Key]) -> Key | UnusableKey:
        place = expand_home(path)
        blob = _read_public_key_blob(place)
        try:
            status = place.stat()
        except OSError as error:
            return agent.get(blob) or UnusableKey(f"key {path}: {(error.strerror or 'cannot be read').lower()}")
        if not stat.S_ISREG(status.st_mode):  # a FIFO would be waited for, a device never ends
            return UnusableKey(f"key {path} is not a regular file")
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid == os.getuid() and mode & 0o077:
            what = f"key {path} can be read by others (mode {mode:04o})"
            return UnusableKey(what, "key-mode", f"chmod 600 {shlex.quote(path)}")
        if blob in agent:
            return agent[blob]
        try:
            key = _load_private_key(place, None)
        except paramiko.PasswordRequiredException:
            passphrase = self._ask(f"Passphrase of {path}: ") if self._ask else None
            if not passphrase:
                what = f"key {path} has a passphrase and no agent holds it"
                return UnusableKey(what, hint=f"ssh-add {shlex.quote(path)}")
            try:
                key = _load_private_key(place, passphrase)
            except (paramiko.SSHException, ValueError):
                return UnusableKey(f"key {path}: the passphrase is wrong")
        except (paramiko.SSHException, ValueError, OSError) as error:
            return UnusableKey(f"key {path} cannot be read: {error}")
        return Key(f"{path} ({compute_fingerprint(key.asbytes())})", key)


def _load_private_key(place: Path, passphrase: str | None) -> paramiko.PKey:
    errors: list[Exception] = []
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key_file(str(place), passphrase)
        except paramiko.PasswordRequiredException:
            raise
        except (paramiko.SSHException, ValueError) as error:
            errors.append(error)
    if b"PRIVATE KEY" not in place.read_bytes()[: 1 << 16]:
        raise paramiko.SSHException("not a private key")
    raise errors[0]


def _read_public_key_blob(place: Path) -> bytes:
    """The public part beside a private key, b"" if there is none."""
    try:
        words = place.with_name(place.name + ".pub").read_text("ascii", "replace").split()
        return base64.b64decode(words[1])
    except (OSError, IndexError, ValueError):
        return b""


def _get_public_blob(key: paramiko.PKey) -> bytes:
    blob = getattr(key, "public_blob", None)
    return bytes(blob.key_blob) if blob else bytes(key.asbytes())
