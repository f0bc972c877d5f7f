"""Everything wrong with an input, said at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.text import printable

_SHOWN = 50  # a file of rubbish must not become a flood of messages …
_ENOUGH = 1000  # … nor a long wait: after so many, reading ends


@dataclass(frozen=True, slots=True)
class InputError:
    origin: Origin
    what: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{printable(str(self.origin), 300)}: {self.what}" if self.origin.file else self.what


class InputErrors:
    """Collects what is wrong while reading goes on; `raise_if_any` raises all of it, in the order of the file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._all: dict[tuple[Origin, str], InputError] = {}

    def add(self, origin: Origin, what: str, *, found: str | None = None, hint: str | None = None) -> None:
        """Says one problem once. ``found`` is the text as it stands in the file: it is shown escaped.

        Raises `UsageError` when there are so many that reading on would help nobody.
        """
        text = what if found is None else f"{what}, found '{printable(found)}'"
        self._all.setdefault((origin, text), InputError(origin, text, hint))
        if len(self._all) >= _ENOUGH:
            self.raise_if_any()

    def __len__(self) -> int:
        return len(self._all)

    def raise_if_any(self) -> None:
        """Raises `UsageError` if there is anything to say."""
        if not self._all:
            return
        found = sorted(self._all.values(), key=lambda p: (p.origin.file != self.source, p.origin.line, p.origin.column))
        hint = found[0].hint if len({problem.hint for problem in found}) == 1 else None  # one that helps with all
        if len(found) == 1:
            raise UsageError(str(found[0]), hint=hint)
        reasons = [str(problem) for problem in found[:_SHOWN]]
        if len(found) > _SHOWN:
            reasons.append(f"… and {len(found) - _SHOWN} more")
        count = f"{len(found)} errors" + (" and perhaps more" if len(found) >= _ENOUGH else "")
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
