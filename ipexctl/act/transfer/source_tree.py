"""The source on this machine: read once, packed once for all hosts, and checked to be still the same at the end."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipexctl.act.transfer.send import tar_directory, tar_file, tar_header
from ipexctl.model.errors import UsageError
from ipexctl.model.text import printable
from ipexctl.model.trees import Entry, Tree

_KEPT = 32 << 20  # bytes of small files held in memory for all hosts
_SMALL = 1 << 20  # bytes up to which a file is small
_CHUNK = 1 << 20
_SHOWN = 20  # paths named in one refusal


class SourceChangedError(Exception):
    """The source changed while it was sent; ``paths`` says where."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(", ".join(paths))
        self.paths = tuple(paths)


def read_tree(root: Path, ignored: Callable[[str, bool], bool]) -> Tree:
    """Everything below ``root`` that is not ignored. Nothing is followed and no file is opened.

    Raises `UsageError` with all links that leave the tree and all directories that cannot be read.
    """
    entries: list[Entry] = []
    skipped: list[str] = []
    reasons: list[str] = []
    top = os.path.realpath(root)

    def walk(directory: str, prefix: str) -> None:
        try:
            with os.scandir(directory) as scanned:
                items = sorted(scanned, key=lambda item: item.name)
        except OSError as error:
            reasons.append(f"{printable(prefix or '.')}: {(error.strerror or 'cannot be read').lower()}")
            return
        for item in items:
            path = prefix + item.name
            is_directory = item.is_dir(follow_symlinks=False)
            if ignored(path, is_directory):
                continue
            try:
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # gone since the directory was read: not part of the source
            if is_directory:
                entries.append(Entry(path, "d"))
                walk(item.path, path + "/")
            elif item.is_symlink():
                target = os.readlink(item.path)  # noqa: PTH115
                if _leaves_tree(top, path, target):
                    reasons.append(f"{printable(path)} → {printable(target)}")
                entries.append(Entry(path, "l", target=target))
            elif stat.S_ISREG(status.st_mode):
                if not os.access(item.path, os.R_OK):
                    reasons.append(f"{printable(path)}: permission denied")
                executable = bool(status.st_mode & 0o111)
                entries.append(Entry(path, "f", status.st_size, _stamp(status), executable))
            else:
                skipped.append(path)

    walk(str(root), "")
    if reasons:
        more = [f"and {len(reasons) - _SHOWN} more"] if len(reasons) > _SHOWN else []
        raise UsageError(
            f"{printable(str(root), 200)} has links that leave it, or files that cannot be read",
            reasons=[*reasons[:_SHOWN], *more],
            hint="leave them out with --exclude",
        )
    return Tree(root, f"{socket.gethostname()}:{top}", tuple(entries), tuple(skipped))


def find_changed(tree: Tree, entries: Sequence[Entry]) -> list[str]:
    """Those of the entries that are no longer as they were read."""
    found: list[str] = []
    for entry in entries:
        place = os.path.join(tree.root, entry.path)  # noqa: PTH118 - names that are not UTF-8
        try:
            now = os.lstat(place)
            same = (
                stat.S_ISDIR(now.st_mode)
                if entry.kind == "d"
                else os.readlink(place) == entry.target  # noqa: PTH115
                if entry.kind == "l"
                else stat.S_ISREG(now.st_mode) and _stamp(now) == entry.stamp
            )
        except OSError:
            same = False
        if not same:
            found.append(entry.path)
    return found


@dataclass(frozen=True, slots=True)
class _Big:
    """A file that is read again for every host."""

    entry: Entry


class Packer:
    """Makes the tar stream of a set of entries: small files are read once for all hosts that need the same set."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._packed_trees: dict[tuple[Entry, ...], list[bytes | _Big]] = {}
        self._sums: dict[Entry, bytes] = {}
        self._lock = threading.Lock()

    def pack(
        self, entries: tuple[Entry, ...], *, manifest: bytes, to_delete: Sequence[str], by_rsync: Sequence[Entry] = ()
    ) -> Iterator[bytes]:
        """The tar stream in pieces, for `send.install_tree`. Raises `SourceChangedError` before its end, so that
        nothing takes effect.

        ``by_rsync`` are files that the host has already, by other means: their hashes go along.
        """
        with self._lock:
            if entries not in self._packed_trees:
                self._packed_trees[entries] = list(self._packed(entries))
            pieces = self._packed_trees[entries]
        for piece in pieces:
            if isinstance(piece, bytes):
                yield piece
            else:
                yield from self._read(piece.entry)
        if by_rsync:
            yield tar_file("merged", _join_names([entry.path for entry in by_rsync]), 0o600)
            yield tar_file("sums", b"".join(map(self._sum, by_rsync)), 0o600)
        if to_delete:
            yield tar_file("doomed", _join_names(to_delete), 0o600)
        yield tar_file("mark", manifest, 0o600)
        if gone := find_changed(self._tree, (*entries, *by_rsync)):
            raise SourceChangedError(gone)

    def _sum(self, entry: Entry) -> bytes:
        """As sha256sum says it of its standard input."""
        with self._lock:
            if entry not in self._sums:
                digest = hashlib.sha256()
                for chunk in self._contents(entry):
                    digest.update(chunk)
                self._sums[entry] = digest.hexdigest().encode() + b"  -\n"
            return self._sums[entry]

    def _packed(self, entries: Sequence[Entry]) -> Iterator[bytes | _Big]:
        gathered = bytearray(tar_directory("tree"))
        held = 0
        for entry in entries:
            name = f"tree/{entry.path}"
            if entry.kind == "d":
                gathered += tar_directory(name)
            elif entry.kind == "l":
                gathered += tar_header(name, link=entry.target)
            else:
                mode = 0o700 if entry.executable else 0o600
                gathered += tar_header(name, size=entry.size, mode=mode, mtime=entry.mtime)
                if entry.size <= _SMALL and held + entry.size <= _KEPT:
                    held += entry.size
                    for chunk in self._read(entry):
                        gathered += chunk
                else:
                    yield bytes(gathered)
                    gathered.clear()
                    yield _Big(entry)
            if len(gathered) >= _CHUNK:
                yield bytes(gathered)
                gathered.clear()
        yield bytes(gathered)

    def _read(self, entry: Entry) -> Iterator[bytes]:
        """The contents, and the padding."""
        yield from self._contents(entry)
        yield bytes(-entry.size % 512)

    def _contents(self, entry: Entry) -> Iterator[bytes]:
        """Exactly as many bytes as were there when the tree was read."""
        left = entry.size
        try:
            # Without following a link: the file may have been replaced by one since.
            handle = os.open(os.path.join(self._tree.root, entry.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # noqa: PTH118
        except OSError:
            raise SourceChangedError([entry.path]) from None
        with os.fdopen(handle, "rb", buffering=0) as file:
            if _stamp(os.fstat(file.fileno())) != entry.stamp:
                raise SourceChangedError([entry.path])
            while left:
                chunk = file.read(min(_CHUNK, left))
                if not chunk:
                    raise SourceChangedError([entry.path])
                left -= len(chunk)
                yield chunk


def _join_names(paths: Sequence[str]) -> bytes:
    """As xargs -0 takes them; none looks like an option."""
    return b"".join(os.fsencode("./" + path) + b"\0" for path in paths)


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _leaves_tree(top: str, path: str, target: str) -> bool:
    """Does a link lead out of the tree, by its words or by what it really reaches?"""
    said = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120
    if target.startswith("/") or said == ".." or said.startswith("../"):
        return True
    reached = os.path.realpath(os.path.join(top, os.path.dirname(path), target))  # noqa: PTH118, PTH120
    return reached != top and not reached.startswith(top + "/")
