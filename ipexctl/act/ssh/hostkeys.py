"""Known host keys: an index of known_hosts files that reads every kind of line and trusts nothing it cannot read.

Paramiko's reader stops at markers, knows no patterns and is quadratic; this one skips a bad line with its number."""

import base64
import errno
import fnmatch
import getpass
import hashlib
import hmac
import os
import re
import shlex
import stat
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from ipexctl.act.inputs import expand_home
from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.json_values import Record
from ipexctl.store.private_files import make_private_directories

# What SSH reads for another purpose below ~/.ssh: with a host named `restrict`, a key is a line of authorized_keys.
_OTHER_FILES_OF_SSH = ("authorized_keys", "authorized_keys2", "config", "environment", "rc")
_SIZE_LIMIT = 64 << 20  # bytes of a file of host keys
_NAME_LIMIT = 1_000_000  # names in some of them
_PATTERN_LIMIT, _PATTERN_LENGTH = 10_000, 1000  # patterns in them, each of which costs time; characters of one
_HASHED_LIMIT = 100_000  # lines with a hashed name in them, each of which is hashed for each host
_PROBLEM_LIMIT = 20  # lines that are named of a file

KeyState = Literal["ok", "unknown", "changed", "revoked", "certificate"]
CONTRADICTIONS = ("changed", "revoked")  # of a file's lines to a key that another file allows


class KnownHost(Record):
    """One usable line. ``marker`` is "", "@revoked" or "@cert-authority"."""

    file: str
    line: int
    marker: str
    kind: str  # ssh-ed25519, ssh-rsa …
    blob: bytes


def compute_fingerprint(blob: bytes) -> str:
    """Returns the SHA-256 fingerprint of a public key, as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def format_known_host_name(host: str, port: int) -> str:
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def read_trusted_file(path: Path) -> bytes:
    """Of a file that others can write nothing is believed, neither programs to start nor keys. Raises `UsageError`,
    `OSError`."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        quoted = shlex.quote(str(path))
        why = ""
        if status.st_uid not in (0, os.getuid()):
            why = f"{path} belongs to another user (uid {status.st_uid})"
            hint = f"sudo chown {shlex.quote(getpass.getuser())} {quoted} && chmod go-w {quoted}"
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            why = f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
            hint = f"chmod go-w {quoted}"
        if why:
            planted = "others may have added keys to it, or programs that ssh starts: read it before you trust it again"
            raise UsageError(why, reasons=[planted], hint=hint, exit=Exit.UNREACHABLE)
        data = file.read(_SIZE_LIMIT + 1) or b""  # of a pipe that has nothing now: None
    if len(data) > _SIZE_LIMIT:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def find_recording_fault(path: Path, directory: Path | None) -> str | None:
    """Why no key may be appended to a known_hosts file that a hostfile of ``directory`` names; None if one may. A
    hostfile may come with a repository: what it names must be a known_hosts file already, or be a new one (a file
    without a line of its own counts as new) below that directory or ~/.ssh."""
    if path == Path(os.devnull):
        return None
    known, place, home = KnownHosts([path]), Path(os.path.realpath(path)), expand_home("~").resolve()
    if place.exists() and not place.is_file():
        return "it is not a regular file"
    if place.parent == (home / ".ssh").resolve() and place.name in _OTHER_FILES_OF_SSH:
        return "it has another purpose"
    if known.problems:
        return f"it is not a known_hosts file: {known.problems[0]}"
    if known.is_empty and not _may_be_created(place, home, directory):
        return "a new file must be below the directory of the hostfile or ~/.ssh"
    return None


def _may_be_created(place: Path, home: Path, directory: Path | None) -> bool:
    if place.is_relative_to(ssh := (home / ".ssh").resolve()):
        return place.parent == ssh and place.name.startswith("known_hosts")  # `ssh` may include any other
    if directory is None or not place.is_relative_to(directory.resolve()):
        return False
    # A hostfile in the home itself names no new file there that a shell or another program reads.
    is_above_home = home.is_relative_to(directory.resolve()) and place.is_relative_to(home)
    return not (is_above_home and str(place.relative_to(home)).startswith("."))


class KnownHosts:
    """The lines of some known_hosts files, by host. Files that do not exist are empty. ``problems`` lists the lines
    that could not be read: "known_hosts:7: not base64"."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self.problems: list[str] = []
        self._plain: dict[str, list[KnownHost]] = defaultdict(list)
        self._patterns: list[tuple[tuple[str, ...], KnownHost]] = []
        self._hashed: list[tuple[bytes, bytes, KnownHost]] = []
        self._unhashed: dict[str, list[KnownHost]] = {}  # of them, those of a host that was looked for
        self._names = self._pattern_count = 0
        self._lock = threading.Lock()
        for path in self.files:
            try:
                endless = path.is_char_device() or path.is_fifo()  # /dev/null among them
                lines = [] if endless else read_trusted_file(path).split(b"\n")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self.problems.append(f"{path}: {error.strerror}")
                continue
            bad = 0
            for number, line in enumerate(lines, 1):
                if why := self._add_line(str(path), number, line):
                    bad += 1
                    if bad <= _PROBLEM_LIMIT:
                        self.problems.append(f"{path}:{number}: {why}")
            if bad > _PROBLEM_LIMIT:
                self.problems.append(f"{path}: {bad - _PROBLEM_LIMIT} lines more")

    def _add_line(self, file: str, number: int, data: bytes) -> str:
        """Adds a line; returns what is wrong with it, or ""."""
        words = data.decode("utf-8", "replace").split(maxsplit=4)
        if not words or words[0].startswith("#"):
            return ""
        marker = words.pop(0) if words[0].startswith("@") else ""
        if marker not in ("", "@revoked", "@cert-authority"):
            return f"unknown marker {marker[:40]!r}"
        if len(words) < 3:
            return "truncated line"
        hosts, kind, coded = words[:3]
        try:
            blob = base64.b64decode(coded, validate=True)
        except ValueError:
            return "the key is not base64"
        head = len(kind).to_bytes(4, "big") + kind.encode()
        if not re.fullmatch(r"[a-zA-Z0-9@.-]+", kind) or not blob.startswith(head) or len(blob) <= len(head) + 4:
            return f"not a key of type {kind[:40]!r}"
        count = hosts.count(",") + 1
        self._names += count
        if self._names > _NAME_LIMIT:
            return f"more than {_NAME_LIMIT:,} names"
        entry = KnownHost(file, number, marker, kind, blob)
        if hosts.startswith("|"):
            try:
                salt, digest = (base64.b64decode(part, validate=True) for part in hosts.removeprefix("|1|").split("|"))
            except ValueError:
                return "not a hashed host name"
            if len(self._hashed) >= _HASHED_LIMIT:
                return f"more than {_HASHED_LIMIT:,} hashed names"
            self._hashed.append((salt, digest, entry))
            return ""
        names = tuple(name.lower() for name in hosts.split(",") if name)
        if any("*" in name or "?" in name or name.startswith("!") for name in names):
            self._pattern_count += count
            if self._pattern_count > _PATTERN_LIMIT or max(map(len, names)) > _PATTERN_LENGTH:
                return f"more than {_PATTERN_LIMIT:,} patterns, or {_PATTERN_LENGTH:,} characters in one"
            self._patterns.append((names, entry))
        else:
            for name in names:
                self._plain[name].append(entry)
        return ""

    @property
    def is_empty(self) -> bool:
        """No file has a line that could be read."""
        return not (self._plain or self._patterns or self._hashed)

    def find_entries(self, name: str) -> list[KnownHost]:
        """Returns all lines for a host, by its name from `format_known_host_name`."""
        if name not in self._unhashed:
            digest = partial(hmac.digest, msg=name.encode(), digest="sha1")
            self._unhashed[name] = [entry for salt, hashed, entry in self._hashed if digest(salt) == hashed]
        return [
            *self._plain.get(name, ()),
            *(entry for names, entry in self._patterns if matches_patterns(name, names)),
            *self._unhashed[name],
        ]

    def key_types(self, name: str) -> list[str]:
        """Returns the key types known for a host, which it should be asked for."""
        return list(dict.fromkeys(entry.kind for entry in self.find_entries(name) if not entry.marker))

    def judge_key(self, name: str, blob: bytes, *, also: str = "") -> tuple[KeyState, KnownHost | None]:
        """Looks up the key a host shows; returns also the line that decided. ``also`` is a second name to accept it
        under (the host without its port). A revoked key is refused even if another line accepts it; a host known by
        another key only has "changed". "certificate": only a certificate authority is known for the host, and host
        certificates are not supported."""
        entries = self.find_entries(name)
        everything = entries + (self.find_entries(also) if also else [])
        found: dict[KeyState, list[KnownHost]] = {  # the first that has an entry counts
            "revoked": [entry for entry in everything if entry.marker == "@revoked" and entry.blob == blob],
            "ok": [entry for entry in everything if not entry.marker and entry.blob == blob],
            "changed": [entry for entry in entries if not entry.marker],
            "certificate": [entry for entry in everything if entry.marker == "@cert-authority"],
        }
        return next(((state, matching[0]) for state, matching in found.items() if matching), ("unknown", None))

    def record_key(self, name: str, kind: str, blob: bytes) -> Path:
        """Appends the key of an unknown host to the first file and returns its path. Raises `OSError`."""
        path = self.files[0]
        line = format_known_hosts_line(name, kind, blob).encode() + b"\n"
        with self._lock:
            make_private_directories(path.parent)
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "rb+") as file:
                if size := file.seek(0, os.SEEK_END):
                    file.seek(size - 1)
                    line = line if file.read(1) == b"\n" else b"\n" + line
                file.write(line)
            self._plain[name].append(KnownHost(str(path), 0, "", kind, blob))
        return path


def list_key_types(known: KnownHosts, names: tuple[str, str]) -> list[str]:
    """Returns the key types known for a host, by the first of its names that is known; see `KnownHosts.key_types`."""
    return next((types for name in names if name and (types := known.key_types(name))), [])


def format_known_hosts_line(name: str, kind: str, blob: bytes) -> str:
    return f"{name} {kind} {base64.b64encode(blob).decode()}"


def matches_patterns(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether a name matches a list of patterns with ``*`` and ``?``, of which those with ``!`` exclude."""
    # only * and ? are special: brackets are part of "[host]:port"
    plain = [pattern.replace("[", "\0") for pattern in patterns]
    matching = [pattern for pattern in plain if fnmatch.fnmatchcase(name.replace("[", "\0"), pattern.removeprefix("!"))]
    return bool(matching) and not any(pattern.startswith("!") for pattern in matching)
