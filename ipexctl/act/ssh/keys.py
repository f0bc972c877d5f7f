"""The user's keys, from files and the agent, each loaded once."""

import base64
import copy
import io
import os
import re
import shlex
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko
from cryptography.hazmat.primitives import serialization
from paramiko.agent import AgentKey

from ipexctl.act.inputs import expand_home, read_limited
from ipexctl.act.ssh.hostkeys import compute_fingerprint
from ipexctl.act.ssh.paramiko_internals import SharedAgent
from ipexctl.act.ssh.settings import DEFAULT_KEYS, Settings
from ipexctl.model.json_values import Record

_MAGIC = b"openssh-key-v1\0"
_OPENSSH_KEY = re.compile(rb"-----BEGIN OPENSSH PRIVATE KEY-----([A-Za-z0-9+/=\s]+)-----END")
_PKCS8 = re.compile(rb"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----([A-Za-z0-9+/=\s]+)-----END")
# How an encrypted one begins: PBES2 with PBKDF2 (RFC 8018, A.2), a salt, and at most 2^23 rounds, about 3 s.
_PBKDF2 = re.compile(
    rb"0(?:\x81.|\x82..|.)0.\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0d0.0.\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0c0."
    rb"(?:%s)\x02[\x01-\x03]" % b"|".join(rb"\x04\x%02x.{%d}" % (size, size) for size in range(8, 33)),
    re.DOTALL,
)
_KEY_SIZE = 1 << 16  # bytes of a file with a key
_ROUNDS_LIMIT = 2000  # of bcrypt for a passphrase: about 40 s; ssh-keygen makes 16 to 24 without -a
_CLOSE_TIMEOUT = 0.5  # seconds
_OFFERED_KEYS = 6  # keys offered to one host: sshd ends the connection after six failures


class Key(Record):
    """``name`` identifies the key in messages."""

    name: str
    key: paramiko.PKey


class UnusableKey(Record):
    """A requested key that cannot be used, with reason and hint. ``code`` is "key-mode", "key-file", "passphrase",
    "auth", or "agent" for all keys of an agent that does not answer."""

    why: str
    code: str = "auth"
    hint: str | None = None


class _KeyFile(Record):
    """A file that somebody named as a key: its public part, b"" if there is none, and why it is no private key."""

    public: bytes
    problem: UnusableKey | None = None


class PrivateKeys:
    """Loads keys on demand and caches them. ``ask`` prompts for a passphrase and returns it, or None."""

    def __init__(self, ask: Callable[[str], str | None] | None) -> None:
        self._ask = ask
        self._files: dict[str, _KeyFile] = {}
        self._loaded: dict[str, Key | UnusableKey] = {}
        self._agents: dict[str, SharedAgent | UnusableKey] = {}
        self._lock = threading.Lock()

    def select_keys(self, settings: Settings) -> Iterator[Key | UnusableKey]:
        """Yields the keys to offer to a host, in order: named files, the agent, default files."""
        offered: set[bytes] = set()
        count = 0
        for key in self._list_candidates(settings):
            if isinstance(key, UnusableKey):
                yield key
            elif (blob := _get_public_blob(key.key)) not in offered and count < _OFFERED_KEYS:
                offered.add(blob)
                count += 1
                yield key

    def close(self) -> None:
        """Disconnects from agents; keys from files stay loaded, so that no passphrase is asked for twice."""
        if not self._lock.acquire(timeout=_CLOSE_TIMEOUT):  # held by a question, or until an agent answers
            return
        try:
            for agent in self._agents.values():
                if isinstance(agent, SharedAgent):
                    agent.close()
            self._agents, self._files = {}, {}
            self._loaded = {path: key for path, key in self._loaded.items() if isinstance(key, Key)}
        finally:
            self._lock.release()

    def _list_candidates(self, settings: Settings) -> Iterator[Key | UnusableKey]:
        path = os.environ.get("SSH_AUTH_SOCK", "") if settings.agent is None else settings.agent
        agent, problem = self._list_agent_keys(path)
        for name in settings.keys:
            if name.lower() != "none":
                yield from self._load_key(name, settings.certificates, agent, requested=True)
        if not settings.only_these_keys:
            yield from agent.values()
        for name in () if settings.keys else DEFAULT_KEYS:
            yield from self._load_key(name, (), agent, requested=False)
        if problem:
            yield problem

    def _list_agent_keys(self, path: str) -> tuple[dict[bytes, Key], UnusableKey | None]:
        """Returns the keys of the agent behind a socket by their public parts, and why there are none."""
        if not path:
            return {}, None
        with self._lock:
            if path not in self._agents:
                try:
                    self._agents[path] = SharedAgent(path)
                except (paramiko.SSHException, OSError) as error:
                    why = getattr(error, "strerror", None) or str(error)
                    self._agents[path] = UnusableKey(f"the agent at {path}: {why.lower()}", "agent")
            agent = self._agents[path]
        if isinstance(agent, UnusableKey):
            return {}, agent
        keys = (Key(f"agent key {key.comment or key.get_name()}", key) for key in agent.get_keys())
        return {bytes(key.key.asbytes()): key for key in keys}, None

    def _load_key(
        self, path: str, certificates: tuple[str, ...], agent: Mapping[bytes, Key], *, requested: bool
    ) -> Iterator[Key | UnusableKey]:
        """Yields the key, after its certificates if there are any, or why it cannot be used."""
        with self._lock:
            key = self._find_key(path, agent)
        if isinstance(key, UnusableKey):
            if requested or key.code in {"key-mode", "passphrase"}:
                yield key
            return
        for certificate in map(str, map(expand_home, (f"{path.removesuffix('.pub')}-cert.pub", *certificates))):
            signed = _copy_key(key.key)
            try:
                signed.load_certificate(_read_start(Path(certificate)).decode("latin-1"))
            except (OSError, ValueError, paramiko.SSHException):
                continue  # there is none, or it is of another key
            yield Key(f"{path} with certificate {certificate}", signed)
        yield key

    def _find_key(self, path: str, agent: Mapping[bytes, Key]) -> Key | UnusableKey:
        """Returns the agent's, if it holds that of the file; else the private key of the file."""
        if path not in self._files:
            self._files[path] = _inspect_key_file(path)
        file = self._files[path]
        if file.public in agent:
            return agent[file.public]
        if file.problem:
            return file.problem
        if path not in self._loaded:
            self._loaded[path] = self._read_private_key(path)
        return self._loaded[path]

    def _read_private_key(self, path: str) -> Key | UnusableKey:
        place = expand_home(path)
        try:
            key = _load_private_key(place, None)
        except paramiko.PasswordRequiredException:
            passphrase = self._ask(f"Passphrase of {path}: ") if self._ask else None
            if not passphrase:
                what = f"key {path} has a passphrase and no agent holds it"
                return UnusableKey(what, "passphrase", _suggest_agent(path))
            try:
                key = _load_private_key(place, passphrase)
            except (paramiko.SSHException, ValueError):
                return UnusableKey(f"key {path}: the passphrase is wrong", "passphrase", _suggest_agent(path))
        except (paramiko.SSHException, ValueError, OSError) as error:
            return UnusableKey(f"key {path} cannot be read: {error}")
        return Key(f"{path} ({compute_fingerprint(key.asbytes())})", key)


def _inspect_key_file(path: str) -> _KeyFile:
    """Returns what a file is, as OpenSSH looks at it: a public key selects that of the agent, and so does the public
    part of a private one, which lies beside it or, in OpenSSH's own format, in it without encryption."""
    place, beside = expand_home(path), b""
    with suppress(OSError):  # there is none
        beside = _read_public_key(_read_start(place.with_name(place.name + ".pub")))
    try:
        status, data = place.stat(), _read_start(place)
    except OSError as error:
        return _KeyFile(beside, UnusableKey(f"key {path}: {(error.strerror or 'cannot be read').lower()}", "key-file"))
    if not stat.S_ISREG(status.st_mode):  # a FIFO would be waited for, a device never ends
        return _KeyFile(b"", UnusableKey(f"key {path} is not a regular file"))
    if public := _read_public_key(data):
        private = path.removesuffix(".pub") if path.endswith(".pub") else "KEY"
        what = f"key {path} is a public key, and no agent holds its private key"
        return _KeyFile(public, UnusableKey(what, hint=_suggest_agent(private)))
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == os.getuid() and mode & 0o077:
        what = f"key {path} can be read by others (mode {mode:04o})"
        return _KeyFile(b"", UnusableKey(what, "key-mode", f"chmod 600 {_quote_path(path)}"))
    public, rounds = _read_public_part(data)
    public = beside or public
    if rounds > _ROUNDS_LIMIT:
        return _KeyFile(public, UnusableKey(f"key {path} has a passphrase that takes {rounds} rounds to check"))
    if data.startswith(b"PuTTY-User-Key-File"):
        hint = f"puttygen {_quote_path(path)} -O private-openssh -o {_quote_path(path + '.openssh')}"
        return _KeyFile(public, UnusableKey(f"key {path} is in PuTTY's format", hint=hint))
    if _get_key_type(public).startswith("sk-"):
        what = f"key {path} is on a security key, and no agent holds it"
        return _KeyFile(public, UnusableKey(what, hint=_suggest_agent(path)))
    return _KeyFile(public)


def _quote_path(path: str) -> str:
    """Returns a path as a shell takes it: one in quotation marks has no home directory behind its ``~``."""
    return shlex.quote(str(expand_home(path)))


def _suggest_agent(path: str) -> str:
    """Returns the line of a shell that gives a key to its agent, and starts one where none is, or is any more."""
    add = f"ssh-add {_quote_path(path)}"
    return add if Path(os.environ.get("SSH_AUTH_SOCK") or "/").is_socket() else f'eval "$(ssh-agent)" && {add}'


def _copy_key(key: paramiko.PKey) -> paramiko.PKey:
    """Another object for the same key, which may get a certificate of its own."""
    return AgentKey(key.agent, key.blob, key.comment) if isinstance(key, AgentKey) else copy.copy(key)


def _load_private_key(place: Path, passphrase: str | None) -> paramiko.PKey:
    errors: list[Exception] = []
    data = _read_start(place)
    if match := _PKCS8.search(data):
        data = _convert_pkcs8(match, passphrase)
        passphrase = None
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(io.StringIO(data.decode("latin-1")), passphrase)
        except paramiko.PasswordRequiredException:
            raise
        except Exception as error:  # whatever a damaged key makes Paramiko's readers raise, also of assertions
            errors.append(error)
    if b"PRIVATE KEY" not in data:
        raise paramiko.SSHException("not a private key")
    if len(data.split(b"\n")) < 3:  # as a secret of CI is pasted
        raise paramiko.SSHException("its lines are joined into one, where a key has its own")
    raise paramiko.SSHException(str(errors[0]) or "it is damaged")


def _convert_pkcs8(match: re.Match[bytes], passphrase: str | None) -> bytes:
    """Returns a key as openssl and clouds write it, which ssh reads and Paramiko does not, in OpenSSH's format."""
    data, word = _decode_base64(b"".join(match[2].split())), None
    if match[1]:
        if not _PBKDF2.match(data):
            raise paramiko.SSHException("its passphrase takes millions of rounds to check, or no PBKDF2")
        if not passphrase:
            raise paramiko.PasswordRequiredException
        word = passphrase.encode()
    try:
        key: Any = serialization.load_der_private_key(data, word)
        form = serialization.PrivateFormat.OpenSSH
        return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    except Exception as error:  # whatever a damaged key makes its reader raise
        raise paramiko.SSHException(str(error).partition("\n")[0] or "it is damaged") from None


def _read_start(place: Path) -> bytes:
    """As much of a file as a key may have; b"" of a FIFO, which would be waited for. Raises `OSError`."""
    data, _ = read_limited(place, _KEY_SIZE)
    return data if isinstance(data, bytes) else b""


def _read_public_key(data: bytes) -> bytes:
    for line in data.splitlines():
        name, _, rest = line.strip().partition(b" ")
        blob = _decode_base64(rest.split(maxsplit=1)[0] if rest.strip() else b"")
        if blob and _get_key_type(blob).encode() == name:
            return blob
    return b""


def _read_public_part(data: bytes) -> tuple[bytes, int]:
    """The public part of a private key in OpenSSH's format (PROTOCOL.key), which is never encrypted, b"" of others; and
    by how many rounds of bcrypt its passphrase becomes a key."""
    match = _OPENSSH_KEY.search(data)
    message = paramiko.Message(_decode_base64(b"".join(match[1].split())) if match else b"")
    if message.get_bytes(len(_MAGIC)) != _MAGIC:
        return b"", 0
    for _ in ("cipher", "key derivation"):
        message.get_binary()
    options = paramiko.Message(message.get_binary())
    options.get_binary()  # the salt
    return message.get_binary() if message.get_int() == 1 else b"", options.get_int()


def _get_key_type(blob: bytes) -> str:
    return paramiko.Message(blob).get_binary().decode("ascii", "replace")


def _decode_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _get_public_blob(key: paramiko.PKey) -> bytes:
    blob = getattr(key, "public_blob", None)
    return bytes(blob.key_blob) if blob else bytes(key.asbytes())
