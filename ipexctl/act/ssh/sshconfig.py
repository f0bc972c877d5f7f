"""The files of ssh_config, read as OpenSSH reads them: scopes, Include, Match and the second pass.

Paramiko's own reader knows no Include, takes Match criteria it has never heard of for true, and refuses the line
``Match final all`` that RHEL, Fedora and openEuler ship in /etc/ssh/ssh_config.d/50-redhat.conf (its issue 2361).
Paramiko still holds names against patterns, makes them canonical, and puts in what ``%h`` and its kin stand for.

As in OpenSSH, the first value of an option counts. A scope (a Host or Match line) reaches to the next one or to the end
of its file: an included file begins in the scope of its Include line, which holds again after it. CanonicalizeHostname,
or ``final`` in any Match line, asks for a second pass, in which ``final`` and ``canonical`` are true and Host lines are
held against the HostName that was found; it adds what the first one did not set.

Unlike in OpenSSH, a Match line never holds when one of its criteria is not among ``all``, ``canonical``, ``final``,
``host``, ``originalhost``, ``user``, ``localuser`` and ``exec``, also negated: we cannot judge ``localnetwork``,
``sessiontype``, ``tagged`` or what comes next, and what stands below them is not meant for every host.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramiko.config import SSHConfigDict

from ipexctl.act.ssh.paramiko_internals import TokenConfig
from ipexctl.model.errors import UsageError
from ipexctl.model.text import printable

_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")
_UNCOMMENTED = re.compile(r'(?:"[^"]*"|\S|\s(?!\s*#))*')
_WHOLE_LINE = ("proxycommand", "localcommand", "remotecommand", "knownhostscommand")  # "#" and all
_DEEP = 16  # nested Include lines, as in OpenSSH
_WITHOUT_VALUE = ("all", "canonical", "final")
_JUDGED = ("host", "originalhost", "user", "localuser", "exec")
_PATIENCE = 10.0  # seconds for a command of `Match exec`; OpenSSH waits for ever


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class _Hosts:
    """A Host line."""

    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Criterion:
    kind: str
    value: str
    negated: bool


@dataclass(frozen=True, slots=True)
class _Match:
    """A Match line; all of its criteria must be true."""

    criteria: tuple[_Criterion, ...]


@dataclass(frozen=True, slots=True)
class _Include:
    """An Include line, with the files it names."""

    files: tuple[File, ...]


File = tuple[_Option | _Hosts | _Match | _Include, ...]


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass over the files for one host; it adds to ``options``. ``original`` is the name that the user gave."""

    original: str
    target: str
    final: bool
    options: Any  # an SSHConfigDict; its stubs know of no lists

    def subject(self, kind: str) -> str | None:
        """What the patterns of a criterion are held against; None for one that cannot be judged."""
        if kind == "host":
            return str(self.options.get("hostname", self.target))
        if kind == "originalhost":
            return self.original
        if kind == "user":
            return str(self.options.get("user") or getpass.getuser())
        return getpass.getuser() if kind == "localuser" else None


def read_config(path: Path, base: Path, depth: int = 0) -> File:
    """A file, empty if there is none; relative names in Include lines are below ``base``.

    Raises `UsageError` for what cannot be read, with its line.
    """
    if depth > _DEEP:
        raise UsageError(f"{path} is not read: Include lines are nested more than {_DEEP} deep")
    try:
        lines = path.read_text("utf-8", "surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    file = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        try:
            if not match:
                raise ValueError("a keyword without a value")
            file.append(_parse_line(match[1].lower(), match[2], base, depth))
        except ValueError as error:
            why = printable(f"{error} in '{line}'", 120)
            raise UsageError(f"the SSH configuration cannot be read: {path}:{number}: {why}") from None
    return tuple(file)


def _parse_line(keyword: str, value: str, base: Path, depth: int) -> _Option | _Hosts | _Match | _Include:
    if keyword == "host":
        return _Hosts(tuple(_split_words(value)))
    if keyword == "match":
        return _Match(tuple(_parse_criteria(_split_words(value))))
    if keyword == "include":
        return _Include(
            tuple(
                read_config(path, base, depth + 1)
                for word in _split_words(value)
                for path in _find_included(word, base)
            )
        )
    if keyword not in _WHOLE_LINE:
        value = _UNCOMMENTED.match(value)[0]  # type: ignore[index]  # it matches anything
    return _Option(keyword, value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value)


def _split_words(value: str) -> list[str]:
    """Raises `ValueError` for a quotation mark without its partner."""
    return shlex.split(value, comments=True)


def _find_included(pattern: str, base: Path) -> list[Path]:
    """Files that a word of an Include line names, in the order they are read."""
    pattern = os.path.expanduser(pattern)  # noqa: PTH111 - a pattern, not yet a path
    return [Path(name) for name in sorted(glob.glob(str(base / pattern)))]  # noqa: PTH207


def _parse_criteria(words: list[str]) -> list[_Criterion]:
    criteria = []
    while words:
        kind, equals, value = words.pop(0).partition("=")
        bare = kind.removeprefix("!").lower()
        if bare not in _WITHOUT_VALUE and not equals:
            if not words and bare in _JUDGED:
                raise ValueError(f"Match {bare} without a value")
            value = words.pop(0) if words else ""
        criteria.append(_Criterion(bare, value, kind.startswith("!")))
    return criteria


class OpenSSHConfig(TokenConfig):
    """Files that were `read`, in the order of their weight; Fabric and Paramiko may ask it as they ask their own."""

    def __init__(self, *files: File) -> None:
        super().__init__()
        self._files = files
        self._two_passes = any(map(_has_final, files))

    def lookup(self, hostname: str, given: Mapping[str, str] | None = None) -> SSHConfigDict:
        """The options for a host, names in lower case; ``given`` are options given beforehand, which beat the files."""
        options: Any = SSHConfigDict(given or {})
        self._run_pass(_Pass(hostname, hostname, False, options))
        target = options.setdefault("hostname", hostname)
        canonical = options.get("canonicalizehostname") in ("yes", "always")
        if canonical and target.count(".") <= int(options.get("canonicalizemaxdots", 1)):
            target = options["hostname"] = self.canonicalize(
                target, options, options.get("canonicaldomains", "").split()
            )
        if canonical or self._two_passes:
            self._run_pass(_Pass(hostname, target, True, options))
        expanded: SSHConfigDict = self.expand(options, hostname)
        return expanded

    def _run_pass(self, current: _Pass) -> None:
        for file in self._files:
            self._apply_file(file, current)

    def _apply_file(self, file: File, current: _Pass) -> None:
        """A file whose Include line counts: what it says, scope by scope."""
        counts = True
        for entry in file:
            if isinstance(entry, _Hosts):
                counts = self.matches(entry.patterns, current.target)
            elif isinstance(entry, _Match):
                counts = all(self._criterion_matches(criterion, current) for criterion in entry.criteria)
            elif counts and isinstance(entry, _Include):
                for included in entry.files:
                    self._apply_file(included, current)
            elif counts and isinstance(entry, _Option):
                _apply_option(entry, current)

    def _criterion_matches(self, criterion: _Criterion, current: _Pass) -> bool:
        if criterion.kind in _WITHOUT_VALUE:
            return (criterion.kind == "all" or current.final) != criterion.negated
        if criterion.kind == "exec":
            return self._exec_succeeds(criterion.value, current) != criterion.negated
        subject = current.subject(criterion.kind)
        if subject is None:
            return False
        return self.matches(criterion.value, subject) != criterion.negated

    def _exec_succeeds(self, command: str, current: _Pass) -> bool:
        """Of a `Match exec`; one that takes longer than `_PATIENCE` has failed. Our own input is not for it to read."""
        line = self.expand_command(current.options, current.original, command)
        shell = os.environ.get("SHELL") or "/bin/sh"
        quiet = subprocess.DEVNULL
        try:
            return not subprocess.call((shell, "-c", line), stdin=quiet, stdout=quiet, stderr=quiet, timeout=_PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            return False


def _has_final(file: File) -> bool:
    """As in OpenSSH: by its mere presence, also where the scope around it does not hold."""
    return any(
        any(criterion.kind == "final" for criterion in entry.criteria)
        if isinstance(entry, _Match)
        else isinstance(entry, _Include) and any(map(_has_final, entry.files))
        for entry in file
    )


def _apply_option(option: _Option, current: _Pass) -> None:
    """The first value counts; identity files are tried one after the other."""
    name, options = option.name, current.options
    if name == "identityfile":
        if option.value not in options.setdefault(name, []):
            options[name].append(option.value)
    elif name == "hostname":
        # At once: `Match host` is held against it.
        options.setdefault(name, option.value.replace("%h", current.original))
    else:
        is_none = name == "proxycommand" and option.value.lower() == "none"
        options.setdefault(name, None if is_none else option.value)
