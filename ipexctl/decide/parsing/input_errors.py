"""All errors of an input, reported at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.json_values import Record
from ipexctl.model.text import printable

_SHOWN = 50  # a file of rubbish must not become a flood of messages …
_ENOUGH = 1000  # … nor a long wait: after so many, reading ends


class InputError(Record):
    origin: Origin
    what: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{printable(str(self.origin), 300)}: {self.what}" if self.origin.file else self.what


class InputErrors:
    """Collects errors while the input is read; `raise_if_any` raises all of them, in the order of the file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._all: dict[tuple[Origin, str], InputError] = {}

    def add(self, origin: Origin, what: str, *, value: str | None = None, hint: str | None = None) -> None:
        """Adds an error once. ``value`` is the text in the file; it is shown escaped.

        Raises `UsageError` when there are so many that reading on would help nobody.
        """
        text = what if value is None else f"{what}, found '{printable(value)}'"
        self._all.setdefault((origin, text), InputError(origin, text, hint))
        if len(self._all) >= _ENOUGH:
            self.raise_if_any()

    def __len__(self) -> int:
        return len(self._all)

    def raise_if_any(self) -> None:
        """Raises `UsageError` if there are errors."""
        if not self._all:
            return
        errors = sorted(
            self._all.values(), key=lambda e: (e.origin.file != self.source, e.origin.line, e.origin.column)
        )
        hint = errors[0].hint if len({problem.hint for problem in errors}) == 1 else None  # one that helps with all
        if len(errors) == 1:
            raise UsageError(str(errors[0]), hint=hint)
        reasons = [str(problem) for problem in errors[:_SHOWN]]
        if len(errors) > _SHOWN:
            reasons.append(f"… and {len(errors) - _SHOWN} more")
        count = f"{len(errors)} errors" + (" and perhaps more" if len(errors) >= _ENOUGH else "")
        raise UsageError(f"{printable(self.source, 300)} has {count}", reasons=reasons, hint=hint)


def suggest_nearest(word: str, valid: Iterable[str]) -> str:
    """`` (did you mean …?)`` with up to three close words; where none is close, the valid ones or the nearest."""
    known = sorted(set(valid))
    close = difflib.get_close_matches(word[:100], known, n=3, cutoff=0.5)
    if close:
        return f" (did you mean {_join_or(close)}?)"
    if len(known) > 16:
        return f" (nearest: {printable(difflib.get_close_matches(word[:100], known, n=1, cutoff=0.0)[0])})"
    return f" (valid: {', '.join(printable(each) for each in known)})" if known else ""


def _join_or(words: list[str]) -> str:
    shown = [printable(word) for word in words]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
