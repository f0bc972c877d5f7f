"""Host names in few words."""

import re
from collections.abc import Iterable

from ipexctl.model.facts import format_cpus

_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)\Z", re.DOTALL)


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
