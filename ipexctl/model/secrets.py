"""What looks like a secret, by its name or its form: the one module that reads ``data/secrets.toml``.

Text is bytes here: a rank's output has no other form, and a pattern in bytes never cuts a character of UTF-8."""

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from urllib.parse import unquote

from ipexctl.data import read_data
from ipexctl.model.toml import parse_toml

MASK = b"***"
# A name, or an option, and what stands between it and its value. A value ends with its quotes, or where a word does.
_NAME = re.compile(
    rb"(?<![\w.-])(?:([\w.-]+)\\{0,3}[\"']?\s?[=:]\s?|(--[\w.-]+)(?:\\{0,3}[\"'])?(?:,?\s|,(?=\\{0,3}[\"'])))"
)
_POSITION = re.compile(rb"\d+(?::\d+)?:(?!\S)")  # behind the name of a file: a line, and a column
_VALUE = re.compile(rb"\\{1,3}[\"'][^\"'\\]*|[a-zA-Z]{0,2}(?:\"[^\"]*\"|'[^']*')|[\"']?[^\s,;&'\"]+")
_KNOWN = re.compile(rb"(?i:[\"']?(?:true|false|none|null)[\"']?)|\"?\$(?:\{[A-Za-z_]\w*\}|[A-Z_][A-Z0-9_]*)\"?")
_OPTION = re.compile(rb"--[a-z][\w-]*(?:=.*)?|-[a-zA-Z]")
_FRAME = re.compile(rb'File "[^"]+\.py", line \d+, in \S')  # of a traceback, above the line of source code
_PASSWORD = re.compile(r"(?s)://[^:/?#@\s]*:(?!\d+/)(.+)")  # also with what should be quoted: slashes, blanks
_SCHEMES = {"bearer", "basic", "token", "apikey"}  # of a header Authorization
_LINE_LIMIT = 1 << 10  # bytes of a line of one


@cache
def _read_names() -> tuple[re.Pattern[str], re.Pattern[str], tuple[bytes, ...]]:
    """What is in the name of a secret, what is not, and the hints of it."""
    names = parse_toml(read_data("secrets.toml"))["names"]
    other = re.compile(names.pop("not")["pattern"], re.IGNORECASE)
    every = re.compile("|".join(name["pattern"] for name in names.values()), re.IGNORECASE)
    return every, other, tuple(name.encode() for name in names)


@cache
def _read_forms() -> dict[str, tuple[tuple[bytes, ...], bytes]]:
    """The forms of secrets: hints and pattern of each, which few commands need compiled."""
    return {
        name: (tuple(hint.encode() for hint in form["hints"]), form["pattern"].encode())
        for name, form in parse_toml(read_data("secrets.toml"))["forms"].items()
    }


@lru_cache(4096)
def looks_secret(name: str) -> bool:
    """Returns whether a variable of this name holds a secret, as far as its name tells."""
    every, other, _ = _read_names()
    return every.search(name) is not None and other.search(name) is None


def holds_secret(value: str) -> bool:
    """Returns whether a value has the form of a secret."""
    data = value.encode("utf-8", "surrogateescape")
    return mask_forms(data) != data


def find_named_values(words: Sequence[str]) -> Iterator[str]:
    """Yields for each word of a command line the part that is a secret by its name: all of it after an option, as in
    ``--api-key X``, or what follows ``API_KEY=``; else nothing."""
    for before, word in pairwise(("", *words)):
        option = before.startswith("--") and "=" not in before and not word.startswith("-")
        secret, value = word if option and looks_secret(before) else "", word
        while "=" in value and not secret:
            name, _, value = value.partition("=")
            secret = value if looks_secret(re.split(r"[^\w.-]", name)[-1]) else ""
        yield secret


def find_passwords(text: str) -> Iterator[str]:
    """Yields those of the URLs of a text, which is a word or a list of them."""
    for url in re.split(r"[\s,](?=https?://)", text):
        for password in _PASSWORD.findall(url.rpartition("@")[0]):
            yield from dict.fromkeys((password, unquote(password)))


def mask_forms(data: bytes) -> bytes:
    """Returns text without what has the form of a secret."""
    lower = data.lower()
    for hints, pattern in _read_forms().values():
        if any(hint in lower for hint in hints):  # a pattern is slow, and most texts have none
            data = re.sub(pattern, rb"\1***" if re.compile(pattern).groups else MASK, data)
    return data


def mask_names(data: bytes) -> bytes:
    """Returns text without the values that follow names which look secret."""
    pieces, end = [], 0
    for value in _find_values(data):
        pieces += [data[end : value.start()], MASK]
        end = value.end()
    return b"".join([*pieces, data[end:]]) if pieces else data


def find_inner_values(word: str) -> Iterator[str]:
    """Yields the values within a word that is a line for a shell, JSON or a header."""
    for value in _find_values(word.encode("utf-8", "surrogateescape")):
        text = value[0].decode("utf-8", "surrogateescape")
        bare = text.strip("\\\"'") if text[-1:] in "\"'" or "\\" in text[:1] else text.lstrip("\"'").rstrip("}])")
        scheme, _, login = bare.partition(" ")
        if scheme.lower() in _SCHEMES:  # of a header: what follows it, perhaps behind the value
            following = value.string[value.end() :].decode("utf-8", "surrogateescape")
            bare = login or re.split(r"[\s,;&'\"\\]", following.lstrip(" "))[0]
        yield bare


def _find_values(data: bytes) -> Iterator[re.Match[bytes]]:
    """Yields the values that follow names which look secret, with their quotes."""
    lower, end = data.lower(), 0
    if not any(hint in lower for hint in _read_names()[2]):
        return
    for name in _NAME.finditer(data):
        secret = name.start() >= end and looks_secret((name[1] or name[2]).decode())
        is_file = b"." in name[0] and name[0].endswith(b":")  # a password of db.password= may have digits alone
        if secret and is_file and _POSITION.match(data, name.end()):
            continue
        value = _VALUE.match(data, name.end()) if secret else None
        if value and (_KNOWN.fullmatch(value[0]) or (name[2] and _OPTION.fullmatch(value[0]))):
            continue  # a word of the language, a variable, or the next option
        if value and not _is_expression(data, name.start(), value[0]):
            yield value
            end = value.end()


def _is_expression(data: bytes, at: int, value: bytes) -> bool:
    """Returns whether a value is a name or a call in the source code of a traceback: a secret is a literal there. The
    line of code is indented by two more than that of its file; where it is missing, the exception may follow."""
    begin = data.rfind(b"\n", max(0, at - _LINE_LIMIT), at)
    above = data[max(0, begin - _LINE_LIMIT) : max(0, begin)].rpartition(b"\n")[2]
    frame = _FRAME.search(above) if value[:1].isalpha() and value[-1:] not in b"\"'" else None
    return frame is not None and data.startswith(above[: frame.start()] + b"  ", begin + 1)


def find_beginning(data: bytes) -> int:
    """Returns where the last word of a text begins to look like a secret; its length, where it does not."""
    begin = max(map(data.rfind, b" \t\r\n")) + 1
    word = data[begin:].lower()
    places = (word.find(hint) for hints, _ in _read_forms().values() for hint in hints)
    return begin + min((at for at in places if at >= 0), default=len(word))


def ends_in_key(data: bytes) -> bool:
    """Returns whether a text ends inside of a private key, whose next lines are secret, too."""
    last = data.rfind(b"-----BEGIN")
    key = re.match(_read_forms()["private-key"][1], data[last:]) if last >= 0 else None
    return key is not None and key.end() == len(data) - last and b"-----END" not in key[0]
