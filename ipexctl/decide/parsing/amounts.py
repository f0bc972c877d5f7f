"""Spans of time and addresses of loopback, as people write them in flags."""

import re
from ipaddress import ip_address

from ipexctl.model.errors import UsageError, advise
from ipexctl.model.text import printable, read_span


def parse_span(flag: str, text: str) -> float:
    """Returns seconds of ``90s``, ``2h`` or ``1.5d``. Raises `UsageError`."""
    seconds = read_span(text)
    if seconds is None:
        raise UsageError(f"{flag} takes a span of time such as 90s, 30m, 2h, 30d or 4w, not {text!r:.40}")
    return seconds


def parse_clock(flag: str, text: str) -> float:
    """Returns seconds of ``00:12:30``, ``12:30`` or ``750``. Raises `UsageError`."""
    parts = text.strip().split(":")
    bad = len(parts) > 3 or not all(re.fullmatch(r"\d{1,6}(?:\.\d{1,6})?", part, re.ASCII) for part in parts)
    if bad or any("." in part for part in parts[:-1]) or any(float(part) >= 60 for part in parts[1:]):
        raise UsageError(f"{flag} takes a time such as 00:12:30, not {text!r:.40}")
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + float(part)
    return seconds


def parse_ports(text: str) -> tuple[int, int]:
    """Returns the port here and that of the host of ``8888`` or ``8888:80``. Raises `UsageError`."""
    local, _, remote = text.partition(":")
    ports = [int(word) for word in (local, remote or local) if re.fullmatch(r"\d{1,5}", word, re.ASCII)]
    if len(ports) != 2 or text.endswith(":") or not all(1 <= port <= 65535 for port in ports):
        raise UsageError(f"a port is a number from 1 to 65535, as in 6006 or 8888:80, not '{printable(text, 40)}'")
    return ports[0], ports[1]


def parse_loopback(text: str) -> tuple[str, int]:
    """Reads an address of loopback and a port, 0 for any: ``127.0.0.1:8000``, ``[::1]:0``, ``localhost:1``, ``8000``.
    Raises `UsageError` for everything else."""
    host, _, port = text.rpartition(":")
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host).strip("[]")
    try:
        address, number = ip_address(host), int(port)
    except ValueError:
        address, number = None, -1
    if address is None or not 0 <= number <= 65535 or not port.isascii():
        what = f"--serve takes an address of this machine and a port, not {printable(text)!r}"
        raise UsageError(what, hint=advise("watch", "--serve", "127.0.0.1:0"))
    if not address.is_loopback:
        reasons = ["whoever reaches this machine could read the output of the ranks"]
        hint = "from another machine: ssh -L 8000:127.0.0.1:8000 THIS_MACHINE, with --serve 127.0.0.1:8000"
        raise UsageError(f"--serve {printable(text)} is not an address of loopback", reasons=reasons, hint=hint)
    return str(address), number
