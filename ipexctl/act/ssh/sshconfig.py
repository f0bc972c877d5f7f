"""ssh_config, read as OpenSSH reads it: quoting, scopes, Include, Match, tokens and the second pass.

Paramiko's own reader knows no Include, takes Match criteria it has never heard of for true, and refuses the line
``Match final all`` that RHEL, Fedora and openEuler ship in /etc/ssh/ssh_config.d/50-redhat.conf (its issue 2361).

The first value of an option counts. A scope (a Host or Match line) reaches to the next one or to the end of its file:
an included file begins in the scope of its Include line, which holds again after it. CanonicalizeHostname, or ``final``
in any Match line, asks for a second pass, in which ``final`` and ``canonical`` are true and Host lines are compared
with the HostName that was found; it adds what the first one did not set.

docs/ssh.md lists the differences; tests/unit/test_ssh_config_differential.py compares with ``ssh -G``."""

import getpass
import glob
import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from ipexctl.act.inputs import expand_home
from ipexctl.act.ssh.hostkeys import matches_patterns, read_trusted_file
from ipexctl.model.errors import ConnectError, UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable

_LINE = re.compile(r'"?([^\s"=]+)"?(?:\s*=\s*|\s+)(.+)', re.DOTALL)
_HOP = re.compile(r"(?:(?P<user>.+)@)?(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:@/\[\]]+))(?::(?P<port>\+?\w*))?", re.ASCII)
_HOP_URI = re.compile(  # in the user's name %41 is a letter, and what follows a semicolon says nothing about the user
    r"ssh://(?:(?P<user>(?:[^@;%]|%(?!00)[0-7][0-9a-fA-F])+)(?:;[^@]*)?@)?"
    r"(?P<host>(?!.*\.\.)[a-zA-Z0-9][\w.-]*?)\.?(?::(?P<port>\+?\w+)/?|:|/)?",
    re.ASCII,
)
_PIECE = re.compile(  # white space, a part in quotation marks, a character that is quoted, or any other
    r"""[ \t]+|(?P<quote>['"])(?:\\['"\\]|\\(?!['"\\])|(?!\\|(?P=quote)).)*(?P=quote)|\\['"\\ ]|.""", re.DOTALL
)
_INCLUDE_DEPTH = 16  # nested Include lines, as in OpenSSH
_WITHOUT_VALUE = ("all", "canonical", "final")
_MATCH_EXEC_TIMEOUT = 10.0  # seconds for a command of `Match exec`; OpenSSH waits for ever
_INT_MAX = (1 << 31) - 1  # of a C int
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class _Criterion(Record):
    """One of a Match line; a Host line is one of the kind "target"."""

    kind: str
    patterns: tuple[str, ...]  # of "exec": the command
    negated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Scope:
    """A Host or Match line, whose criteria must all be true, in the ``outer`` scope of the Include line of its file."""

    criteria: tuple[_Criterion, ...]
    outer: "_Scope | None"
    place: str  # file and line, for messages


class _Option(Record):
    name: str
    words: tuple[str, ...]
    scope: "_Scope | None"
    place: str


File = list[_Option | _Scope]


class Hop(Record):
    """A host of a ProxyJump line: ``[user@]host[:port]`` or ``ssh://[user@]host[:port][/]``. ``text`` has the first
    form, as messages show it."""

    text: str
    host: str
    user: str | None
    port: int | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hop) and (self.host, self.user, self.port) == (other.host, other.user, other.port)

    def __hash__(self) -> int:
        return hash((self.host, self.user, self.port))

    @classmethod
    def parse(cls, text: str) -> "Hop":
        is_uri = text.startswith("ssh://")
        match = (_HOP_URI if is_uri else _HOP).fullmatch(text)
        if not match:
            raise ValueError("not a jump host")
        port = int(_parse_port(match["port"])) if match["port"] else None
        if not is_uri:
            return cls(text, match["v6"] or match["host"], match["user"], port)
        host, user = match["host"], unquote(match["user"] or "")
        plain = (f"{user}@" if user else "") + host + (f":{port}" if port else "")
        return cls(plain, host, user or None, port)


def read_config(path: Path, base: Path, scope: "_Scope | None" = None, depth: int = 0) -> File:
    """Returns the lines of a file and of those that it includes, none if there is none. Relative names in Include lines
    are below ``base``. Raises `UsageError` for a file that others can write, and a line that cannot be read."""
    if depth > _INCLUDE_DEPTH:
        raise UsageError(f"{path} is not read: Include lines are nested more than {_INCLUDE_DEPTH} deep")
    try:
        data = read_trusted_file(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    file: File = []
    outer = scope
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        line, place = line.strip(" \t\r\f"), f"{path}:{number}"
        if not line or line.startswith("#"):
            continue
        try:
            keyword, words = _parse_line(line)
            if keyword in ("host", "match"):
                scope = _Scope(_parse_criteria(keyword, words), outer, place)
                file.append(scope)
            elif keyword == "include":
                for name in _find_included_files(words, base):
                    file += read_config(name, base, scope, depth + 1)
            elif keyword:
                file.append(_Option(keyword, _parse_value(keyword, words), scope, place))
        except ValueError as error:
            raise _make_config_error(place, str(error), line) from None
    return file


def _find_included_files(patterns: Iterable[str], base: Path) -> Iterator[Path]:
    """Yields the files of an Include line. One in the home of a user that does not exist is no file, as for OpenSSH."""
    for pattern in patterns:
        with suppress(UsageError):
            yield from map(Path, sorted(glob.glob(str(base / expand_home(pattern)))))  # noqa: PTH207


def _make_config_error(place: str, why: str, text: str) -> UsageError:
    return UsageError(f"the SSH configuration cannot be read: {place}: {printable(f'{why} in {text!r}', 120)}")


def _parse_line(line: str) -> tuple[str, list[str]]:
    """Returns the keyword and its words; "" for a keyword that is not used here. Raises `ValueError`."""
    match = _LINE.fullmatch(line)
    if not match:
        raise ValueError("a keyword without a value")
    keyword, text = match[1].lower(), match[2]
    if keyword not in _KEYWORDS:
        return "", []
    words = list(_split_words(text))
    if keyword in _WHOLE_LINE:
        words = [text.lstrip(" \t=")]
    if re.search("[\0\udc80-\udcff]", "".join(words)):
        raise ValueError("bytes that are not UTF-8 text")
    if "" in words:
        raise ValueError("an empty word")
    return keyword, words


def _split_words(text: str) -> Iterator[str]:
    """Yields the words of a line, as OpenSSH splits them: both kinds of quotation marks, ``\\`` before one, comments.

    Raises `ValueError` for a quotation mark without its partner."""
    word: str | None = None
    for match in _PIECE.finditer(text):
        piece, quote = match[0], match["quote"]
        if piece in ("'", '"'):
            raise ValueError("a quotation mark without its partner")
        if piece == "#" and word is None:
            return
        if piece[0] in " \t":
            if word is not None:
                yield word
            word = None
        else:
            word = (word or "") + (re.sub(r"\\(['\"\\])", r"\1", piece[1:-1]) if quote else piece[-1])
    if word is not None:
        yield word


def _parse_criteria(keyword: str, words: list[str]) -> tuple[_Criterion, ...]:
    if keyword == "host":
        return (_Criterion("target", tuple(words)),)
    if not words:
        raise ValueError("Match without a criterion")
    criteria = []
    while words:
        kind, equals, value = words.pop(0).partition("=")
        bare = kind.removeprefix("!").lower()
        if bare not in _WITHOUT_VALUE and not equals:
            if not words and bare in (*_SUBJECTS, "exec"):
                raise ValueError(f"Match {bare} without a value")
            value = words.pop(0) if words else ""
        if bare in ("host", "originalhost"):
            value = value.lower()
        patterns = (value,) if bare == "exec" else tuple(value.split(","))
        criteria.append(_Criterion(bare, patterns, kind.startswith("!")))
    return tuple(criteria)


_YES_NO = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
_CHOICES = {
    "identitiesonly": _YES_NO,
    "canonicalizefallbacklocal": _YES_NO,
    "canonicalizehostname": {**_YES_NO, "always": "always"},
    "stricthostkeychecking": {**_YES_NO, "off": "no", "ask": "ask", "accept-new": "accept-new"},
}
_FILES = ("identityfile", "certificatefile")  # each line adds one
_LISTS = ("canonicaldomains", "userknownhostsfile", "globalknownhostsfile")
_WHOLE_LINE = ("proxycommand", "proxyjump")
_NUMBERS = ("port", "connecttimeout", "canonicalizemaxdots")
_SCOPES = ("host", "match", "include")
ALGORITHMS = ("kexalgorithms", "hostkeyalgorithms", "ciphers", "macs")
_WORDS = ("hostname", "user", "hostkeyalias", "identityagent", *ALGORITHMS)
_KEYWORDS = {*_WORDS, *_CHOICES, *_FILES, *_LISTS, *_WHOLE_LINE, *_NUMBERS, *_SCOPES}


def _parse_value(keyword: str, words: list[str]) -> tuple[str, ...]:
    """Returns the words of an option in one form; () for one that leaves it to a later line. Raises `ValueError`."""
    if not words:
        raise ValueError("a keyword without a value")
    word = words[0]
    if len(words) > 1 and (keyword not in _LISTS or "none" in map(str.lower, words)):
        raise ValueError("more than one word")
    if keyword == "identityagent":
        _check_agent_variables(word)
    if keyword == "port":
        return (_parse_port(word),)
    if keyword == "connecttimeout":
        return () if word == "none" else (_parse_duration(word),)
    if keyword == "canonicalizemaxdots":
        return (_parse_number(word, 0, _INT_MAX),)
    if keyword == "proxyjump":
        word = re.split(r"[\s#]", word)[0]
    if word.lower() == "none" and keyword in (*_LISTS, *_WHOLE_LINE):
        return ("none",)
    if keyword == "proxyjump":
        return tuple(Hop.parse(hop).text for hop in word.split(","))
    if keyword in _CHOICES and word.lower() not in _CHOICES[keyword]:
        raise ValueError("not one of " + ", ".join(_CHOICES[keyword]))
    return (_CHOICES[keyword][word.lower()],) if keyword in _CHOICES else tuple(words)


def _check_agent_variables(word: str) -> None:
    """Raises `ValueError` for a variable that is not set, or is none, as ``ssh`` does for every host."""
    if re.fullmatch(r"\$(?!\{)\w*\W.*|\$", word, re.ASCII | re.DOTALL):
        raise ValueError("not a name of a variable")
    for name, end in re.findall(r"\$\{([^}]*)(\}?)", word):
        if not end or name not in os.environ:
            raise ValueError(f"${{{name}}} is not set")


def _parse_port(text: str) -> str:
    """Returns the number of a port, which may be the name of a service. Raises `ValueError`."""
    with suppress(ValueError):
        return _parse_number(text, 1, 65535)
    try:
        return str(socket.getservbyname(text, "tcp"))
    except (OSError, ValueError):  # the latter for what is not ASCII
        raise ValueError("not a port") from None


def _parse_number(text: str, least: int, most: int) -> str:
    """A decimal number, as strtol(3) reads it: white space and a sign may precede its digits. Raises `ValueError`."""
    if not re.fullmatch(r"[ \t]*[+-]?[0-9]+", text) or not least <= int(text) <= most:
        raise ValueError(f"not a number from {least} to {most}")
    return str(int(text))


def _parse_duration(text: str) -> str:
    parts = re.findall(r"\+?([0-9]+)([smhdw]?)", text.lower())
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    if not text or re.sub(r"\+?[0-9]+[smhdw]?", "", text.lower()) or seconds > _INT_MAX:
        raise ValueError("not a time")
    return str(seconds)


# hosts --------------------------------------------------------------------------------------------------------------
_SUBJECTS: "Mapping[str, Callable[[HostOptions], str]]" = {  # what the patterns of a criterion are compared with
    "target": lambda options: options.target,
    "host": lambda options: options.host.lower(),
    "originalhost": lambda options: options.original.lower(),
    "user": lambda options: options.user,
    "localuser": lambda options: getpass.getuser(),
}


class HostOptions:
    """What applies to one host. ``original`` is the name that was asked for; user and port were given beforehand."""

    def __init__(self, original: str, user: str | None, port: int | None) -> None:
        self.original: str = original
        self.target: str = original
        self.final = False
        given = {"user": user, "port": str(port) if port else None}
        self._options = {name: [_Option(name, (word,), None, "")] for name, word in given.items() if word}

    def get_words(self, name: str) -> tuple[str, ...]:
        """Returns the words of an option; () where it is not set."""
        return tuple(word for option in self._options.get(name, ()) for word in option.words)

    def get_word(self, name: str, default: str = "") -> str:
        return next(iter(self.get_words(name)), default)

    @property
    def user(self) -> str:
        return self.get_word("user", getpass.getuser())

    @property
    def host(self) -> str:
        """The name or address to connect to, as far as it is known."""
        options = self._options.get("hostname", ())
        return next((_expand_tokens(each.words[0], {"h": self.original}, each.place) for each in options), self.target)

    def get_paths(self, name: str) -> tuple[str, ...]:
        """The words of an option that names files, their tokens and ``${VARIABLES}`` replaced. Raises `UsageError`."""
        options = self._options.get(name, ())
        tokens = self._build_tokens()
        words = (
            (_expand_tokens(word, tokens, each.place, os.environ), each) for each in options for word in each.words
        )
        return tuple(word for word, each in words if _expand_home(word, each))  # as written: messages show it

    def get_agent(self) -> str | None:
        """IdentityAgent: the socket of the agent that is asked for keys, "" for none; None for the environment's.
        Raises `UsageError`."""
        word = next(iter(self.get_paths("identityagent")), "SSH_AUTH_SOCK")
        if word in ("SSH_AUTH_SOCK", "none"):
            return None if word == "SSH_AUTH_SOCK" else ""
        return os.environ.get(word[1:], "") if word.startswith("$") else str(expand_home(word))

    def get_files(self, name: str) -> tuple[Path, ...]:
        """Returns the words of an option that names files and knows no tokens. Raises `UsageError`."""
        return tuple(_expand_home(word, each) for each in self._options.get(name, ()) for word in each.words)

    def get_proxy(self, name: str) -> tuple[str, ...]:
        """ProxyCommand or ProxyJump, their tokens replaced; () for "none". Raises `UsageError`."""
        options = self._options.get(name, ())
        tokens = {token: text for token, text in self._build_tokens().items() if token in "hknpr"}
        words = (_expand_tokens(word, tokens, option.place) for option in options for word in option.words)
        return tuple(word for word in words if word != "none")

    def _build_tokens(self) -> Mapping[str, str]:
        local, port = socket.gethostname(), self.get_word("port", "22")
        jump = self.get_word("proxyjump").replace("none", "")
        return {
            "C": hashlib.sha1(f"{local}{self.host}{port}{self.user}{jump}".encode(), usedforsecurity=False).hexdigest(),
            "d": str(Path.home()), "i": str(os.getuid()), "u": getpass.getuser(),
            "h": self.host, "j": jump, "l": local, "L": local.partition(".")[0], "p": port, "r": self.user,
            "k": self.get_word("hostkeyalias", self.original), "n": self.original,
        }  # fmt: skip

    def apply_lines(self, file: File) -> None:
        """The lines of a file, one after the other."""
        holds: dict[_Scope | None, bool] = {None: True}
        for line in file:
            if isinstance(line, _Scope):
                holds[line] = holds[line.outer] and all(self._matches(each, line.place) for each in line.criteria)
            elif holds[line.scope]:
                self._set_option(line)

    def _set_option(self, option: _Option) -> None:
        """The first value counts; identity and certificate files are tried one after the other."""
        options = self._options.setdefault(option.name, [])
        if option.name in _FILES:
            is_new = option.words not in (known.words for known in options)
        elif option.name == "proxyjump":
            is_new = not options and not self.get_words("proxycommand")
        elif option.name == "proxycommand":
            is_new = not options and self.get_word("proxyjump", "none") == "none"
        else:
            is_new = not options and bool(option.words)
        if is_new:
            options.append(option)

    def fix_host_name(self, host: str) -> None:
        """No later line has a say in it."""
        self.target = host
        self._options["hostname"] = [_Option("hostname", (host.replace("%", "%%"),), None, "")]

    def _matches(self, criterion: _Criterion, place: str) -> bool:
        if criterion.kind in _WITHOUT_VALUE:
            return (criterion.kind == "all" or self.final) != criterion.negated
        if criterion.kind == "exec":
            return self._exec_succeeds(criterion.patterns[0], place) != criterion.negated
        if criterion.kind not in _SUBJECTS:
            return False  # also negated: it cannot be judged, and what stands below is not meant for every host
        return matches_patterns(_SUBJECTS[criterion.kind](self), criterion.patterns) != criterion.negated

    def _exec_succeeds(self, command: str, place: str) -> bool:
        """Of a `Match exec`; one that exceeds `_MATCH_EXEC_TIMEOUT` has failed. It may not read our own input."""
        line = _expand_tokens(command, self._build_tokens(), place)
        shell = os.environ.get("SHELL") or "/bin/sh"
        quiet = subprocess.DEVNULL
        try:
            return not subprocess.call(
                (shell, "-c", line), stdin=quiet, stdout=quiet, stderr=quiet, timeout=_MATCH_EXEC_TIMEOUT
            )
        except (OSError, subprocess.TimeoutExpired):
            return False


def _expand_home(word: str, option: _Option) -> Path:
    return expand_home(word, f"the SSH configuration cannot be read: {option.place}")


def _expand_tokens(word: str, tokens: Mapping[str, str], place: str, variables: Mapping[str, str] | None = None) -> str:
    """``word`` with ``%h`` and its like, and ``${NAME}`` if there are variables. Raises `UsageError`."""

    def replace(match: re.Match[str]) -> str:
        name, known = (match[2], variables or {}) if match[2] else (match[1], {"%": "%", **tokens})
        if name not in known:
            raise _make_config_error(place, f"{match[0]} has no value", word)
        return known[name]

    return re.sub(r"%(.?)|\$\{(\w+)\}" if variables is not None else r"%(.?)()", replace, word)


def find_options(file: File, hostname: str, user: str | None = None, port: int | None = None) -> "HostOptions":
    """Returns the options of a host by the lines of files that were `read_config`, in the order of their weight; a user
    and a port that were given beat them. Raises `UsageError`, and `ConnectError` for a name that had to be made
    canonical and cannot be resolved."""
    options = HostOptions(hostname, user, port)
    options.apply_lines(file)
    canonical = options.get_word("canonicalizehostname", "no") != "no"
    options.fix_host_name(_canonicalize_host_name(options) if canonical else options.host.lower())
    criteria = (criterion for line in file if isinstance(line, _Scope) for criterion in line.criteria)
    # As in OpenSSH: by its mere presence, also where the scope around it does not hold.
    if canonical or any(criterion.kind == "final" for criterion in criteria):
        options.final = True
        options.apply_lines(file)
    return options


def _canonicalize_host_name(options: "HostOptions") -> str:
    """Returns the full name of a host under one of the CanonicalDomains; its own name where there is none."""
    host = options.host.lower()
    proxied = options.get_proxy("proxycommand") or options.get_proxy("proxyjump")
    if proxied and options.get_word("canonicalizehostname") != "always":
        return host
    if host.count(".") > int(options.get_word("canonicalizemaxdots", "1")):
        return host
    for domain in options.get_words("canonicaldomains"):
        try:
            socket.getaddrinfo(f"{host}.{domain}.", None)
        except (OSError, UnicodeError):
            continue
        return f"{host}.{domain}"
    if options.get_word("canonicalizefallbacklocal") == "no":
        raise ConnectError("dns", f"the name {host} cannot be resolved in any of its CanonicalDomains")
    return host
