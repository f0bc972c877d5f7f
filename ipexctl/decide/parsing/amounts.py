"""Spans of time and amounts of space, as people write them in flags."""

import re

from ipexctl.model.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", re.ASCII)
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


def parse_span(flag: str, text: str) -> float:
    """Seconds of ``90s``, ``2h`` or ``1.5d``. Raises `UsageError`."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{flag} takes a span of time such as 90s, 30m, 2h, 30d or 4w, not {text!r:.40}")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(flag: str, text: str) -> int:
    """Bytes of ``500M``, ``2G`` or ``1.5GiB``; units are binary. Raises `UsageError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{flag} takes a size such as 500M or 2G, not {text!r:.40}")
    return int(float(match[1]) * _BYTES[match[2].lower()])


def parse_clock(flag: str, text: str) -> float:
    """Seconds of ``00:12:30``, ``12:30`` or ``750``. Raises `UsageError`."""
    parts = text.strip().split(":")
    bad = len(parts) > 3 or not all(re.fullmatch(r"\d{1,6}(?:\.\d{1,6})?", part, re.ASCII) for part in parts)
    if bad or any("." in part for part in parts[:-1]) or any(float(part) >= 60 for part in parts[1:]):
        raise UsageError(f"{flag} takes a time such as 00:12:30, not {text!r:.40}")
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + float(part)
    return seconds
