"""Secrets in what leaves ipexctl: one place through which screens, records, logs and errors pass.

A rank's own file of a saved run (mode 0600) keeps what the rank wrote; what is shown and reported of it is masked."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache
from operator import is_
from typing import Any

from ipexctl.model import events as e
from ipexctl.model.facts import Facts
from ipexctl.model.text import SECRET_NAME, looks_secret, strip_credentials

MASK = "***"
_SHORT, _MOST = 200, 10_000  # characters of a text that is masked once only, and how many such texts
_LEAST = 6  # characters of a value: shorter ones are words that stand elsewhere, too
_NAMED = re.compile(
    rf"({SECRET_NAME}[\w-]*[\"']?\s?[=:]\s?|--[\w-]*?{SECRET_NAME}[\w-]*[\"',]*\s|sshpass -p\s?)"
    r"(\"[^\"]*\"|'[^']*'|[^\s,;&'\"]+)",
    re.IGNORECASE,
)
_HINTS = ("token", "secret", "passw", "passphrase", "credential", "key", "bearer ", "basic ", "sshpass")
_AUTHORIZATION = re.compile(r"(?i)\b(bearer|basic) [\w.~+/=-]{8,}")
_TOKENS = ("hf_", "gh", "glpat-", "xox")
_TOKEN = re.compile(r"\b(?:hf_|gh[pousr]_|glpat-|xox[abp]-)[\w-]{16,}")
# What no script prints for anything else; words like tokens=2048 are the business of training scripts.
_PRINTED = re.compile(rb"\b(?:hf_|gh[pousr]_|glpat-|xox[abp]-)[\w-]{16,}|(?<=://)[^/\s@:]*:[^/\s@]+(?=@)")
# What one of these holds, by a byte of it that few texts have: one byte is found a hundred times as fast as a word.
_PRINTED_HINTS = ((b"_", (b"hf_", b"gh")), (b"-", (b"glpat-", b"xox")), (b"/", (b"://",)))
_ESCAPE = rb"(?:\x1b\[[0-9;]*m)*"  # a colour may stand anywhere in what a rank prints
_SKIPPED = (e.FactsRead, e.Progress, e.StepStarted, e.RankStage)  # no text that a user or a rank wrote


def mask_secrets(text: str, values: Iterable[str] = ()) -> str:
    """``text`` without passwords in URLs, without what follows a name that looks secret, and without ``values``."""
    for value in values:
        text = text.replace(value, MASK)
    lower = text.lower()
    if "://" in lower:
        text = strip_credentials(text)
    if any(hint in lower for hint in _HINTS):  # most texts have none, and the patterns are slow
        text = _AUTHORIZATION.sub(r"\1 ***", _NAMED.sub(r"\1***", text))
    return _TOKEN.sub(MASK, text) if any(start in text for start in _TOKENS) else text


def _may_hold_secret(data: bytes) -> bool:
    return any(byte in data and any(hint in data for hint in hints) for byte, hints in _PRINTED_HINTS)


class Masker:
    """Masks what it is given; knows the values of secret variables, longest first."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.values: tuple[str, ...] = ()
        self._encoded: tuple[bytes, ...] = ()
        self._pattern: re.Pattern[bytes] | None = None
        self._held: dict[tuple[int, str], e.Output] = {}  # an end that may be the beginning of a value
        self.add_secrets(value for name, value in environ.items() if looks_secret(name))

    def add_secrets(self, values: Iterable[str]) -> None:
        """From now on these are secrets, too, and each line of them."""
        lines = {line for value in values for line in (value, *value.splitlines()) if len(line) >= _LEAST}
        self.values = tuple(sorted({*self.values, *lines}, key=len, reverse=True))
        self._mask_short_text = lru_cache(_MOST)(self.mask_text)  # hundreds of hosts have the same ones
        self._encoded = tuple(value.encode() for value in self.values)
        words = (_ESCAPE.join(re.escape(bytes([byte])) for byte in value) for value in self._encoded)
        self._pattern = re.compile(b"|".join(words)) if self.values else None

    def mask_text(self, text: str) -> str:
        return mask_secrets(text, self.values)

    def mask_event(self, event: e.Event) -> Iterator[e.Event]:
        """The event as it may be shown. The end of a rank's output is held back while it may be part of a value."""
        if isinstance(event, e.Output):
            if _may_hold_secret(event.data):
                event = replace(event, data=_PRINTED.sub(MASK.encode(), event.data))
            yield from self._mask_output(event) if self._pattern else (event,)
        elif isinstance(event, _SKIPPED):
            yield event
        else:
            if isinstance(event, e.RunEnded):
                yield from self._held.values()
                self._held.clear()
            yield self.mask_value(event)

    def _mask_output(self, event: e.Output) -> Iterator[e.Output]:
        key, before = (event.rank, event.stream), self._held.pop((event.rank, event.stream), None)
        data = (before.data if before else b"") + event.data
        if self._pattern and (b"\x1b" in data or any(value in data for value in self._encoded)):
            data = self._pattern.sub(MASK.encode(), data)
        longest = min(len(data), max(map(len, self.values), default=0) * 4) if event.partial else 0
        held = next((n for n in range(longest, 0, -1) if self._may_begin(data[-n:])), 0)
        if held:
            self._held[key] = replace(event, data=data[-held:])
        if data[: len(data) - held]:
            yield replace(event, data=data[: len(data) - held])

    def _may_begin(self, data: bytes) -> bool:
        return any(value.startswith(data) for value in self._encoded)

    def mask_value(self, value: Any) -> Any:
        """A record, or what one holds, without secrets: the value itself where nothing in it is masked."""
        if isinstance(value, str):
            masked = self._mask_short_text(value) if len(value) <= _SHORT else self.mask_text(value)
            return value if masked == value else masked
        if value is None or isinstance(value, int | float | Facts):
            return value  # facts as in `FactsRead`: each has hundreds of values
        if isinstance(value, bytes):
            if _may_hold_secret(value):
                value = _PRINTED.sub(MASK.encode(), value)
            return self._pattern.sub(MASK.encode(), value) if self._pattern else value
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            inner = [self.mask_value(each) for each in value]
            return value if all(map(is_, inner, value)) else tuple(inner)
        if isinstance(value, Mapping):
            values = [*value.values()]
            inner = [self.mask_value(each) for each in values]
            return value if all(map(is_, inner, values)) else dict(zip(value, inner, strict=True))
        changed = {}
        for name in _list_init_fields(type(value)):  # type: ignore[arg-type]  # types are hashable
            held = getattr(value, name)
            masked = self.mask_value(held)
            if masked is not held:
                changed[name] = masked
        return replace(value, **changed) if changed else value


@cache
def _list_init_fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass; none of any other type."""
    return tuple(field.name for field in fields(kind) if field.init) if is_dataclass(kind) else ()
