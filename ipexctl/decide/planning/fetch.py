"""What is to come from a host, decided from what it says is there and from what is here already."""

import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ipexctl.decide.planning.ignore import Ignored
from ipexctl.decide.planning.sync import PATH_LIMIT, parse_status
from ipexctl.model.json_values import Record
from ipexctl.model.text import fold_names, format_size, group_pairs, join_names, pluralize, printable
from ipexctl.protocol.paths import MANIFEST, PART

_NAME_LIMIT = 255  # bytes of a file's name on every file system that matters
_DIRECTORY_COST = 256  # bytes that a directory takes here, beside its path
_DIRECTORIES_LIMIT = 256 << 20  # the same of all directories of a listing, with their paths
_NAMED_LIMIT = 1000  # files that must not be made here and are named; of others the reason alone is kept
_LATEST = 1 << 33  # seconds since 1970: the year 2242; file systems here know no time much later


class RemoteFile(Record):
    """One file of a host: ``name`` as the host says it, ``local`` the path here, below the host's directory."""

    name: str
    local: str
    size: int
    mtime: int
    executable: bool = False


class Listing(Record):
    """What a host has of what was asked for, or (`plan_fetch`) shall send of it. ``matched`` are the numbers of the
    patterns that matched."""

    path: str
    items: tuple[RemoteFile, ...] = ()
    matched: frozenset[int] = frozenset()
    links: tuple[str, ...] = ()  # below a directory: not followed, not fetched
    refused: tuple[str, ...] = ()  # names that must not be made here, with the reason
    unchanged: int = 0  # files that are here already

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def summary(self) -> str:
        """For the screen: ``3 files, 34 MiB``."""
        if self.items:
            return f"{pluralize(len(self.items), 'file')}, {format_size(self.size)}"
        if self.unchanged:
            return f"nothing to do, {pluralize(self.unchanged, 'file')} the same"
        return "nothing there"


def anchor_pattern(pattern: str) -> str:
    """Returns a pattern as the host's script takes it: absolute, below ``~/``, or beginning with ``./``."""
    return pattern if pattern.startswith(("/", "~/", "./")) else f"./{pattern}"


def parse_listing(data: bytes, ignored: Ignored = lambda *_: False, *, folds: bool = False) -> Listing:
    """Returns what `act.transfer.receive.list_files` brought. ``folds``: names here that differ only in case are one
    file. Raises `ValueError` if it is malformed."""
    path, *records = data.split(b"\0")
    if not records or records.pop() or len(records) % 2:
        raise ValueError("a list of files was cut")
    items: dict[str, RemoteFile] = {}
    matched: set[int] = set()
    links: list[str] = []
    refused: list[str] = []

    def refuse(name: str, why: str) -> None:
        refused.append(f"{printable(name, 300)}: {why}" if len(refused) < _NAMED_LIMIT else why)

    lies_in_left_out = _compile_directory_test(ignored)
    for words, raw in zip(records[::2], records[1::2], strict=True):
        pattern, _, status = words.partition(b" ")
        kind, mode, size, mtime = parse_status(status)
        matched.add(int(pattern[:9]))
        name = os.fsdecode(raw)
        if len(raw) > PATH_LIMIT:
            if kind == "f":
                refuse(name, "its path is too long")
            continue
        parts = [part for part in name.split("/") if part not in ("", ".")]
        local = "/".join(parts)
        internal = local == MANIFEST or any(part.startswith(PART) for part in parts)
        left_out = ignored(local, kind == "d") or lies_in_left_out(posixpath.dirname(local))
        if not parts or internal or left_out:
            continue
        if kind == "l":
            links.append(local)
        elif kind == "f" and (why := _find_path_error(parts)):
            refuse(name, why)
        elif kind == "f":
            items.setdefault(local, RemoteFile(name, local, size, min(max(0, mtime), _LATEST), bool(mode & 0o111)))
    clashing = _find_case_clashes(items) if folds else {}
    for local, first in clashing.items():
        same = "here it would be the same file as "
        refuse(local, same + (printable(first, 300) if len(refused) < _NAMED_LIMIT else "another"))
    wanted = tuple(items[local] for local in sorted(items) if local not in clashing)
    return Listing(os.fsdecode(path), wanted, frozenset(matched), tuple(links), tuple(refused))


def _compile_directory_test(ignored: Ignored) -> Callable[[str], bool]:
    """Returns the test whether a directory is left out, or one above it. It looks at each directory once, and raises
    `ValueError` at more of them than a listing can have."""
    known, size = {"": False}, 0

    def lies_in_left_out(directory: str) -> bool:
        nonlocal size
        unknown = []
        while directory not in known:
            unknown.append(directory)
            directory = posixpath.dirname(directory)
        size += sum(len(each) + _DIRECTORY_COST for each in unknown)
        if size > _DIRECTORIES_LIMIT:
            raise ValueError("more directories than can be looked at")
        left_out = known[directory]
        for each in reversed(unknown):
            left_out = known[each] = left_out or bool(ignored(each, True))
        return left_out

    return lies_in_left_out


def _find_path_error(parts: Sequence[str]) -> str:
    if ".." in parts:
        return "leads out of the destination"
    return "its name is too long" if any(len(os.fsencode(part)) > _NAME_LIMIT for part in parts) else ""


def _find_case_clashes(names: Iterable[str]) -> dict[str, str]:
    """Of names that a file system which folds case takes for one: all but the first, and that one."""
    first: dict[str, str] = {}
    clashes: dict[str, str] = {}
    for name in sorted(names):
        folded = unicodedata.normalize("NFC", name).casefold()
        if folded in first:
            clashes[name] = first[folded]
        first.setdefault(folded, name)
    return clashes


def plan_fetch(listing: Listing, local_file: Callable[[str], tuple[int, int] | None]) -> Listing:
    """The files that are missing here or differ; ``local_file`` gives the size and mtime (seconds) of one, or None."""
    items = tuple(item for item in listing.items if local_file(item.local) != (item.size, item.mtime))
    return replace(listing, items=items, unchanged=len(listing.items) - len(items))


def format_plans(plans: Mapping[str, Listing], into: str) -> str:
    """Returns what comes from where, hosts with the same files together. The dry run prints it."""
    works = (((p.path, p.items, p.summary()), name) for name, p in plans.items())
    lines: list[str] = []
    for (path, items, summary), names in group_pairs(works).items():
        hosts = printable(fold_names(names), 400)
        lines.append(f"{hosts}: {printable(path, 200)} → {printable(into, 200)}/{hosts}")
        lines += [f"  get {printable(item.local, 400)} ({format_size(item.size)})" for item in items]
        if not items:
            lines.append(f"  {summary}")
    return "\n".join(lines)


def format_names(names: Sequence[str]) -> str:
    """Returns a few names, for a message."""
    return join_names([printable(name, 200) for name in names], 20)
