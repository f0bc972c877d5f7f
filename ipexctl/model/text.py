"""Text for messages: untrusted text made harmless, counted nouns, sizes."""

import re
import time
from collections.abc import Sequence
from typing import Any

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", re.ASCII)


def printable(text: str, limit: int = 80) -> str:
    r"""One harmless line: what cannot be printed is shown as ``\x1b`` or ``\u202e``, and at most ``limit`` characters.

    Format characters (bidirectional overrides, zero-width ones) and separators count as unprintable; bytes that were
    not UTF-8 (surrogates, as Python decodes file names) are shown as the byte they were."""
    if len(text) <= limit and text.isprintable():
        return text
    shown = "".join(char if char.isprintable() else escape_char(char) for char in text[: limit + 1])
    return shown if len(text) <= limit else shown[:limit] + "…"


# Colours, bold, dim, italic, underline, inverse and their ends; not blink (5, 6) and not conceal (8).
_SGR_CODE = r"(?:[34]8;5;\d{1,3}|[34]8;2;\d{1,3};\d{1,3};\d{1,3}|[34][0-79]|9[0-7]|10[0-7]|2[2347]|0?[012347]|)"
_SGR = re.compile(rf"\x1b\[{_SGR_CODE}(?:;{_SGR_CODE})*m")


def strip_colours(text: str) -> str:
    """A text without its plain colours (SGR). To be made harmless after that: what the removal brings together, as in
    ``\\x1b[\\x1b[0m31m``, may be a sequence itself."""
    return _SGR.sub("", text) if "\x1b[" in text else text


def pluralize(count: int, noun: str, form: str = "") -> str:
    """``1 host``, ``3 hosts``, ``2 processes``; of many with ``form`` ",": ``12,000 lines``."""
    ending = "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{count:{form}} {noun}{'' if count == 1 else ending}"


def format_size(count: float) -> str:
    """Returns bytes in binary units, at most three digits: ``12 B``, ``884 MiB``, ``1.2 GiB``."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(count) >= 1000:
            count, unit = count / 1024, larger
    return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 10 else f"{count:.1f} {unit}"


def format_time(at: float, form: str = "%Y-%m-%d %H:%M") -> str:
    """Returns Unix seconds as local time, ``?`` for what no clock says: a host or a record may hold any number."""
    return time.strftime(form, time.localtime(at)) if 0 <= at < 1e11 else "?"


def join_names(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """``a, b and 3 more``: the first ``most`` of the names."""
    left = len(names) - most
    return separator.join(names[:most]) + (f" and {left} more" if left > 0 else "")


def strip_credentials(text: str) -> str:
    """Returns a message without user names and passwords in its URLs."""
    return re.sub(r"(?<=://)[^/\s@]+@", "", text)


def escape_char(char: str) -> str:
    """Returns a character as its escape: that of the byte where it was not UTF-8."""
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def format_clock(seconds: float) -> str:
    """Elapsed time as on a clock: ``00:12:31``."""
    whole = max(int(seconds), 0)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def parse_integer(text: str | bytes | None, most: int = 1 << 62) -> int | None:
    """Returns a non-negative decimal integer up to ``most`` of untrusted text; None for anything else."""
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    # Some who gather files of /sys keep the NUL behind them.
    if text is None or not re.fullmatch("[0-9]{1,20}", text := text.strip(" \t\r\n\0")):
        return None
    return value if (value := int(text)) <= most else None


def read_span(text: str) -> float | None:
    """Returns seconds of ``90s``, ``2h`` or ``1.5d``, and None for another text."""
    match = _SPAN.fullmatch(text.strip())
    return float(match[1]) * _SECONDS[match[2]] if match else None


def read_seconds(value: Any) -> Any:
    """Returns seconds of a text such as ``2h``, and a number as it is. Raises `ValueError` for another text."""
    seconds = read_span(value) if isinstance(value, str) else None
    if seconds is not None:
        return seconds
    try:
        float(value)
    except (TypeError, ValueError):
        if isinstance(value, str):
            raise ValueError("must be a number of seconds, or a span of time such as 90s, 30m or 2h") from None
    return value
