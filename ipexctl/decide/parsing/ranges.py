"""Ranges in host names: ``node[01-16,20]``, as Slurm and pdsh write them, ``node[01:16]`` as Ansible does; with a step
``[1:9:2]`` (Ansible) or ``[1-9/2]`` (ClusterShell)."""

import itertools
import re

MAX_HOSTS = 4096
"""How many hosts one range, and one inventory, may hold."""

_NAME_LIMIT = 1000  # characters, of which a host's name has 253 and a user's some more
_PART = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
_NUMBERS = re.compile(r"([0-9]{1,9})(?:[-:]([0-9]{1,9})(?:[:/]([0-9]{1,9}))?)?")
_LETTERS = re.compile(r"([a-z])[-:]([a-z])|([A-Z])[-:]([A-Z])")


class RangeError(ValueError):
    """The text of a range that means nothing, with the reason."""


def expand_ranges(text: str) -> list[str]:
    """Returns all names a text stands for, in order. A text without brackets is itself. Raises `RangeError`."""
    if "[" not in text and "]" not in text:
        return [text]
    pieces: list[list[str]] = []
    total, end = 1, 0
    while part := _PART.match(text, end):
        end = part.end()
        items = (_expand_item(item.strip(" \t")) for item in part[2].split(","))
        values = list(itertools.islice(itertools.chain.from_iterable(items), MAX_HOSTS + 1))  # one too many says enough
        total *= len(values)
        if total > MAX_HOSTS:
            raise RangeError(f"range holds more than {MAX_HOSTS} hosts")
        pieces += [[part[1]], values]
    suffix = text[end:]
    if "[" in suffix or "]" in suffix:
        raise RangeError("brackets do not match")
    if sum(len(values[0]) for values in pieces) + len(suffix) > _NAME_LIMIT:
        raise RangeError(f"range makes names of more than {_NAME_LIMIT} characters")
    return ["".join(chosen) for chosen in itertools.product(*pieces, [suffix])]


def _expand_item(item: str) -> list[str]:
    if numbers := _NUMBERS.fullmatch(item):
        low, high, step = numbers[1], numbers[2] or numbers[1], int(numbers[3] or 1)
        if int(high) < int(low):
            raise RangeError("range runs backwards")
        if step == 0:
            raise RangeError("range has a step of 0")
        if (int(high) - int(low)) // step >= MAX_HOSTS:
            raise RangeError(f"range holds more than {MAX_HOSTS} hosts")
        return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1, step)]
    if letters := _LETTERS.fullmatch(item):
        first, last = letters[1] or letters[3], letters[2] or letters[4]
        if last < first:
            raise RangeError("range runs backwards")
        return [chr(code) for code in range(ord(first), ord(last) + 1)]
    raise RangeError("range must look like [01-16,20] or [a-d]")
