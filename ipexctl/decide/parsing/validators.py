"""What hosts, users, ports and the like may be made of. Allow-lists: whatever is not named here is refused.

Each check returns the reason for a refusal, or None. The words that pass are safe to show, and safe as words of
ssh and mpirun: none begins with a dash or holds a blank, a quote or anything a shell knows."""

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Mapping

from ipexctl.model.text import printable

MAX_SLOTS = 1024  # per host; the largest x86 machines have fewer cores, and common port numbers lie above

Check = Callable[[str], str | None]

_NOT_HOST = re.compile(r"[^A-Za-z0-9._-]")
_HOP = re.compile(r"(?:(?P<user>[^@]*)@)?(?:\[(?P<v6>[^]]*)\]|(?P<host>[^:@]*))(?::(?P<port>.*))?")
_NOT_RANGE = re.compile(r"[^A-Za-z0-9._\[\]:/, \t-]")


def _require_match(pattern: str, longest: int, why: str) -> Check:
    known = re.compile(pattern)
    return lambda text: None if len(text) <= longest and known.fullmatch(text) else why + _describe_non_ascii(text)


def _describe_non_ascii(text: str) -> str:
    """Code point, name and column of the first character that may look like a letter of ASCII and is none."""
    column = next((number for number, char in enumerate(text, 1) if not char.isascii()), 0)
    char = text[column - 1 : column]
    if char:
        return f"; column {column} is U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()
    return ""


def _require_number(name: str, most: int) -> Check:
    why = f"{name} must be a number from 1 to {most}"
    return lambda text: None if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= most else why


def is_address(text: str) -> bool:
    """Returns an IPv4 or IPv6 address without brackets and without a zone."""
    try:
        return "%" not in text and bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def is_ipv6(text: str) -> bool:
    """Returns an IPv6 address without brackets and without a zone."""
    return ":" in text and is_address(text)


def host(text: str) -> str | None:
    """Returns a host name, an IPv4 address, or an IPv6 address without its brackets."""
    if not text:
        return "host is empty"
    if is_ipv6(text):
        return None
    if text.startswith("-"):
        return "host begins with a dash"
    if bad := _NOT_HOST.search(text):
        return _describe_bad_character(bad[0], text)
    labels = text.split(".")
    if len(text) > 253 or any(len(label) > 63 for label in labels):
        return "host is too long: 253 characters in all and 63 between dots are allowed"
    if any(not label or label.startswith("-") for label in labels):
        return "host has an empty part, or one that begins with a dash"
    if labels[-1].isdigit() and not is_address(text):
        return "host is neither a name nor an IPv4 address"
    if re.fullmatch(r"(?:[0-9]+\.){3}[0-9]+-[0-9]+", text):
        return "a range of addresses is written in brackets: 10.0.0.[1-3]"
    if text.lower() == "xxx.xxx.xxx.xxx":
        return "host is a placeholder: write the address of the machine"
    return None


def host_range(text: str) -> str | None:
    """Returns the characters of a host with ranges, or of an IPv6 address in brackets."""
    if text.startswith("-"):
        return "host begins with a dash"
    bad = _NOT_RANGE.search(text)
    return _describe_bad_character(bad[0], text) if bad else None


def _describe_bad_character(char: str, text: str) -> str:
    allowed = "(allowed: letters, digits, '.', '-', '_', and IPv6 in brackets)"
    return f"host holds '{printable(char)}' {allowed}{_describe_non_ascii(text)}"


user = _require_match(
    r"[a-z_][a-z0-9_.-]*", 64, "user must be lower-case letters, digits, '_', '.', '-', and begin with a letter or '_'"
)
port = _require_number("port", 65535)
slots = _require_number("slots", MAX_SLOTS)
iface = _require_match(
    r"[A-Za-z0-9][A-Za-z0-9_.:@-]*", 15, "iface must be the name of a network interface, such as eth0"
)
yes_no = _require_match(r"(?i:yes|no|true|false|1|0)", 5, "local must be yes or no")
group = _require_match(
    r"[A-Za-z_][A-Za-z0-9_.-]*", 100, "group must be letters, digits, '_', '.', '-', and begin with a letter or '_'"
)


def interface_address(text: str) -> str | None:
    """MPICH resolves a name of an interface on each host; here only the address says which interface is meant."""
    if is_address(text):
        return None
    return "ifhn must be an IP address of the host; iface=NAME names an interface"


def path(text: str) -> str | None:
    if not text or len(text) > 4096:
        return "path must have 1 to 4096 characters"
    if text.startswith("-"):
        return "path begins with a dash"
    return value(text)


def environment(text: str) -> str | None:
    """A path on the hosts, of a directory with Python packages and not of a program in one (`strip_program`)."""
    if not text.startswith(("/", "~/")) and not path(text):
        return "the path of an environment begins with / or with ~/, the home directory on the hosts"
    return "the path is not of an environment but of what is in one" if strip_program(text) else path(text)


def strip_program(text: str) -> str | None:
    """Returns ENV of ``ENV/bin``, ``ENV/bin/python`` or ``ENV/bin/activate``, which other tools take."""
    match = re.fullmatch(r"(.+)/bin(?:/(?:python[0-9.]*|activate))?", text)
    return match and match[1]


def value(text: str) -> str | None:
    """Any printable text: values that only ever travel quoted."""
    bad = next((char for char in text if not char.isprintable()), None)
    return None if bad is None else f"value holds '{printable(bad)}'"


def jump(text: str) -> str | None:
    """Jump hosts between commas, the first one first: ``[user@]host[:port]``."""
    for hop in text.split(","):
        match = _HOP.fullmatch(hop)
        if not match:
            return "jump must be hosts between commas: user@host:port"
        parts = ((user, match["user"]), (host, match["v6"] or match["host"]), (port, match["port"]))
        if why := next((why for check, part in parts if part is not None and (why := check(part))), None):
            return f"jump: {why}"
    return None


KEYS: Mapping[str, Check] = {
    "slots": slots,
    "max_slots": slots,
    "user": user,
    "port": port,
    "address": host,
    "iface": iface,
    **dict.fromkeys(("key", "workdir", "python", "known_hosts"), path),
    "venv": environment,
    "ifhn": interface_address,
    "jump": jump,
    "local": yes_no,
    "lab": group,
    "binding": value,  # binding, of MPICH, is not used
}
"""The keys of a host, with what their values may be."""

ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("max-slots", "slots_max", "slots-max"), "max_slots"),
    **dict.fromkeys(("slot", "count", "cpu", "cpus"), "slots"),
    "username": "user",
}
"""What MPIs call our keys. In an inventory of Ansible they are variables of its own."""

ANSIBLE: Mapping[str, str] = {
    **dict.fromkeys(("ansible_user", "ansible_ssh_user"), "user"),
    **dict.fromkeys(("ansible_host", "ansible_ssh_host"), "address"),
    **dict.fromkeys(("ansible_port", "ansible_ssh_port"), "port"),
    **dict.fromkeys(("ansible_private_key_file", "ansible_ssh_private_key_file"), "key"),
    "ansible_connection": "local",
}
"""What Ansible calls them (``ansible_connection=local`` is ``local=yes``). Of two names of one key the later counts."""

SSH_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
"""Ansible's variables with options of ssh, in the order in which it passes them on."""

TEMPLATE = re.compile(r"\{\{|\{%")
"""How a template of Jinja begins, which Ansible would evaluate."""

SECRET = re.compile(r"pass(word|wd|phrase)?$|_pass_|secret|token|vault", re.IGNORECASE)
"""Keys of other tools whose values are neither kept nor shown."""
