"""What is to come from a host, decided from what it says is there and from what is here already."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ipexctl.decide.planning.ignore import Ignored
from ipexctl.decide.planning.sync import MARK, PART, amount, format_bytes
from ipexctl.model.text import printable

_SHOWN = 20
_LONGEST = 255  # bytes of a file's name on every file system that matters
_BIG = 64 << 10  # as for sync: below this rsync saves nothing …
_WORTH = 1 << 20  # … and below this it is not worth its round trips


@dataclass(frozen=True, slots=True)
class Item:
    """One file of a host: ``name`` as the host says it, ``local`` the path here, below the host's directory."""

    name: str
    local: str
    size: int
    mtime: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """What a host has of what was asked for. ``met`` are the numbers of the patterns that met something."""

    path: str
    items: tuple[Item, ...] = ()
    met: frozenset[int] = frozenset()
    links: tuple[str, ...] = ()  # below a directory: not followed, not carried
    refused: tuple[str, ...] = ()  # names that must not be made here, with the reason
    rsync: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one host shall send. ``merged`` are those of ``items`` that come by rsync."""

    path: str
    items: tuple[Item, ...] = ()
    same: int = 0
    merged: tuple[Item, ...] = field(default=())

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def said(self) -> str:
        """For the screen: ``3 files, 34 MB``."""
        if self.items:
            return f"{amount(len(self.items))}, {format_bytes(self.size)}"
        return f"nothing to do, {amount(self.same)} the same" if self.same else "nothing there"


def unfit(pattern: str) -> str:
    """Why a pattern is refused before anything is contacted; "" for a good one."""
    if not pattern.strip():
        return "is empty"
    if any(char in pattern for char in "\0\n"):
        return "has a control character in it"
    if ".." in pattern.split("/"):
        return "has '..' in it"
    if "$" in pattern or (pattern.startswith("~") and not pattern.startswith("~/")):
        return "has something unexpanded in it"
    return ""


def asked(pattern: str) -> str:
    """A pattern as the host's script takes it: absolute, below ``~/``, or beginning with ``./``."""
    return pattern if pattern.startswith(("/", "~/", "./")) else f"./{pattern}"


def read_listing(data: bytes, left_out: Ignored, *, folds: bool = False) -> Listing:
    """What `act.receive.look` brought. ``folds``: names here that differ only in case are one file.

    Raises `ValueError` when it makes no sense.
    """
    path, tool, *records = data.split(b"\0")
    if not records or records.pop() or len(records) % 2:
        raise ValueError("a list of files was cut")
    items: dict[str, Item] = {}
    met: set[int] = set()
    links: list[str] = []
    refused: list[str] = []
    for words, raw in zip(records[::2], records[1::2], strict=True):
        pattern, kind, mode, size, mtime = words.decode("ascii").split()
        met.add(int(pattern))
        name = os.fsdecode(raw)
        parts = [part for part in name.split("/") if part not in ("", ".")]
        local = "/".join(parts)
        ours = local == MARK or any(part.startswith(PART) for part in parts)
        if not parts or ours or _hidden(parts, kind == "d", left_out):
            continue
        if kind == "l":
            links.append(local)
        elif kind == "f" and (why := _impossible(parts)):
            refused.append(f"{printable(name, 300)}: {why}")
        elif kind == "f":
            items.setdefault(local, Item(name, local, int(size), max(0, int(mtime)), bool(int(mode, 8) & 0o111)))
    clashing = _clashes(items) if folds else {}
    refused += [f"{printable(local, 300)}: here it would be the same file as {printable(first, 300)}"
                for local, first in clashing.items()]  # fmt: skip
    kept = tuple(items[local] for local in sorted(items) if local not in clashing)
    return Listing(os.fsdecode(path), kept, frozenset(met), tuple(links), tuple(refused), tool == b"rsync")


def _hidden(parts: Sequence[str], directory: bool, left_out: Ignored) -> bool:
    """Whether a path, or a directory it lies in, is left out."""
    return any(
        left_out("/".join(parts[:end]), directory if end == len(parts) else True) for end in range(1, len(parts) + 1)
    )


def _impossible(parts: Sequence[str]) -> str:
    if ".." in parts:
        return "leads out of the destination"
    if any(len(os.fsencode(part)) > _LONGEST for part in parts):
        return "its name is too long"
    return ""


def _clashes(names: Iterable[str]) -> dict[str, str]:
    """Of names that a file system which folds case takes for one: all but the first, and that one."""
    first: dict[str, str] = {}
    found: dict[str, str] = {}
    for name in sorted(names):
        same = unicodedata.normalize("NFC", name).casefold()
        if same in first:
            found[name] = first[same]
        first.setdefault(same, name)
    return found


def wanted(listing: Listing, have: Callable[[str], tuple[int, int] | None]) -> Wanted:
    """The files that are not here, or not the same: ``have`` tells size and whole seconds of change of what is."""
    items = tuple(item for item in listing.items if have(item.local) != (item.size, item.mtime))
    return Wanted(listing.path, items, len(listing.items) - len(items))


def by_rsync(found: Wanted, have: Callable[[str], tuple[int, int] | None], way: str, *, both: bool) -> Wanted:
    """The same with what comes by rsync: all, or big files of which an old version is here, where that saves enough.

    ``both`` sides have rsync. ``way`` is as for `Sync.transfer`.
    """
    if way == "tar" or not both:
        return found
    if way == "rsync":
        return Wanted(found.path, found.items, found.same, found.items)
    saving = {item: min(item.size, there[0]) for item in found.items if (there := have(item.local)) is not None}
    worth = tuple(item for item in found.items if saving.get(item, 0) >= _BIG)
    return Wanted(found.path, found.items, found.same, worth if sum(map(saving.__getitem__, worth)) >= _WORTH else ())


def text(every: Mapping[str, Wanted], into: str) -> str:
    """The plan: what comes from where. The dry run prints it."""
    lines: list[str] = []
    for name, found in every.items():
        lines.append(f"{name}: {printable(found.path, 200)} → {printable(into, 200)}/{name}")
        by = set(found.merged)
        lines += [
            f"  get {printable(item.local, 400)} ({format_bytes(item.size)}){' by rsync' if item in by else ''}"
            for item in found.items
        ]
        if not found.items:
            lines.append(f"  {found.said()}")
    return "\n".join(lines)


def some(names: Sequence[str]) -> str:
    """A few names, for a message."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(printable(name, 200) for name in names[:_SHOWN]) + more
