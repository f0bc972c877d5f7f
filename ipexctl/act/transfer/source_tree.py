"""The local source: read once, packed once for all hosts, and checked for changes at the end."""

import os
import shlex
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ipexctl.act.transfer.send import build_tar_directory, build_tar_file, build_tar_header
from ipexctl.model.errors import UsageError
from ipexctl.model.text import printable
from ipexctl.model.trees import FileTree, TreeEntry
from ipexctl.store.private_files import open_regular_file

_CACHE_LIMIT = 32 << 20  # bytes of small files held in memory for all hosts
SMALL_FILE_LIMIT = 1 << 20  # bytes up to which a file is small
_CHUNK = 1 << 20
_LFS_SIZES = range(120, 150)  # bytes: version, SHA-256, size
_SHOWN_PATHS = 20  # paths named in one error


class SourceChangedError(Exception):
    """The files ``paths`` of the source changed while they were sent."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(", ".join(paths))
        self.paths = tuple(paths)


def read_tree(root: Path, ignored: Callable[[str, bool], bool]) -> FileTree:
    """Reads the tree below ``root`` without ignored files, and without those that this command's own output goes to.
    Follows no symbolic link and opens no file. Raises `UsageError` with all links that leave the tree and all files
    and directories that cannot be read."""
    own_output = _find_own_output()
    entries: list[TreeEntry] = []
    skipped: list[str] = []
    faults: dict[str, str] = {}  # by path
    top = os.path.realpath(root)

    def list_items(directory: str, path: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as scanned:
                return iter(sorted(scanned, key=lambda item: item.name))
        except OSError as error:
            faults[path or "."] = f": {(error.strerror or 'cannot be read').lower()}"
            return iter(())

    open_directories = [("", list_items(str(root), ""))]  # they may be deeper than Python's stack
    while open_directories:
        prefix, items = open_directories[-1]
        item = next(items, None)
        if item is None:
            open_directories.pop()
            continue
        path = prefix + item.name
        is_directory = item.is_dir(follow_symlinks=False)
        if ignored(path, is_directory):
            continue
        try:
            status = item.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed since the directory was read: not part of the source
        if (status.st_dev, status.st_ino) in own_output:
            continue
        if is_directory:
            entries.append(TreeEntry(path, "d"))
            open_directories.append((f"{path}/", list_items(item.path, f"{path}/")))
        elif item.is_symlink():
            target = os.readlink(item.path)  # noqa: PTH115
            if _leaves_tree(top, path, target):
                faults[path] = f" → {printable(target)}"
            entries.append(TreeEntry(path, "l", target=target))
        elif stat.S_ISREG(status.st_mode):
            if not os.access(item.path, os.R_OK):
                faults[path] = ": permission denied"
            executable = bool(status.st_mode & 0o111)
            entries.append(TreeEntry(path, "f", status.st_size, _compute_change_stamp(status), executable))
        else:
            skipped.append(path)

    if faults:
        reasons = [printable(path) + why for path, why in faults.items()]
        more = [f"and {len(reasons) - _SHOWN_PATHS} more"] if len(reasons) > _SHOWN_PATHS else []
        options = " ".join(f"--exclude {shlex.quote(path)}" for path in list(faults)[:_SHOWN_PATHS])
        data = next((path for path in faults if (root / path).is_symlink() and (root / path).is_dir()), None)
        needed = f" (sync {shlex.quote(data)} copies what it leads to, if scripts need that)" if data else ""
        raise UsageError(
            f"{printable(str(root), 200)} has links that leave it, or files that cannot be read",
            reasons=[*reasons[:_SHOWN_PATHS], *more],
            hint=printable(f"leave them out{needed}: {options}", 2000),
        )
    return FileTree(root, f"{socket.gethostname()}:{top}", tuple(entries), tuple(skipped))


def find_lfs_pointers(tree: FileTree, entries: Iterable[TreeEntry]) -> list[str]:
    """Returns which of these files are pointers of Git LFS, as in a repository that was cloned without git-lfs."""
    small = sorted(entry.path for entry in entries if entry.kind == "f" and entry.size in _LFS_SIZES)
    return [path for path in small if _begins_with(tree.root / path, b"version https://git-lfs.github.com/spec/")]


def _begins_with(path: Path, words: bytes) -> bool:
    try:
        with open_regular_file(path) as file:
            return file.read(len(words)) == words
    except OSError:  # it has changed: the transfer says so
        return False


def _find_own_output() -> set[tuple[int, int]]:
    """Returns device and inode of the files that this command writes to (``> train.log``), and those of the commands
    that read what it writes (``| tee train.log``): they grow while the tree is sent."""
    session, others = os.getsid(0), []
    for process in Path("/proc").glob("[0-9]*"):  # Linux alone has it
        with suppress(OSError):  # ended meanwhile, or of another account
            if os.getsid(int(process.name)) == session:
                others.append(_list_open_files(process))
    with suppress(OSError):
        _, outputs = _list_open_files(Path("/proc/self"))
        while more := set().union(*(written for read, written in others if read & outputs)) - outputs:
            outputs |= more
        return outputs
    return set()


def _list_open_files(process: Path) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Device and inode of the pipes that a process reads from, and of the files and pipes that it writes to."""
    read, written = set(), set()
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            status, mode = descriptor.stat(), descriptor.lstat().st_mode
            if stat.S_ISFIFO(status.st_mode) and mode & stat.S_IRUSR:
                read.add((status.st_dev, status.st_ino))
            if (stat.S_ISFIFO(status.st_mode) or stat.S_ISREG(status.st_mode)) and mode & stat.S_IWUSR:
                written.add((status.st_dev, status.st_ino))
    return read, written


def check_unchanged(tree: FileTree, entries: Sequence[TreeEntry]) -> None:
    """Raises `SourceChangedError` where something is another than when the tree was read."""
    if changed := [entry.path for entry in entries if not _is_unchanged(tree.root, entry)]:
        raise SourceChangedError(changed)


def _is_unchanged(root: Path, entry: TreeEntry) -> bool:
    path = os.path.join(root, entry.path)  # noqa: PTH118 - names that are not UTF-8
    try:
        status = os.lstat(path)
        if entry.kind == "l":
            return os.readlink(path) == entry.target  # noqa: PTH115
    except OSError:
        return False
    if entry.kind == "d":
        return stat.S_ISDIR(status.st_mode)
    return stat.S_ISREG(status.st_mode) and _compute_change_stamp(status) == entry.stamp


class Packer:
    """Makes the tar stream of a set of entries: small files are read once for all hosts that need the same set."""

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree
        self._packed_trees: dict[tuple[TreeEntry | str, ...], list[bytes | TreeEntry]] = {}
        self._lock = threading.Lock()

    def pack(
        self,
        entries: tuple[TreeEntry, ...],
        *,
        manifest: bytes,
        to_delete: Sequence[str],
        stored: Mapping[str, str] | None = None,
    ) -> Iterator[bytes]:
        """Yields the tar stream for `send.install_tree`: an empty file for each path in ``stored``, which has that
        file's name in a store on the host. Raises `SourceChangedError` before its end: nothing takes effect."""
        stored = stored or {}
        key: tuple[TreeEntry | str, ...] = (*entries, *stored)
        with self._lock:
            if key not in self._packed_trees:
                self._packed_trees[key] = list(self._pack_entries(entries, stored))
            pieces = self._packed_trees[key]
        for piece in pieces:
            if isinstance(piece, bytes):
                yield piece
            else:
                yield from self._read_padded(piece)
        if stored:
            names = "".join(f"{name}\0./{path}\0" for path, name in stored.items())
            yield build_tar_file("stored", os.fsencode(names), 0o600)
        if to_delete:
            # For xargs -0: none looks like an option.
            yield build_tar_file("to_delete", b"".join(os.fsencode("./" + path) + b"\0" for path in to_delete), 0o600)
        yield build_tar_file("mark", manifest, 0o600)
        check_unchanged(self._tree, entries)

    def _pack_entries(self, entries: Sequence[TreeEntry], stored: Mapping[str, str]) -> Iterator[bytes | TreeEntry]:
        """Pieces of the stream; an entry stands for a large file, which is read again for every host."""
        gathered = bytearray(build_tar_directory("tree"))
        held = 0
        for entry in entries:
            name = f"tree/{entry.path}"
            if entry.kind == "d":
                gathered += build_tar_directory(name)
            elif entry.kind == "l":
                gathered += build_tar_header(name, link=entry.target)
            else:
                mode, size = 0o700 if entry.executable else 0o600, 0 if entry.path in stored else entry.size
                gathered += build_tar_header(name, size=size, mode=mode, mtime=entry.mtime)
                if not size:
                    continue
                if entry.size <= SMALL_FILE_LIMIT and held + entry.size <= _CACHE_LIMIT:
                    held += entry.size
                    for chunk in self._read_padded(entry):
                        gathered += chunk
                else:
                    yield bytes(gathered)
                    gathered.clear()
                    yield entry
            if len(gathered) >= _CHUNK:
                yield bytes(gathered)
                gathered.clear()
        yield bytes(gathered)

    def _read_padded(self, entry: TreeEntry) -> Iterator[bytes]:
        """Yields the contents of a file, exactly as long as when the tree was read, padded to tar's blocks. Raises
        `SourceChangedError`."""
        left = entry.size
        try:
            opened = open_regular_file(self._tree.root / entry.path)  # it may have been replaced by a link since
        except OSError:
            raise SourceChangedError([entry.path]) from None
        with opened as file:
            if _compute_change_stamp(os.fstat(file.fileno())) != entry.stamp:
                raise SourceChangedError([entry.path])
            while left and (chunk := file.read(min(_CHUNK, left))):
                left -= len(chunk)
                yield chunk
        if left:
            raise SourceChangedError([entry.path])
        yield bytes(-entry.size % 512)


def _compute_change_stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _leaves_tree(top: str, path: str, target: str) -> bool:
    """Returns whether a link leads out of the tree, by its target's text or after resolving it."""
    normalized = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120
    if target.startswith("/") or normalized == ".." or normalized.startswith("../"):
        return True
    reached = os.path.realpath(os.path.join(top, os.path.dirname(path), target))  # noqa: PTH118, PTH120
    return reached != top and not reached.startswith(top + "/")
