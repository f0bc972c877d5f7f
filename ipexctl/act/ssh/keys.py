"""The user's keys, from files and the agent, each loaded once."""

from __future__ import annotations

import base64
import os
import shlex
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.agent import AgentKey

from ipexctl.act.ssh.hostkeys import fingerprint
from ipexctl.act.ssh.paramiko_internals import SharedAgent
from ipexctl.act.ssh.settings import Settings

_DEFAULT = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_MOST = 6  # keys offered to one host: sshd ends the connection after six failures


@dataclass(frozen=True, slots=True)
class Key:
    """``name`` identifies the key in messages."""

    name: str
    key: paramiko.PKey


@dataclass(frozen=True, slots=True)
class UnusableKey:
    """A requested key that cannot be used, with reason and hint. ``code`` is "key-mode" or "auth"."""

    why: str
    code: str = "auth"
    hint: str | None = None


class Keys:
    """Loads keys on demand and caches them. ``ask`` prompts for a passphrase and returns it, or None."""

    def __init__(self, ask: Callable[[str], str | None] | None) -> None:
        self._ask = ask
        self._loaded: dict[str, list[Key] | UnusableKey] = {}
        self._agent: SharedAgent | None = None
        self._agent_keys: list[Key] | None = None
        self._lock = threading.Lock()

    def keys_for(self, settings: Settings) -> Iterator[Key | UnusableKey]:
        """The keys to offer to a host, in order: named files, the agent, default files."""
        offered: set[bytes] = set()
        count = 0
        for key in self._list_candidates(settings):
            if isinstance(key, UnusableKey):
                yield key
            elif (blob := _public_blob(key.key)) not in offered and count < _MOST:
                offered.add(blob)
                count += 1
                yield key

    def close(self) -> None:
        """Disconnects from the agent; keys from files stay loaded, so that no passphrase is asked for twice."""
        with self._lock:
            if self._agent is not None:
                self._agent.close()
            self._agent = self._agent_keys = None
            self._loaded = {
                path: keys
                for path, keys in self._loaded.items()
                if isinstance(keys, list) and not any(isinstance(key.key, AgentKey) for key in keys)
            }

    def _list_candidates(self, settings: Settings) -> Iterator[Key | UnusableKey]:
        for path in settings.keys:
            if path.lower() != "none":
                yield from self._load_file(path, settings.certificates, requested=True)
        if not settings.only_these_keys:
            yield from self._load_agent_keys()
            if not settings.keys:
                for path in _DEFAULT:
                    yield from self._load_file(path, (), requested=False)

    def _load_agent_keys(self) -> list[Key]:
        with self._lock:
            if self._agent_keys is None:
                try:
                    self._agent = SharedAgent()
                    self._agent_keys = [
                        Key(f"agent key {key.comment or key.get_name()}", key) for key in self._agent.get_keys()
                    ]
                except (paramiko.SSHException, OSError):
                    self._agent_keys = []  # an agent that does not answer is no agent
            return self._agent_keys

    def _load_file(self, path: str, certificates: tuple[str, ...], *, requested: bool) -> list[Key | UnusableKey]:
        agent = {bytes(key.key.asbytes()): key for key in self._load_agent_keys()}
        with self._lock:
            if path not in self._loaded:
                self._loaded[path] = self._read_key(path, certificates, agent)
            keys = self._loaded[path]
        if isinstance(keys, UnusableKey):
            return [keys] if requested or keys.code == "key-mode" else []
        return list(keys)

    def _read_key(self, path: str, certificates: tuple[str, ...], agent: dict[bytes, Key]) -> list[Key] | UnusableKey:
        """The key (and first its certificate, if there is one), or why it cannot be used."""
        place = Path(path).expanduser()
        try:
            status = place.stat()
        except OSError as error:
            blob = _read_public_blob(place)
            if blob in agent:
                return [agent[blob]]
            return UnusableKey(f"key {path}: {(error.strerror or 'cannot be read').lower()}")
        if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            return UnusableKey(
                f"key {path} can be read by others (mode {mode:04o})", "key-mode", f"chmod 600 {shlex.quote(path)}"
            )
        if (blob := _read_public_blob(place)) in agent:
            return [agent[blob]]
        passphrase: str | None = None
        try:
            key = _load_private_key(place, None)
        except paramiko.PasswordRequiredException:
            passphrase = self._ask(f"Passphrase of {path}: ") if self._ask else None
            if not passphrase:
                return UnusableKey(
                    f"key {path} has a passphrase and no agent holds it", hint=f"ssh-add {shlex.quote(path)}"
                )
            try:
                key = _load_private_key(place, passphrase)
            except (paramiko.SSHException, ValueError):
                return UnusableKey(f"key {path}: the passphrase is wrong")
        except (paramiko.SSHException, ValueError, OSError) as error:
            return UnusableKey(f"key {path} cannot be read: {error}")
        name = f"{path} ({fingerprint(key.asbytes())})"
        certified = [f"{place}-cert.pub", *(os.path.expanduser(name) for name in certificates)]  # noqa: PTH111
        signed: list[Key] = []
        for certificate in certified:
            if os.path.isfile(certificate):  # noqa: PTH113
                twin = _load_private_key(place, passphrase)
                try:
                    twin.load_certificate(certificate)
                except (ValueError, paramiko.SSHException):
                    continue  # of another key
                signed.append(Key(f"{path} with certificate {certificate}", twin))
        return [*signed, Key(name, key)]


def _load_private_key(place: Path, passphrase: str | None) -> paramiko.PKey:
    head = place.read_bytes()[: 1 << 16]
    classes = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
    errors: list[Exception] = []
    for kind in classes:
        try:
            return kind.from_private_key_file(str(place), passphrase)
        except paramiko.PasswordRequiredException:
            raise
        except (paramiko.SSHException, ValueError) as error:
            errors.append(error)
    if b"PRIVATE KEY" not in head:
        raise paramiko.SSHException("not a private key")
    raise errors[0]


def _read_public_blob(place: Path) -> bytes:
    """The public part beside a private key, b"" if there is none."""
    try:
        words = place.with_name(place.name + ".pub").read_text("ascii", "replace").split()
        return base64.b64decode(words[1])
    except (OSError, IndexError, ValueError):
        return b""


def _public_blob(key: paramiko.PKey) -> bytes:
    blob = getattr(key, "public_blob", None)
    return bytes(blob.key_blob) if blob else bytes(key.asbytes())
