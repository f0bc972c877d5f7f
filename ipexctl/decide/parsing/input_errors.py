"""All errors of an input, reported at once."""

import difflib
from collections.abc import Iterable

from ipexctl.model.errors import Origin, UsageError
from ipexctl.model.text import printable

_SHOWN_ERRORS = 50  # a file of rubbish must not become a flood of messages …
_ERROR_LIMIT = 1000  # … nor a long wait: after so many, reading ends
_SUGGESTIONS = 20  # errors with the nearest names, which take long to find …
_COMPARED_NAMES = 2000  # … among many


class InputErrors:
    """Collects errors while the input is read; `raise_if_any` raises all of them, in the order of the file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._all: dict[tuple[Origin, str], tuple[str, str | None]] = {}  # where and what → shown text, hint

    def add(
        self,
        origin: Origin,
        what: str,
        *,
        value: str | None = None,
        hint: str | None = None,
        near: tuple[str, Iterable[str]] | None = None,
    ) -> None:
        """Adds an error once. ``value`` is the text in the file; it is shown escaped. ``near``: a wrong word and the
        valid ones, of which the first errors name the nearest. Raises `UsageError` when there are so many that reading
        on would help nobody."""
        value_text = "" if value is None else f", found '{printable(value)}'"
        if (origin, what + value_text) in self._all:
            return
        close = suggest_nearest(*near) if near and len(self._all) < _SUGGESTIONS else ""
        self._all[origin, what + value_text] = what + close + value_text, hint
        if len(self._all) >= _ERROR_LIMIT:
            self.raise_if_any()

    def __len__(self) -> int:
        return len(self._all)

    def raise_if_any(self) -> None:
        """Raises `UsageError` if there are errors."""
        if not self._all:
            return
        places = sorted(self._all, key=lambda error: (error[0].file != self.source, error[0].line, error[0].column))
        shown = [(origin, self._all[origin, what][0]) for origin, what in places]
        errors = [f"{printable(str(origin), 300)}: {text}" if origin.file else text for origin, text in shown]
        hints = {hint for _, hint in self._all.values()}
        hint = hints.pop() if len(hints) == 1 else None  # one that helps with all
        if len(errors) == 1:
            raise UsageError(errors[0], hint=hint)
        reasons = errors[:_SHOWN_ERRORS] + (
            [f"… and {len(errors) - _SHOWN_ERRORS} more"] if len(errors) > _SHOWN_ERRORS else []
        )
        count = f"{len(errors)} errors" + (" and perhaps more" if len(errors) >= _ERROR_LIMIT else "")
        raise UsageError(f"{printable(self.source, 300)} has {count}", reasons=reasons, hint=hint)


def suggest_nearest(word: str, valid: Iterable[str]) -> str:
    """`` (did you mean …?)`` with up to three close words; where none is close, the valid ones or the nearest."""
    known = sorted({each[:100] for each in valid})[:_COMPARED_NAMES]
    if close := [printable(each) for each in difflib.get_close_matches(word[:100], known, n=3, cutoff=0.5)]:
        return f" (did you mean {' or '.join(filter(None, (', '.join(close[:-1]), close[-1])))}?)"
    if len(known) > 16:
        return f" (nearest: {printable(difflib.get_close_matches(word[:100], known, n=1, cutoff=0.0)[0])})"
    return f" (valid: {', '.join(printable(each) for each in known)})" if known else ""
