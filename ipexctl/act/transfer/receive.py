"""Receives files from a host: completely or not at all, and never outside their directory.

The host runs `remote/send_tree.sh`. Only names that were requested become local paths; local directories are opened one
by one without following a symbolic link, and each file is written to a temporary name and renamed when complete."""

import contextlib
import errno
import io
import os
import re
import secrets
import socket
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

from ipexctl.act.threads import STALL_TIMEOUT, StallTimer, feed_input
from ipexctl.act.transfer.send import build_script_command, read_listing
from ipexctl.model.errors import Failure, Kind
from ipexctl.model.hosts import Channel, Link, LinkError
from ipexctl.model.text import format_size, printable
from ipexctl.protocol.paths import PART
from ipexctl.store.private_files import (
    make_private_directories,
    measure_room,
    read_regular_file,
    remove_directories,
    sync_file_system,
    write_private_file,
)
from ipexctl.store.record import PLAIN_NAME

_Listing = TypeVar("_Listing")
_READ_SIZE = 1 << 20
_RUN = ".ipexctl-run"  # in the directory of all hosts' results
_THIS_HOST = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())  # processes of others cannot be asked for
_GROWTH_LIMIT = 16 << 20  # bytes by which a file may have grown since it was listed; they are not kept
_EXTENSION_LIMIT = 1 << 16  # bytes of an extension of a header, such as a long name
_STREAM_ERRORS = (tarfile.TarError, RecursionError, ValueError, OverflowError)  # of tarfile, by headers that are none
_LINK_LIMIT = 40  # on the way to a directory, as the kernel's
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafePathError(Exception):
    """A local file cannot be written; the text says which and why. ``full``: no space is left."""

    full = False


class ResultsDir(contextlib.AbstractContextManager["ResultsDir"]):
    """The local directory of one host, ``into/host``. Modes are 0700 and 0600, whatever the umask. Files that are
    replaced are moved to ``into/older/host``, if ``older`` is given; ``kept`` counts them."""

    def __init__(self, into: Path, host: str, older: str = "") -> None:
        """Raises `UnsafePathError` if the directory is a symbolic link, one of another user is on the way to it, or it
        cannot be created."""
        self.path, self._older, self.kept = into / host, older, 0
        with _convert_os_errors(str(self.path)):
            make_private_directories(into)
            with _hold_directory(into) as top:
                self._root = _open_subdirectory(top, host)
            _remove_stale_staging(self._root)
            self._part = f"{PART}{_THIS_HOST}-{os.getpid()}-{secrets.token_hex(4)}"
            # Others may replace it by a link, where they own the host's directory.
            self._staging = _open_subdirectory(self._root, self._part)

    def write_file(self, local: str, chunks: Iterator[bytes], *, mtime: int, executable: bool) -> int:
        """Writes one file, moves it into place and returns its size. Raises `UnsafePathError`, and whatever ``chunks``
        raises; then no file has changed."""
        name = secrets.token_hex(8)
        with _convert_os_errors(local):
            number = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._staging)
        size = 0
        try:
            with os.fdopen(number, "wb", buffering=0) as file:
                for chunk in chunks:
                    size += len(chunk)
                    remaining = memoryview(chunk)
                    with _convert_os_errors(local):
                        while remaining:
                            remaining = remaining[file.write(remaining) or 0 :]
                with _convert_os_errors(local):
                    os.fchmod(number, 0o700 if executable else 0o600)
                    os.utime(number, (mtime, mtime))
            *above, leaf = local.split("/")
            with _convert_os_errors(local), _open_nested_directory(self._root, above) as at:
                if self._older and stat_local_file(self.path, local):
                    with _open_nested_directory(self._root, ["..", self._older, self.path.name, *above]) as kept:
                        if not os.access(leaf, os.F_OK, dir_fd=kept, follow_symlinks=False):
                            os.rename(leaf, leaf, src_dir_fd=at, dst_dir_fd=kept)
                            self.kept += 1
                os.rename(name, leaf, src_dir_fd=self._staging, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._staging)
            raise
        return size

    def sync(self) -> None:
        """Puts what was received on the disk: once, since a wait for each of many small files takes longer than to send
        them. Raises `UnsafePathError`."""
        with _convert_os_errors(str(self.path)):
            sync_file_system(self._root)

    def close(self) -> None:
        """Removes incomplete files: those in the directory that was made, whatever others have renamed to its place."""
        for name in os.listdir(self._staging):  # noqa: PTH208 - an open directory
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._staging)
        with contextlib.suppress(OSError):
            os.rmdir(self._part, dir_fd=self._root)
        os.close(self._staging)
        os.close(self._root)

    def __exit__(self, *_: object) -> None:
        self.close()


def make_results_directory(into: Path) -> None:
    """Creates the directory of all hosts' results if there is none: git and later syncs leave out what is in it. Does
    nothing where it cannot, which `ResultsDir` reports."""
    if not into.exists():
        with contextlib.suppress(OSError):
            make_private_directories(into)
            with (into / ".gitignore").open("x") as file:  # never through a link that somebody has put there
                file.write("*\n")


def read_fetched_run(into: Path) -> str:
    """Returns the run of which the files in ``into`` are; "" where that is not known."""
    try:
        name = read_regular_file(into / _RUN, 100).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    return name if PLAIN_NAME.fullmatch(name) else ""


def note_fetched_run(into: Path, run: str) -> None:
    """Notes of which run the files in ``into`` are from now on."""
    with contextlib.suppress(OSError), _hold_directory(into) as held:
        write_private_file(_locate_file(held, _RUN), run.encode())


def stat_local_file(root: Path, local: str) -> tuple[int, int] | None:
    """Size and mtime (whole seconds) of the regular file ``local`` below ``root``, else None."""
    try:
        status = os.lstat(os.path.join(root, local))  # noqa: PTH118 - names that are not UTF-8
    except OSError:
        return None
    return (status.st_size, int(status.st_mtime)) if stat.S_ISREG(status.st_mode) else None


def is_case_insensitive(into: Path) -> bool:
    """Returns whether the file system of ``into`` ignores the case of names."""
    at = into
    while not at.is_dir() and at != at.parent:
        at = at.parent
    with contextlib.suppress(OSError), _hold_directory(at) as held:
        probe = _locate_file(held, f"{PART}{secrets.token_hex(4)}-a")
        probe.touch(mode=0o600, exist_ok=False)
        try:
            return probe.with_name(probe.name.upper()).exists()
        finally:
            with contextlib.suppress(OSError):  # another user may have removed it
                probe.unlink()
    return False


def list_files(link: Link, directory: str, patterns: Sequence[str], parse: Callable[[bytes], _Listing]) -> _Listing:
    """Lists a host's files that match ``patterns``, by `decide.planning.fetch.parse_listing`. Raises `LinkError`."""
    try:
        return parse(read_listing(link, build_script_command("send_tree.sh", "list", directory, *patterns), 2))
    except ValueError:
        what = "malformed file list from the host"
        raise LinkError(Failure(link.host.name, Kind.STEP, what, code="malformed")) from None


class _Header(tarfile.TarInfo):
    """A header whose own extensions are bounded: tarfile reads those into memory, whatever size they claim."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if header.type not in (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE) and header.size > _EXTENSION_LIMIT:
            raise tarfile.ReadError("an extended header that is too long")
        return header

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a map of holes, which has no end but its own")


def describe_lack(into: Path, need: int) -> str:
    """Returns why so many bytes have no room where ``into`` is or will be; "" where they have."""
    free = measure_room(into)
    what = f"no space left on this machine: need {format_size(need)}, {format_size(free)} free in {into}"
    return what if need > free else ""


def receive_files(link: Link, directory: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Yields name, size and contents of the files named in ``sizes`` as they arrive; contents must be read before the
    next file. No more bytes of a file are taken than its size; behind one that grew by more than `_GROWTH_LIMIT` the
    stream ends. Raises `LinkError` if the connection is lost or the host sends what was not requested."""
    expected = {name.removeprefix("./").lstrip("/"): name for name in sizes}
    request = b"".join(os.fsencode(name) + b"\0" for name in sizes)
    command = build_script_command("send_tree.sh", "pack", directory)
    with link.stream(command) as channel, StallTimer(channel.close) as watch:
        pipe = _Pipe(channel, watch)
        feed_input(channel, request)

        def broken() -> LinkError:
            what = f"the file stream is damaged or incomplete{pipe.format_error()}"
            if watch.stalled:
                what = f"no progress for {STALL_TIMEOUT:g} s"
            return LinkError(Failure(link.host.name, Kind.STEP, what, code="stalled" if watch.stalled else "damaged"))

        def contents(file: IO[bytes], left: int) -> Iterator[bytes]:
            try:
                while chunk := file.read(min(_READ_SIZE, left)):
                    left -= len(chunk)
                    yield chunk
            except _STREAM_ERRORS:
                raise broken() from None

        try:
            with tarfile.open(
                fileobj=io.BufferedReader(pipe, _READ_SIZE), mode="r|", bufsize=_READ_SIZE, ignore_zeros=True,
                encoding="utf-8", errors="surrogateescape", tarinfo=_Header,
            ) as stream:  # fmt: skip
                for member in stream:
                    name = expected.pop(member.name.removeprefix("./").lstrip("/"), None)
                    if name is None:
                        what = f"it sent {printable(member.name, 100)}, which was not requested"
                        raise LinkError(Failure(link.host.name, Kind.STEP, what, code="malformed"))
                    plain = member.isreg() and not member.issparse()  # which would claim bytes that do not come
                    file = stream.extractfile(member) if plain else None
                    pipe.budget = sizes[name] + 2 * _GROWTH_LIMIT
                    if file is not None:
                        size = min(member.size, sizes[name])
                        yield name, size, contents(file, size)
                    if member.size > sizes[name] + _GROWTH_LIMIT:
                        return
        except _STREAM_ERRORS:
            is_empty = not pipe.size and pipe.budget >= 0  # none of the files exists any more
            if not is_empty or watch.stalled:
                raise broken() from None
        for _ in channel:
            pass


class _Pipe(io.RawIOBase):
    """The output of a command as a readable file; its error output is kept for messages. ``budget`` are the bytes of
    both that may still come: what tarfile skips, or takes into memory by itself, has no other end."""

    def __init__(self, channel: Channel, watch: StallTimer) -> None:
        self._pieces = iter(channel)
        self._watch = watch
        self._unread = memoryview(b"")
        self._err = bytearray()
        self.budget = _GROWTH_LIMIT
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._unread:
            stream, data = next(self._pieces, ("out", b""))
            self._watch.reset()
            if stream == "err":
                self._err += data[: 4096 - len(self._err)]
                self._take(len(data))
            elif not data:
                self._take(_READ_SIZE)  # tarfile reads on behind the end for as long as a header says
                return 0
            else:
                self._unread = memoryview(data)
        count = min(len(buffer), len(self._unread))
        buffer[:count] = self._unread[:count]
        self._unread = self._unread[count:]
        self.size += count
        self._take(count)
        return count

    def _take(self, count: int) -> None:
        self.budget -= count
        if self.budget < 0:
            raise tarfile.ReadError("more than was listed")

    def format_error(self) -> str:
        lines = self._err.decode("utf-8", "replace").strip().splitlines()
        return f": {printable(lines[-1], 160)}" if lines else ""


@contextlib.contextmanager
def _hold_directory(directory: Path) -> Iterator[int]:
    """Opens this very directory, whatever others put in its place meanwhile. Raises `OSError`."""
    number = _open_own_way(directory)
    try:
        yield number
    finally:
        os.close(number)


def _locate_file(held: int, name: str) -> Path:
    return Path(f"/proc/self/fd/{held}/{name}")


def _open_own_way(directory: Path) -> int:
    """Opens a directory, to open others in it. Links on the way are followed where they are ours or root's: another
    user, who may write on the way, can put one in the place of a directory at any moment. Raises `OSError`."""
    at, names, links = os.open("/", _DIRECTORY), [*directory.absolute().parts[:0:-1]], 0
    try:
        while names:
            inner = os.open(names.pop(), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            at, above = inner, at
            try:
                status = os.fstat(inner)
                if not stat.S_ISLNK(status.st_mode):
                    continue
                links += 1
                if status.st_uid not in {0, os.geteuid()} or links > _LINK_LIMIT:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink("", dir_fd=inner)
                names += [name for name in target.split("/")[::-1] if name]
                at = os.open("/" if target.startswith("/") else ".", _DIRECTORY, dir_fd=above)
                os.close(inner)
            finally:
                os.close(above)
    except BaseException:
        os.close(at)
        raise
    return at


def _open_subdirectory(at: int, name: str) -> int:
    """Opens a directory in a directory, never through a symbolic link; makes it if there is none."""
    with contextlib.suppress(FileExistsError):  # also from another host's thread, or another ipexctl
        os.mkdir(name, 0o700, dir_fd=at)
    return os.open(name, _DIRECTORY, dir_fd=at)


@contextlib.contextmanager
def _open_nested_directory(root: int, names: Sequence[str]) -> Iterator[int]:
    at = os.dup(root)
    try:
        for name in names:
            inner = _open_subdirectory(at, name)
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


def _remove_stale_staging(root: int) -> None:
    """Removes the private directories of this machine's fetches whose process has ended. Where others may rename what
    is there, one of that name may be any directory of ours."""
    status = os.fstat(root)
    if status.st_uid != os.geteuid() or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
        return
    for name in os.listdir(root):
        host, _, pid = name.removeprefix(PART).rpartition("-")[0].rpartition("-")
        if name.startswith(PART) and host == _THIS_HOST and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a link that leads to itself
                remove_directories([Path(f"/proc/self/fd/{root}/{name}")])


_REASONS = {
    errno.ELOOP: "a part of the local path is a symbolic link",
    errno.ENOTDIR: "a part of the local path is not a directory",
    **dict.fromkeys((errno.EISDIR, errno.ENOTEMPTY), "the local path is a directory"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "no space left on this machine"),
}


@contextlib.contextmanager
def _convert_os_errors(name: str) -> Iterator[None]:
    """Raises `UnsafePathError`, which names the local path, in place of `OSError`."""
    try:
        yield
    except OSError as error:
        why = _REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()
        problem = UnsafePathError(f"{printable(name, 200)}: {why}")
        problem.full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise problem from None
