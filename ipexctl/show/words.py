"""Small phrases that several screens share. Pure text, no Rich."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from ipexctl.model.errors import Failure, Kind, Refused
from ipexctl.show.sanitise import visible, visible_lines

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)\Z", re.DOTALL)


def size(count: float) -> str:
    """Bytes in binary units: ``884 MiB``, ``1.2 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1000 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def amount(done: int, total: int, unit: str) -> str:
    """``40 % (480 MiB of 1.2 GiB)``, ``12 files``."""
    if unit == "B":
        return f"{100 * done // total} % ({size(done)} of {size(total)})" if total > 0 else size(done)
    unit = visible(unit)
    return f"{100 * done // total} % ({done} of {total} {unit})" if total > 0 else f"{done} {unit}"


def short_amount(done: int, total: int, unit: str) -> str:
    """The same for a narrow place: ``40 % of 1.2 GiB``."""
    if total <= 0:
        return amount(done, total, unit)
    return f"{100 * done // total} % of {size(total) if unit == 'B' else f'{total} {visible(unit)}'}"


def duration(seconds: float) -> str:
    """``2.1 s``, ``2 m 14 s``, ``3 h 05 m``."""
    if seconds < 59.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def clock(seconds: float) -> str:
    """Elapsed time as on a clock: ``00:12:31``."""
    whole = max(int(seconds), 0)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def plural(count: int, noun: str) -> str:
    """``1 host``, ``3 hosts``, ``2 processes``."""
    ending = "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"


def ranges(numbers: Iterable[int]) -> str:
    """``0-8,10-31``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def ranks(numbers: Sequence[int]) -> str:
    """``rank 5``, ``ranks 0-3,7``."""
    return f"rank{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


def hosts(names: Iterable[str], most: int = 6) -> str:
    """Host names, folded as hostfiles and ``--limit`` write them: ``xeon[01-04,06], gpu1``. At most so many words."""
    known = list(dict.fromkeys(names))
    split = {name: match.groups() for name in known if (match := _NUMBERED.fullmatch(name))}
    padded = {(head, tail) for head, digits, tail in split.values() if len(digits) > 1 and digits[0] == "0"}
    groups: dict[tuple[str, str, int], list[int]] = {}  # width 0: numbers as they are; a dict keeps the order
    for name in known:
        head, digits, tail = split.get(name, (name, "", ""))
        width = len(digits) if (head, tail) in padded else 0
        members = groups.setdefault((head, tail, width), [])
        members += [int(digits)] if digits else []
    shown = [_folded(key, numbers) for key, numbers in list(groups.items())[:most]]
    left = sum(max(len(numbers), 1) for numbers in list(groups.values())[most:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _folded(key: tuple[str, str, int], numbers: list[int]) -> str:
    head, tail, width = key
    if not numbers:
        return visible(head)
    if len(numbers) == 1:
        return visible(f"{head}{numbers[0]:0{width}d}{tail}")
    spans = (span.split("-") for span in ranges(numbers).split(","))
    inner = ",".join("-".join(f"{int(end):0{width}d}" for end in span) for span in spans)
    return visible(f"{head}[{inner}]{tail}")


def signal_name(number: int) -> str:
    """``SIGKILL`` of 9; ``signal 77`` of what has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_ADDRESS = re.compile(r" \([^()]*:\d+\)\Z")


def failures(every: Iterable[Failure]) -> list[tuple[str, list[str], str | None]]:
    """Failures grouped by cause, in order of first appearance: (``subject: what``, further lines, hint).

    Only an address at the end of ``what`` may differ inside a group; then it is left out.
    """
    groups: dict[tuple[Kind, str, str, str | None], list[Failure]] = {}
    for failure in every:
        key = (failure.kind, failure.code, _ADDRESS.sub("", failure.what), failure.hint)
        groups.setdefault(key, []).append(failure)
    lines: list[tuple[str, list[str], str | None]] = []
    for (kind, _, bare, hint), members in groups.items():
        whats = {member.what for member in members}
        first, *more = visible_lines(whats.pop() if len(whats) == 1 else bare)
        lines.append((_subject(kind, [member.host for member in members if member.host]) + first, more, hint))
    return lines


def _subject(kind: Kind, names: list[str]) -> str:
    who = f"{hosts(names)}: " if names else ""
    many = f"{len(names)} hosts, " if len(set(names)) > 3 else ""
    return many + who + ("unreachable: " if kind is Kind.UNREACHABLE else "")


def failure_lines(every: Iterable[Failure]) -> list[str]:
    """What `failures` says, as lines to print."""
    lines: list[str] = []
    for sentence, more, hint in failures(every):
        lines += [sentence, *(f"  {line}" for line in more)]
        if hint:
            lines += hint_lines(hint)
    return lines


def hint_lines(hint: str) -> list[str]:
    first, *more = visible_lines(hint)
    return [f"  hint: {first}", *(f"        {line}" for line in more)]


def refusal_lines(refused: Refused) -> list[str]:
    """One sentence, the reasons one per line, at most one hint."""
    lines = visible_lines(refused.sentence)
    lines += [f"  {line}" for reason in refused.reasons for line in visible_lines(reason)]
    return [*lines, *hint_lines(refused.hint)] if refused.hint else lines
