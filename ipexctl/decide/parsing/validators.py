"""What hosts, users, ports and the like may be made of. Allow-lists: whatever is not named here is refused.

Each check returns the reason for a refusal, or None. The words that pass are safe to show, and safe as words of
ssh, rsync and mpirun: none begins with a dash or holds a blank, a quote or anything a shell knows.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping

from ipexctl.model.text import printable

MAX_SLOTS = 1024  # per host; the largest x86 machines have fewer cores, and common port numbers lie above

_NOT_HOST = re.compile(r"[^A-Za-z0-9._-]")
_NOT_RANGE = re.compile(r"[^A-Za-z0-9._\[\]:, \t-]")
_USER = re.compile(r"[a-z_][a-z0-9_.-]*")
_NUMBER = re.compile(r"[0-9]{1,9}")
_IFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]*")
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def ipv6(text: str) -> bool:
    """An IPv6 address without brackets and without a zone."""
    if "%" in text or ":" not in text:
        return False
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def host(text: str) -> str | None:
    """A host name, an IPv4 address, or an IPv6 address without its brackets."""
    if not text:
        return "host is empty"
    if ipv6(text):
        return None
    if text.startswith("-"):
        return "host begins with a dash"
    if bad := _NOT_HOST.search(text):
        return _holds(bad[0])
    labels = text.split(".")
    if len(text) > 253 or any(len(label) > 63 for label in labels):
        return "host is too long: 253 characters in all and 63 between dots are allowed"
    if any(not label or label.startswith("-") for label in labels):
        return "host has an empty part, or one that begins with a dash"
    if labels[-1].isdigit():
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            return "host is neither a name nor an IPv4 address"
    if text.lower() == "xxx.xxx.xxx.xxx":
        return "host is a placeholder: write the address of the machine"
    return None


def host_range(text: str) -> str | None:
    """The characters of a host with ranges, or of an IPv6 address in brackets."""
    if text.startswith("-"):
        return "host begins with a dash"
    bad = _NOT_RANGE.search(text)
    return _holds(bad[0]) if bad else None


def _holds(char: str) -> str:
    return f"host holds '{printable(char)}' (allowed: letters, digits, '.', '-', '_', and IPv6 in brackets)"


def user(text: str) -> str | None:
    if len(text) > 64 or not _USER.fullmatch(text):
        return "user must be lower-case letters, digits, '_', '.', '-', and begin with a letter or '_'"
    return None


def port(text: str) -> str | None:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= 65535:
        return "port must be a number from 1 to 65535"
    return None


def slots(text: str) -> str | None:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_SLOTS:
        return f"slots must be a number from 1 to {MAX_SLOTS}"
    return None


def path(text: str) -> str | None:
    if not text or len(text) > 4096:
        return "path must have 1 to 4096 characters"
    if text.startswith("-"):
        return "path begins with a dash"
    return value(text)


def value(text: str) -> str | None:
    """Any printable text: values that only ever travel quoted."""
    bad = next((char for char in text if not char.isprintable()), None)
    return None if bad is None else f"value holds '{printable(bad)}'"


def iface(text: str) -> str | None:
    if len(text) > 15 or not _IFACE.fullmatch(text):
        return "iface must be the name of a network interface, such as eth0"
    return None


def yes_no(text: str) -> str | None:
    return None if text.lower() in {"yes", "no", "true", "false", "1", "0"} else "local must be yes or no"


def group(text: str) -> str | None:
    if len(text) > 100 or not _GROUP.fullmatch(text):
        return "group must be letters, digits, '_', '.', '-', and begin with a letter or '_'"
    return None


KEYS: Mapping[str, Callable[[str], str | None]] = {
    "slots": slots,
    "max_slots": slots,
    "user": user,
    "port": port,
    "key": path,
    "address": host,
    "venv": path,
    "workdir": path,
    "python": path,
    "iface": iface,
    "local": yes_no,
    "known_hosts": path,
    "lab": group,
    "binding": value,  # of MPICH: carried along, not used
}
"""The keys of a host, with what their values may be."""

ALIASES: Mapping[str, str] = {
    "max-slots": "max_slots",
    "slots_max": "max_slots",
    "slots-max": "max_slots",
    "username": "user",
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_private_key_file": "key",
    "ansible_ssh_private_key_file": "key",
    "ansible_connection": "local",
}
"""What other tools call our keys (``ansible_connection=local`` is ``local=yes``)."""

SECRET = re.compile(r"pass(word|wd|phrase)?$|_pass_|secret|token|vault", re.IGNORECASE)
"""Keys of other tools whose values are neither kept nor shown."""
