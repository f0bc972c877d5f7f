"""Options of ssh in an inventory (`validators.SSH_ARGUMENTS`): what they mean for a connection of ipexctl.

An inventory starts no program here. A ProxyCommand that is ``ssh -W %h:%p bastion`` is a jump host; others, and options
that ipexctl does not know, have no effect, which is reported."""

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

_WITH_VALUE = "BbcDEeFIiJLlmOopPQRSWw"  # letters of ssh(1) that take a word
_LETTERS = {"i": "IdentityFile", "J": "ProxyJump", "l": "User", "p": "Port"}
_KEYS = {"proxyjump": "jump", "user": "user", "port": "port", "identityfile": "key"}
_HARMLESS_LETTERS = frozenset("46aACkKnNqtTvxXY")
_HARMLESS = frozenset({  # keywords of ssh_config(5) about what ipexctl does by itself, or never does
    "addkeystoagent", "batchmode", "checkhostip", "compression", "connectionattempts", "connecttimeout",
    "controlmaster", "controlpath", "controlpersist", "escapechar", "exitonforwardfailure", "forwardagent",
    "forwardx11", "forwardx11trusted", "gssapiauthentication", "gssapidelegatecredentials", "hashknownhosts",
    "identitiesonly", "kbdinteractiveauthentication", "loglevel", "numberofpasswordprompts", "passwordauthentication",
    "permitlocalcommand", "preferredauthentications", "pubkeyauthentication", "requesttty", "serveralivecountmax",
    "serveraliveinterval", "tcpkeepalive", "updatehostkeys", "visualhostkey",
})  # fmt: skip
HOST_KEY_OPTIONS = frozenset({"stricthostkeychecking", "userknownhostsfile", "globalknownhostsfile"})
"""Keywords about the check of host keys. Only a file of known hosts is used: it does not weaken the check."""

_LENGTH_LIMIT = 1 << 17  # characters of one text: to split it takes the square of its longest word
_NAMED_LIMIT = 50  # options of one text that have no effect
_ONE_FILE = re.compile(r"(?!/dev/null$|none$)[^\s%$]+")
_OPTION = re.compile(r"\s*(\w+)\s*(?:=\s*|\s)(.*)", re.DOTALL)


@lru_cache(1024)  # the hosts of a group have the same
def read_ssh_arguments(text: str) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Returns what the words of a command line of ssh say of a host, by its key, and the names of options that have no
    effect."""
    try:
        options, _ = _split_options(shlex.split(text if len(text) <= _LENGTH_LIMIT else "'"))
    except ValueError:  # a quotation mark without its partner
        return {}, (text,)
    values: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in options:
        key = _KEYS.get(name.lower())
        if key:
            values.setdefault(key, value)
        elif name.lower() == "userknownhostsfile" and _ONE_FILE.fullmatch(value):
            values.setdefault("known_hosts", value)
        elif name.lower() == "proxycommand":
            jump, needless = _read_proxy_command(value)
            ignored += needless if jump else [name]
            if jump:
                values.setdefault("jump", jump)
        elif not _is_harmless(name):
            ignored.append(name)
    checks = [name for name in ignored if name.partition(" ")[0].lower() in HOST_KEY_OPTIONS]
    known = {*checks}  # one of them stands for all: they come together
    named = dict.fromkeys(checks[0] if name in known else name for name in ignored)
    return values, tuple(islice(named, _NAMED_LIMIT))


def _is_harmless(name: str) -> bool:
    """Returns whether a connection of ipexctl needs the option for nothing. One letter is its name behind a dash."""
    return name.lower() in _HARMLESS or (name[:1] == "-" and name[1:] in _HARMLESS_LETTERS)


def _split_options(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns the options by name, and the words that are none. Options may also follow the destination, as for ssh."""
    options: list[tuple[str, str]] = []
    others: list[str] = []
    left = iter(words)
    for word in left:
        if word[:1] == "-" and len(word) > 1 and len(others) < 2:
            options += _read_word(word[1:], left)
        else:
            others.append(word)
    return options, others


def _read_word(letters: str, following: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yields the options of one word: letters without a value, then perhaps one with it."""
    for at, letter in enumerate(letters):
        if letter not in _WITH_VALUE:
            yield f"-{letter}", ""
            continue
        value = letters[at + 1 :] or next(following, "")
        option = _OPTION.fullmatch(value) if letter == "o" else None
        yield (option[1], option[2].strip()) if option else (_LETTERS.get(letter, f"-{letter}"), value)
        return


def _read_proxy_command(text: str) -> tuple[str, tuple[str, ...]]:
    """The jump hosts that a ProxyCommand stands for, and its options that have no effect; "" for another program."""
    try:
        words = shlex.split(text)
        program, *rest = words[words[:1] == ["exec"] :]
        options, (destination, *command) = _split_options(rest)
        forwarded = shlex.split(" ".join(command))
    except ValueError:  # too few words, or a quotation mark without its partner
        return "", ()
    targets = {value for name, value in options if name == "-W"}
    netcat = [posixpath.basename(word) for word in forwarded[:1]]
    reaches = targets <= {"%h:%p", "[%h]:%p"} and bool(targets) is not bool(forwarded)
    reaches &= not forwarded or (netcat[0] in {"nc", "ncat", "netcat"} and forwarded[-2:] == ["%h", "%p"])
    given = {name.lower(): value for name, value in reversed(options)}
    if posixpath.basename(program) != "ssh" or not reaches or "proxycommand" in given:
        return "", ()
    user, _, host = destination.removeprefix("ssh://").rpartition("@")
    login = user or given.get("user", "")
    hop = (f"{login}@" if login else "") + host + (f":{given['port']}" if "port" in given else "")
    known = {"-w", "proxyjump", "user", "port"}
    ignored = (f"{name} of its ProxyCommand" for name, _ in options if name.lower() not in known)
    hops = (*filter(None, [given.get("proxyjump")]), hop)
    return ",".join(hops), tuple(name for name in ignored if not _is_harmless(name.partition(" ")[0]))
