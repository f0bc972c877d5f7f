"""The catalogue of known errors in ``ipexctl/data/errors.toml``, and the diagnosis of a failure by it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ipexctl.model.findings import Diagnosis
from ipexctl.model.toml import parse_toml

_LOOKED_AT = 1 << 16  # letters of each text
_LINE = 1000  # letters of a line: no pattern may take long over one that has no end


@dataclass(frozen=True, slots=True)
class KnownError:
    """One entry: `pattern` is searched in what was written, `signal` is the one that ended the rank (0: any way)."""

    code: str
    pattern: re.Pattern[str]
    signal: int
    message: str
    title: str
    why: str
    fix: str
    source: tuple[str, ...]


KnownErrors = Sequence[KnownError]


def parse_errors(text: str) -> KnownErrors:
    """Raises `ValueError` for a malformed table (a bug: the table is part of the program)."""
    errors = []
    for code, item in parse_toml(text).items():
        try:
            known = KnownError(
                code,
                re.compile(item["pattern"]),
                int(item.get("signal", 0)),
                item["message"],
                item["title"],
                item["why"],
                item["fix"],
                tuple(item["source"]),
            )
        except (KeyError, re.error) as error:
            raise ValueError(f"{code}: {error}") from None
        errors.append(known)
    return tuple(errors)


def diagnose(errors: KnownErrors, texts: Iterable[str], signal: int = 0) -> Diagnosis | None:
    """The first entry that fits the first of these texts (the most telling first); else that of the signal."""
    for text in texts:
        text = "\n".join(line[:_LINE] for line in text[-_LOOKED_AT:].splitlines())
        for known in errors:
            if match := known.pattern.search(text):
                return _make_diagnosis(known, match)
    return next((_make_diagnosis(known) for known in errors if signal and known.signal == signal), None)


def _make_diagnosis(known: KnownError, match: re.Match[str] | None = None) -> Diagnosis:
    words = {name: word or "?" for name, word in match.groupdict().items()} if match else {}
    line = ""
    if match:
        start = match.string.rfind("\n", 0, match.start()) + 1
        end = match.string.find("\n", match.start())
        line = match.string[start : end if end >= 0 else None].strip()[:500]
    return Diagnosis(
        known.code, _fill_placeholders(known.title, words), known.why, _fill_placeholders(known.fix, words), line
    )


def _fill_placeholders(text: str, words: dict[str, str]) -> str:
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    return text
