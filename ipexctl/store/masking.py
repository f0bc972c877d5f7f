"""Secrets in what leaves ipexctl: one place through which screens, records, logs and errors pass.

A rank's own file of a saved run (mode 0600) keeps what the rank wrote; what is shown and reported of it is masked, also
by later commands: the record has salted hashes of the secrets that were declared (`SECRETS`)."""

import html
import json
import re
import secrets
import shlex
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache
from hashlib import blake2b
from operator import is_
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from ipexctl.model import events as e
from ipexctl.model.facts import Facts
from ipexctl.model.json_values import Record, parse_json, to_json
from ipexctl.model.secrets import (
    MASK,
    ends_in_key,
    find_beginning,
    find_inner_values,
    find_named_values,
    find_passwords,
    looks_secret,
    mask_forms,
    mask_names,
)
from ipexctl.model.text import group_pairs
from ipexctl.store.private_files import open_regular_file

SECRETS = "secrets.json"  # of a record
_SHORT_TEXT, _CACHED_TEXTS = 200, 10_000  # characters of a text that is masked once only, and how many such texts
_MIN_LENGTH = 6  # characters of a value: shorter ones are words that stand elsewhere, too
_HELD_BACK_LIMIT = 1 << 12  # bytes that are held back as the beginning of a secret
_KEPT_BYTES = 1 << 22  # of a record's file of hashes: those of thousands of variables
_KEPT_COST, _KEPT_LIMIT = 512, 1024  # of one hash, in bytes that are hashed; and the most of these for a byte of text
_CUT = "…".encode()  # ends what a message has of a longer text
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")  # may stand anywhere in what a rank prints
_KEY = b"-----BEGIN PRIVATE KEY-----\n"


class KeptValue(Record):
    """A value that is known by its hash: its first two characters, by which it is found, and its bytes."""

    head: str
    length: int
    hash: str


class KeptSecrets(Record):
    """The hashes of values, with one salt."""

    salt: str
    values: tuple[KeptValue, ...]

    def compute_hash(self, data: bytes) -> str:
        return blake2b(data, digest_size=12, key=self.salt.encode()[:64]).hexdigest()


def list_forms(value: str) -> set[bytes]:
    """Returns a value and what becomes of it in JSON, also within JSON, ``repr``, ``ascii``, a shell's quotes, HTML, a
    URL, base64 and base 16; and each line of it and of its base64."""
    raw = value.encode("utf-8", "surrogateescape")
    quoted = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    quoted |= {re.sub("%..", lambda code: code[0].lower(), text) for text in quoted}
    inner = {json.dumps(value, ensure_ascii=wide)[1:-1] for wide in (False, True)}
    quoted |= {*inner, *(json.dumps(text)[1:-1] for text in inner), *(text.replace("/", r"\/") for text in inner)}
    signs = "[<>&]", "[<>&']"  # which Go and Jinja escape in JSON, too
    quoted |= {re.sub(each, lambda sign: f"\\u{ord(sign[0]):04x}", text) for each in signs for text in inner}
    marked = html.escape(value)
    quoted |= {marked, html.escape(value, quote=False), marked.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")}
    both = f'{value}"'  # in a text with both quotes another one is escaped
    texts = {repr(value)[1:-1], repr(both)[1:-2], repr(raw)[2:-1], repr(both.encode(errors="surrogateescape"))[2:-2],
             ascii(value)[1:-1], ascii(both)[1:-2], shlex.quote(value).strip("'"), raw.hex(), raw.hex().upper(),
             *quoted}  # fmt: skip
    lines = (*raw.splitlines(), *encodebytes(raw).splitlines())
    forms = {raw, *lines, *(text.encode("utf-8", "surrogateescape") for text in texts)}
    for encode in (b64encode, urlsafe_b64encode):
        forms |= {encode(raw), encode(raw).rstrip(b"=")}
        for before in range(3):  # bytes of something else, and the characters that are the value's alone
            coded = encode(bytes(before) + raw)
            forms.add(coded[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6])
    return {form for form in forms if len(form) >= _MIN_LENGTH}


class Masker:
    """Masks what it is given; knows the values of secret variables of ``environ``, those that ``words``, a command
    line, names, and what is added."""

    def __init__(self, environ: Mapping[str, str], words: Sequence[str] = ()) -> None:
        self._values: tuple[bytes, ...] = ()  # in all forms, longest first
        self._declared: set[bytes] = set()
        self._records = set[Path]()  # of before
        self._kept: list[KeptSecrets] = []  # of these
        self._heads: dict[bytes, list[tuple[KeptValue, KeptSecrets]]] = {}  # how their values begin, the shortest first
        self._head = re.compile(b"")  # one of these, or its first byte at the end
        self._kept_room = _KEPT_LIMIT * _HELD_BACK_LIMIT  # bytes that may be hashed for them
        self.changes = 0  # of what a record keeps
        self._add_forms(value for name, value in environ.items() if looks_secret(name))
        self._add_forms(password for value in environ.values() for password in find_passwords(value))
        self.add_words(words)

    def _add_forms(self, values: Iterable[str]) -> set[bytes]:
        forms = {form for value in values if len(value) >= _MIN_LENGTH for form in list_forms(value)}
        self._values = tuple(sorted({*self._values, *forms}, key=len, reverse=True))
        self._mask_short_text = lru_cache(_CACHED_TEXTS)(self._mask_text)  # hundreds of hosts have the same ones
        return forms

    def add_secrets(self, values: Iterable[str]) -> None:
        """From now on these are secrets, too, in every form of them."""
        before = len(self._declared)
        self._declared |= self._add_forms(values)
        self.changes += len(self._declared) > before

    def add_words(self, words: Sequence[str]) -> None:
        """From now on those values of a command line are secrets that follow names which look secret, and passwords in
        URLs. Numbers are none: they stand elsewhere, too."""
        within = (value for word in words for find in (find_inner_values, find_passwords) for value in find(word))
        self.add_secrets(value for value in (*find_named_values(words), *within) if not value.isdigit())

    def find_declared(self, text: str) -> list[str]:
        """Returns those declared values that stand in a text, the longest first."""
        data = text.encode("utf-8", "surrogatepass")
        found = sorted((form for form in self._declared if form in data), key=len, reverse=True)
        return [form.decode("utf-8", "surrogatepass") for form in found]

    def add_kept(self, directory: Path) -> None:
        """From now on what a record has hashes of is secret, too. A file that is damaged or not there adds nothing, nor
        does a record that was added before."""
        if directory in self._records:
            return
        with suppress(OSError, ValueError):
            with open_regular_file(directory / SECRETS) as file:
                every = parse_json(tuple[KeptSecrets, ...], file.read(_KEPT_BYTES))
            self._records.add(directory)
            for kept in every:
                self._kept.append(kept)
                self.changes += 1
                for value in kept.values:
                    if len(head := value.head.encode("latin-1")) == 2 and value.length >= _MIN_LENGTH:
                        self._heads.setdefault(head, []).append((value, kept))
            for values in self._heads.values():
                values.sort(key=lambda pair: pair[0].length)
            seconds = group_pairs((re.escape(head[:1]), head[1:]) for head in self._heads)
            branches = [rb"%s(?:[%s]|\Z)" % (first, re.escape(b"".join(rest))) for first, rest in seconds.items()]
            self._head = re.compile(b"|".join(branches))
            self._add_forms(())

    def dump_kept(self) -> bytes:
        """Returns what a record keeps: hashes of all values that were declared, or were kept by another record."""
        own = KeptSecrets(secrets.token_hex(16), ())
        values = (KeptValue(form[:2].decode("latin-1"), len(form), own.compute_hash(form)) for form in self._declared)
        own = replace(own, values=tuple(sorted(values, key=lambda value: value.hash)))
        return json.dumps(to_json((own, *self._kept))).encode()

    def mask_bytes(self, data: bytes, *, named: bool = False) -> bytes:
        """Returns text without secrets; with ``named``, also without what follows names that look secret: what no rank
        prints for anything else, but words like tokens=2048 are the business of training scripts."""
        masked = self._mask_plain(data, named)
        if b"\x1b[" in masked and (plain := _COLOUR.sub(b"", masked)) != self._mask_plain(plain, named):
            lines = ((line, _COLOUR.sub(b"", line)) for line in masked.splitlines(keepends=True))
            hidden = ((line, plain, self._mask_plain(plain, named)) for line, plain in lines)
            masked = b"".join(line if plain == shown else shown for line, plain, shown in hidden)
        return masked

    def _mask_plain(self, data: bytes, named: bool) -> bytes:
        for value in self._values:
            data = data.replace(value, MASK)
        data = self._mask_kept(data)
        return mask_names(mask_forms(data)) if named else mask_forms(data)

    def _mask_kept(self, data: bytes) -> bytes:
        """Text without the values of which there are hashes. Those of a stranger's record may be made to take for ever:
        nothing is left of a text with which they would."""
        self._kept_room += _KEPT_LIMIT * len(data)
        pieces, end = [], 0
        for at, values in self._find_heads(data):
            until = 0
            for value, kept in values:
                if at + value.length > len(data):
                    break
                self._kept_room -= value.length + _KEPT_COST
                if self._kept_room < 0:
                    return MASK
                if kept.compute_hash(data[at : at + value.length]) == value.hash:
                    until = at + value.length
            if until > end:
                if at >= end:
                    pieces += [data[end:at], MASK]
                end = until
        return b"".join([*pieces, data[end:]])

    def _find_heads(self, data: bytes, at: int = 0) -> Iterator[tuple[int, Sequence[tuple[KeptValue, KeptSecrets]]]]:
        """Yields where kept values may begin from ``at`` on, and these; none where only a first byte is there."""
        while self._heads and (match := self._head.search(data, at)):
            at = match.start() + 1
            yield match.start(), self._heads.get(match[0], ())

    def mask_text(self, text: str) -> str:
        """Returns text of ours without secrets."""
        masked = self._mask_short_text(text) if len(text) <= _SHORT_TEXT else self._mask_text(text)
        return text if masked == text else masked

    def _mask_text(self, text: str) -> str:
        masked = self.mask_bytes(text.encode("utf-8", "surrogatepass"), named=True)
        *cut, last = masked.split(_CUT)
        masked = _CUT.join([*map(self._mask_end, cut), last])
        return masked.decode("utf-8", "surrogatepass")

    def _mask_end(self, data: bytes) -> bytes:
        """Returns a text that was cut without the beginning of a value at its end."""
        for value in self._values:
            at = data.find(value[:_MIN_LENGTH], max(0, len(data) - len(value) + 1))
            if at >= 0 and value.startswith(data[at:]):
                return data[:at] + MASK
        return data

    def mask_words(self, words: Sequence[str]) -> list[str]:
        """Returns the words of a command line without secrets, however short they are."""
        found = zip(words, find_named_values(words), strict=True)
        return [self.mask_text(word[: len(word) - len(value)]) + MASK.decode() if value else self.mask_text(word)
                for word, value in found]  # fmt: skip

    def find_open_end(self, data: bytes) -> int:
        """Returns where the end of a text begins that may be the beginning of a secret."""
        end = min(find_beginning(data[-_HELD_BACK_LIMIT:]) + max(0, len(data) - _HELD_BACK_LIMIT), len(data))
        for value in self._values:
            at = max(0, len(data) - min(len(value), _HELD_BACK_LIMIT) + 1)
            while (at := data.find(value[:2], at)) >= 0 and not value.startswith(data[at:]):
                at += 1
            if at < 0 and data.endswith(value[:1]):
                at = len(data) - 1
            end = min(end, at) if at >= 0 else end
        for at, values in self._find_heads(data, max(0, len(data) - _HELD_BACK_LIMIT + 1)):
            if not values or at + values[-1][0].length > len(data):
                return min(end, at)
        return end

    def mask_value(self, value: Any) -> Any:
        """A record, or what one holds, without secrets: the value itself where nothing in it is masked."""
        if isinstance(value, str):
            return self.mask_text(value)
        if value is None or isinstance(value, int | float | Facts):
            return value  # facts as in `FactsRead`: each has hundreds of values
        if isinstance(value, bytes):
            return self.mask_bytes(value)
        if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
            words = all(type(each) is str for each in value)
            inner = self.mask_words(value) if words else [self.mask_value(each) for each in value]
            return value if all(map(is_, inner, value)) else type(value)(inner)
        if isinstance(value, Mapping):
            names, held = [self.mask_value(name) for name in value], [self.mask_value(each) for each in value.values()]
            unchanged = all(map(is_, names, value)) and all(map(is_, held, value.values()))
            return value if unchanged else dict(zip(names, held, strict=True))
        changed = {}
        for name in _list_init_fields(type(value)):  # type: ignore[arg-type]  # types are hashable
            held = getattr(value, name)
            masked = self.mask_value(held)
            if masked is not held:
                changed[name] = masked
        return replace(value, **changed) if changed else value


class StreamMasker:
    """Masks one stream, whose bytes come in pieces."""

    def __init__(self, masker: Masker, *, named: bool = False) -> None:
        self._masker, self._named = masker, named
        self._held, self._in_key = b"", False

    def feed(self, data: bytes, *, partial: bool) -> bytes:
        """Returns what may be shown now: of a ``partial`` line not the end that may be the beginning of a secret."""
        data = self._held + data
        end = self._masker.find_open_end(data) if partial else len(data)
        data, self._held = data[:end], data[end:]
        if not data:
            return b""
        data = _KEY + data if self._in_key else data
        masked = self._masker.mask_bytes(data, named=self._named)
        self._in_key = ends_in_key(data)
        return masked + b"\n" if data.endswith(b"\n") and not masked.endswith(b"\n") else masked


class EventMasker:
    """Masks the events of one run, or of one command, in their order."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._streams: dict[tuple[int, str], tuple[StreamMasker, e.Output]] = {}  # and the last event of each

    def mask_events(self, events: Iterable[e.Stamped]) -> Iterator[e.Stamped]:
        """Yields the events as they may be shown."""
        for stamped in events:
            for event in self.mask_event(stamped.event):
                yield stamped if event is stamped.event else e.Stamped(stamped.at, event)

    def mask_event(self, event: e.Event) -> Iterator[e.Event]:
        """The event as it may be shown. The end of a rank's output is held back while it may be part of a secret."""
        if isinstance(event, e.Output):
            key = (event.rank, event.stream)
            stream, _ = self._streams.get(key) or (StreamMasker(self._masker), event)
            self._streams[key] = (stream, event)
            if data := stream.feed(event.data, partial=event.partial):
                yield event if data == event.data else replace(event, data=data)
        elif isinstance(event, e.FactsRead):  # as the probe has redacted them
            yield event
        else:
            if isinstance(event, e.RunEnded | e.Ended):
                ended, self._streams = self._streams, {}
                for stream, last in ended.values():
                    if data := stream.feed(b"", partial=False):
                        yield replace(last, data=data)
            yield self._masker.mask_value(event)


@cache
def _list_init_fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass; none of any other type."""
    return tuple(field.name for field in fields(kind) if field.init) if is_dataclass(kind) else ()
