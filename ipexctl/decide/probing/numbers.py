"""Numbers out of untrusted text: None where it is not what it should be."""

from __future__ import annotations

import re

MOST_CPUS = 16384  # the kernel's own limit is 8192


def whole(text: str | None, most: int = 1 << 62) -> int | None:
    """A non-negative decimal integer up to ``most``."""
    if text is None or not re.fullmatch(r"[0-9]{1,20}", text := text.strip()):
        return None
    return value if (value := int(text)) <= most else None


def cpus(text: str | None) -> tuple[int, ...] | None:
    """A list in the kernel's form, "0-3,8" or "" for none."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.strip().replace(" ", "").split(",") if text.strip() else ():
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if not match:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > MOST_CPUS:
            return None
        found.update(range(first, last + 1))
    return tuple(sorted(found))
