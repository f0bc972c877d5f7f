"""What has to be sent to a host, decided from the source and from what the host said is there."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ipexctl.decide.planning.ignore import Ignored
from ipexctl.model.hosts import Host
from ipexctl.model.text import printable
from ipexctl.model.trees import Entry, Tree

MARK = ".ipexctl-sync.json"
PART = ".ipexctl-part-"
_VERSION = 1
_SYSTEM = frozenset(
    (
        "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "media", "mnt", "opt",
        "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var",
    )
)  # fmt: skip
_SHOWN = 20  # obstacles named in one failure

Way = Literal["auto", "tar", "rsync"]
# rsync costs some round trips and two processes, about 0.1 s: it pays where it can save at least as many bytes as a
# link of 100 Mbit/s carries in that time. A file below a few blocks of rsync saves nothing.
_WORTH = 1 << 20
_BIG = 64 << 10


@dataclass(frozen=True, slots=True)
class There:
    """One thing in the destination."""

    kind: str  # f d l, or another letter of find
    mode: int
    size: int
    mtime: int
    target: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A destination as its host describes it. ``mark`` is what our last sync left: None without one."""

    path: str
    node: str
    mark: Mapping[str, Any] | None
    entries: Mapping[str, There]
    parts: tuple[str, ...] = ()  # private directories of pushes that were interrupted, or go on right now
    rsync: bool = False  # the host has one


@dataclass(frozen=True, slots=True)
class Delta:
    """What one host needs. ``blocked`` says why nothing may be sent there."""

    path: str
    send: tuple[Entry, ...] = ()
    doomed: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    fresh: bool = field(default=False)  # no usable mark yet: one is written even if nothing is sent
    merged: tuple[Entry, ...] = ()  # those of ``send`` that go by rsync
    before: str = ""  # another directory, whose files are in the place now

    @property
    def files(self) -> int:
        return sum(entry.kind != "d" for entry in self.send)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.send if entry.kind == "f")

    @property
    def nothing(self) -> bool:
        return not (self.send or self.doomed or self.fresh)

    def said(self) -> str:
        """For the screen: ``12 files, 34 kB``."""
        words = []
        if self.send:
            words.append(f"{amount(self.files)}, {format_bytes(self.size)}" if self.files else "directories")
        if self.doomed:
            words.append(f"{len(self.doomed)} removed")
        return ", ".join(words) or "nothing to do"


def destination(task_workdir: str | None, host: Host, name: str) -> str:
    """Where the source goes on a host: absolute, or relative to the home directory there."""
    where = host.vars.get("workdir") or task_workdir
    if where is None:
        return f"ipexctl/{name}"
    return where[2:] if where.startswith("~/") else where


def unfit(where: str) -> str:
    """Why a destination is refused before anything is contacted; "" for a good one."""
    if not where.strip():
        return "is empty"
    if "\0" in where or "\n" in where:
        return "has a control character in it"
    if where.startswith(("~", "$")) or "$" in where:
        return "has something unexpanded in it"
    if ".." in where.split("/"):
        return "has '..' in it"
    if posixpath.normpath(where) in {"/", ".", "//"}:
        return "is not a directory of its own"
    if posixpath.normpath(where).strip("/") in _SYSTEM:
        return "is a directory of the system"
    return ""


def read_state(data: bytes) -> State:
    """What `act.transfer.look` brought. Raises `ValueError` when it makes no sense."""
    path, node, marked, mark, *records = data.split(b"\0")
    if not records or records.pop() or len(records) % 3:
        raise ValueError("a list of files was cut")
    entries: dict[str, There] = {}
    parts: list[str] = []
    rsync = False
    for words, name, target in zip(records[::3], records[1::3], records[2::3], strict=True):
        kind, mode, size, mtime = words.decode("ascii").split()
        if kind == "p" and mode == "0":
            parts.append(os.fsdecode(name))
        elif kind == "t":
            rsync = rsync or name == b"rsync"
        else:
            there = There(kind, int(mode, 8), int(size), int(mtime), os.fsdecode(target))
            entries[os.fsdecode(name)] = there
    known = _mark(mark) if marked else None
    return State(os.fsdecode(path), node.decode("utf-8", "replace"), known, entries, tuple(parts), rsync)


def _mark(data: bytes) -> Mapping[str, Any] | None:
    try:
        mark = json.loads(data)
    except (ValueError, RecursionError):
        return None
    good = isinstance(mark, dict) and mark.get("ipexctl") == _VERSION and isinstance(mark.get("files"), dict)
    return mark if good else None


def mark_of(tree: Tree) -> bytes:
    """What a sync leaves in the destination: what was sent, so that the next one can tell what has changed."""
    files = {entry.path: [*entry.stamp[:3], entry.executable] for entry in tree.entries if entry.kind == "f"}
    links = [entry.path for entry in tree.entries if entry.kind == "l"]
    return json.dumps(
        {"ipexctl": _VERSION, "from": tree.origin, "files": files, "links": links}, separators=(",", ":")
    ).encode()


def delta(tree: Tree, state: State, *, delete: bool, kept: Ignored, stale: tuple[str, ...] = ()) -> Delta:
    """What must be sent, and with ``delete`` what goes: never what ``kept`` says is left out of syncs.

    ``stale`` are those of ``state.parts`` that nobody writes any more.
    """
    mark = state.mark or {}
    ours = mark.get("files", {}) if mark.get("from") == tree.origin else {}
    links = set(mark.get("links", ()))
    blocked: list[str] = []
    send: list[Entry] = []
    wanted = {entry.path for entry in tree.entries}
    for entry in tree.entries:
        there = state.entries.get(entry.path)
        if there is None:
            send.append(entry)
        elif entry.kind == "d":
            if there.kind != "d":
                blocked.append(_is(state, entry.path, there, "a directory"))
        elif there.kind == "d":
            if not delete:
                blocked.append(_is(state, entry.path, there, "a file"))
            else:
                send.append(entry)
        elif there.kind == "l" and entry.path not in links:
            blocked.append(
                f"{printable(state.path)}/{printable(entry.path)} is a symbolic link that ipexctl did not make"
            )
        elif entry.kind == "l":
            if there.kind != "l" or there.target != entry.target:
                send.append(entry)
        elif (
            there.kind != "f"
            or ours.get(entry.path) != [*entry.stamp[:3], entry.executable]
            or (there.size, there.mtime, bool(there.mode & 0o100)) != (entry.size, entry.mtime, entry.executable)
        ):
            send.append(entry)
    doomed: tuple[str, ...] = ()
    if delete and not blocked:
        if state.mark is None and any(path != MARK for path in state.entries):
            blocked.append(
                f"{printable(state.path)} has files and no mark of an earlier sync: nothing is deleted there"
            )
        else:
            doomed = _doomed(state, wanted, tree, kept)
        if doomed and state.mark is not None and mark.get("from") != tree.origin:
            blocked.append(
                f"{printable(state.path)} was filled from {_from(mark)}: nothing is deleted there before one sync "
                "without --delete has made it this directory's"
            )
    if blocked:
        more = len(blocked) - _SHOWN
        return Delta(state.path, blocked=(*blocked[:_SHOWN], *([f"and {more} more"] if more > 0 else [])))
    return Delta(
        state.path,
        _with_parents(tree, send, state),
        doomed,
        stale,
        fresh=state.mark is None or mark.get("from") != tree.origin,
        before="" if state.mark is None or mark.get("from") == tree.origin else _from(mark),
    )


def _from(mark: Mapping[str, Any]) -> str:
    return printable(str(mark.get("from", "elsewhere")), 200)


def by_rsync(found: Delta, state: State, way: Way, *, here: bool, near: bool) -> Delta:
    """The same with what goes by rsync: big files whose old version is there, where that saves enough.

    ``here`` is whether this machine has rsync; a host that is this machine itself (``near``) saves nothing by it.
    """
    files = [entry for entry in found.send if entry.kind == "f"]
    if way == "tar" or not files:
        return found
    if way == "rsync":
        if state.rsync:
            return replace(found, merged=tuple(files))
        return Delta(found.path, blocked=(*found.blocked, "there is no rsync, or no sha256sum, on the host"))
    if near or not (here and state.rsync):
        return found
    saving = {entry: _saving(entry, state.entries.get(entry.path)) for entry in files}
    worth = tuple(entry for entry in files if saving[entry] >= _BIG)
    return replace(found, merged=worth) if sum(saving[entry] for entry in worth) >= _WORTH else found


def _saving(entry: Entry, there: There | None) -> int:
    """Bytes that need not travel, at best."""
    return min(entry.size, there.size) if there is not None and there.kind == "f" else 0


def _is(state: State, path: str, there: There, here: str) -> str:
    kinds = {"d": "a directory", "f": "a file", "l": "a symbolic link"}
    return f"{printable(state.path)}/{printable(path)} is {kinds.get(there.kind, 'something else')} there, {here} here"


def _with_parents(tree: Tree, send: list[Entry], state: State) -> tuple[Entry, ...]:
    """The directories of what is sent come along, because it is unpacked beside them first."""
    needed = {entry.path for entry in send}
    for entry in send:
        parent = posixpath.dirname(entry.path)
        while parent and parent not in needed:
            needed.add(parent)
            parent = posixpath.dirname(parent)
    return tuple(entry for entry in tree.entries if entry.path in needed)


def _doomed(state: State, wanted: set[str], tree: Tree, kept: Ignored) -> tuple[str, ...]:
    """The topmost things to remove: a directory only if everything in it goes."""
    safe = {MARK}
    files = {entry.path for entry in tree.entries if entry.kind != "d"}
    for path in sorted(state.entries):
        there = state.entries[path]
        under_kept = any(parent in safe and parent not in wanted for parent in _parents(path))
        wrong_kind = there.kind == "d" and path in files
        if under_kept or (path in wanted and not wrong_kind) or kept(path, there.kind == "d"):
            safe.add(path)
    holding = {parent for path in safe for parent in _parents(path)}
    gone = {path for path in state.entries if path not in safe and path not in holding}
    return tuple(sorted(path for path in gone if not any(parent in gone for parent in _parents(path))))


def _parents(path: str) -> list[str]:
    found = []
    while path := posixpath.dirname(path):
        found.append(path)
    return found


def stale_parts(state: State, me: str, alive: frozenset[int]) -> tuple[str, ...]:
    """Those private directories whose writer is gone. Names are PART, controller, its process, the host's process."""
    found = []
    for name in state.parts:
        said = re.fullmatch(re.escape(PART) + r"([0-9a-f]+)-(\d+)-(\d+)", name)
        if said and said[1] == me and int(said[2]) not in alive:
            found.append(name)
    return tuple(found)


def text(deltas: Mapping[str, Delta], source: str) -> str:
    """The plan: what is sent where, hosts with the same work together. The dry run prints it."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, delta in deltas.items():
        groups.setdefault((delta.path, delta.send, delta.merged, delta.doomed, delta.blocked), []).append(name)
    lines: list[str] = []
    for (path, send, merged, doomed, blocked), names in groups.items():
        lines.append(f"{', '.join(names)}: {printable(source, 200)} → {printable(path, 200)}")
        lines += [f"  refused: {why}" for why in blocked]
        parts = set(merged)
        lines += [
            f"  send {printable(entry.path, 400)}{_what(entry)}{' by rsync' if entry in parts else ''}"
            for entry in send
            if entry.kind != "d"
        ]
        lines += [f"  remove {printable(name, 400)}" for name in doomed]
        if not (send or doomed or blocked):
            lines.append("  nothing to do")
    return "\n".join(lines)


def _what(entry: Entry) -> str:
    return f" → {printable(entry.target, 200)}" if entry.kind == "l" else f" ({format_bytes(entry.size)})"


def amount(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"


def format_bytes(size: int) -> str:
    """A size for people, in steps of 1000."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:.3g} {unit}"
    return f"{size} B"
