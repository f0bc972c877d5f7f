"""Text for messages: untrusted text made harmless, counted nouns, sizes, and many things in few words."""

import re
import time
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)\Z", re.DOTALL)
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
_SGR = re.compile(rf"\x1b\[{_SGR_CODE}(?:;{_SGR_CODE}){{,100}}m")


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


def group_pairs(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Returns the second items of pairs by their first ones, both in order of first appearance."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def format_cpus(cpus: Iterable[int]) -> str:
    """CPU numbers in the kernel's list form: (0, 1, 2, 8) is "0-2,8"."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def format_ranks(numbers: Sequence[int]) -> str:
    """``rank 5``, ``ranks 0-3,7``."""
    return f"rank{'' if len(numbers) == 1 else 's'} {format_cpus(numbers)}"


def format_all_ranks(count: int) -> str:
    """``all 4 ranks``, ``both ranks``."""
    return "both ranks" if count == 2 else f"all {count} ranks"


def fold_names(names: Iterable[str], most: int = 6) -> str:
    """Names, folded as hostfiles and ``--limit`` write them: ``xeon[01-04,06], gpu1``. At most so many words."""
    known = list(dict.fromkeys(names))
    split = {name: match.groups() for name in known if (match := _NUMBERED.fullmatch(name))}
    padded = {(head, tail) for head, digits, tail in split.values() if len(digits) > 1 and digits[0] == "0"}
    groups: dict[tuple[str, str, int], list[int]] = {}  # width 0: numbers as they are; a dict keeps the order
    for name in known:
        head, digits, tail = split.get(name, (name, "", ""))
        width = len(digits) if (head, tail) in padded else 0
        members = groups.setdefault((head, tail, width), [])
        if digits:
            members.append(int(digits))
    shown = [_format_range(key, numbers) for key, numbers in list(groups.items())[:most]]
    left = sum(max(len(numbers), 1) for numbers in list(groups.values())[most:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _format_range(key: tuple[str, str, int], numbers: list[int]) -> str:
    head, tail, width = key
    if not numbers:
        return head
    if len(numbers) == 1:
        return f"{head}{numbers[0]:0{width}d}{tail}"
    spans = (span.split("-") for span in format_cpus(numbers).split(","))
    inner = ",".join("-".join(f"{int(end):0{width}d}" for end in span) for span in spans)
    return f"{head}[{inner}]{tail}"


def strip_credentials(text: str) -> str:
    """Returns a message without user names and passwords in its URLs."""
    return re.sub(r"(?<=://)[^/?#\s]*@", "", text)


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


def format_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns the rows of a table as lines, the columns two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


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
