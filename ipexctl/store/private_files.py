"""Files of ipexctl's own that are read again later: whole or not at all, on the disk, and for nobody else, whatever the
umask."""

import errno
import os
import re
import secrets
import shlex
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.text import printable


def make_private_directories(directory: Path) -> None:
    """Makes a directory and its missing parents, each 0700 whatever the umask; those that exist stay as they are.
    Raises `OSError`."""
    for path in (*reversed(directory.parents), directory):
        if not path.is_dir():  # mkdir gives its mode to the last one alone
            path.mkdir(mode=0o700, exist_ok=True)
            _make_private(path)


def _make_private(directory: Path) -> None:
    """Never through a link that another user has just put in its place, where he may. Raises `OSError`."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(number, 0o700)
    finally:
        os.close(number)


def claim_private_directory(directory: Path) -> None:
    """Makes a directory and its missing parents; one of before becomes 0700. Raises `UsageError` if it is of others."""
    shown = printable(str(directory), 400)
    with refuse_os_errors(directory, "cannot be made"):
        if not (directory.exists() or directory.is_symlink()):
            make_private_directories(directory)
        status, above, why, hint = directory.lstat(), _find_open_directory(directory), "", None
    if not stat.S_ISDIR(status.st_mode):
        why = "is not a directory"
    elif status.st_uid != os.geteuid():
        why = f"belongs to another user (uid {status.st_uid})"
    elif status.st_mode & 0o022:
        why = f"is writable by others (mode {stat.S_IMODE(status.st_mode):04o})"
        moved = [shlex.quote(f"{directory}{end}") for end in ("", ".untrusted")]
        hint = f"mv {' '.join(moved)}"  # what others have put there would stay, and be used
    elif above:
        why = f"is below {printable(str(above), 400)}, where others can exchange it"
        mine = above.lstat().st_uid in {0, os.geteuid()}
        hint = f"chmod +t {shlex.quote(str(above))}" if mine else "set XDG_CACHE_HOME and XDG_STATE_HOME"
    if why:
        raise UsageError(f"{shown} {why}: nothing of ipexctl is kept there", exit=Exit.STEP, hint=hint)
    if status.st_mode & 0o077:
        with refuse_os_errors(directory, "cannot be made private"):
            _make_private(directory)


def _find_open_directory(directory: Path) -> Path | None:
    """The one above in which everybody, or the owner of one in one like /tmp, can put another in the place of what is
    ours. Links on the way are looked at, too."""
    mine = {0, os.geteuid()}
    for way in (directory.absolute(), Path(os.path.realpath(directory))):  # a link may lead to itself
        is_open = False  # what is in it may be anybody's
        for path in reversed(way.parents):
            status = path.lstat()
            if is_open and status.st_uid not in mine:
                return path
            is_open = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_IWOTH)
            if is_open and not (status.st_mode & stat.S_ISVTX and status.st_uid in mine):
                return path
    return None


def belongs_to_others(directory: Path) -> bool:
    """Returns whether another user owns it or the link in its place, or everybody can write there: what is in it may be
    anybody's."""
    try:
        link, status = directory.lstat(), directory.stat()
    except OSError:
        return False
    return {link.st_uid, status.st_uid} != {os.geteuid()} or bool(status.st_mode & stat.S_IWOTH)


def measure_room(path: Path) -> int:
    """Returns the bytes that are free where a path is or will be. Raises `OSError`."""
    return shutil.disk_usage(next(at for at in (path, *path.absolute().parents) if at.exists())).free


def describe_error(error: OSError) -> str:
    """Say what the system refused, without the path."""
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


@contextmanager
def refuse_os_errors(path: Path | str, what: str, exit: Exit = Exit.STEP) -> Iterator[None]:
    """Raises `UsageError` in place of `OSError`: that this path ``what`` ("cannot be read"), and why."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{printable(str(path), 400)} {what}: {describe_error(error)}", exit=exit) from None


def sync_path(path: Path) -> None:
    """Puts a file's bytes, or a directory's names, on the disk. Raises `OSError`."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_file_system(number: int) -> None:
    """Puts all of the file system in which a descriptor lies on the disk. Raises `OSError`."""
    import ctypes  # Python has no name for this call

    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):  # a C library without it
        os.sync()
        return
    if syncfs(number):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def replace_name(path: Path) -> Iterator[tuple[str, int]]:
    """A name, and the open directory in which what gets it takes the place of ``path`` by one rename, or goes: where
    another user may write, he exchanges that directory for a link to another meanwhile. Raises `OSError`."""
    part = f".{path.name}.{secrets.token_hex(4)}"
    at = os.open(path.parent, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield part, at
        os.rename(part, path.name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=at)
        raise
    finally:
        os.close(at)


@contextmanager
def replace_file(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` by one rename when all is on the disk, else leaves nothing. A link at
    ``path`` is replaced, not followed. Without a ``mode`` it gets that of the umask. Raises `OSError`."""
    with replace_name(path) as (part, at):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        number = os.open(part, flags, 0o666 if mode is None else 0o600, dir_fd=at)
        with os.fdopen(number, "wb") as file:
            yield file
            if mode is not None:
                os.fchmod(number, mode)
            file.flush()
            os.fsync(number)


def write_private_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replaces a file, whose missing directories it makes, as `replace_file` does. Raises `OSError`."""
    make_private_directories(path.parent)
    with replace_file(path, mode) as file:
        file.write(data)


def open_regular_file(path: Path | str, *, own: bool = False, follow: bool = False) -> BinaryIO:
    """Opens a regular file to read it, never through a link unless it may ``follow`` one: a record from somebody else
    must not show other files of the user. With ``own``, none that others own or may write. Waits for no writer of a
    pipe, which another user may have put there since it was looked at. Raises `OSError`."""
    number = os.open(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC)
    status, why = os.fstat(number), ""
    if not stat.S_ISREG(status.st_mode):
        why = "is not a regular file"
    elif own and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        why = "belongs to another user or can be written by others"
    if not why:
        return os.fdopen(number, "rb")
    os.close(number)
    raise OSError(None, why)


def read_regular_file(path: Path, limit: int, *, own: bool = False) -> bytes:
    """Returns the bytes of a file as `open_regular_file` opens it, of at most ``limit``. Raises `OSError`."""
    with open_regular_file(path, own=own) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(None, f"is larger than {limit >> 20} MiB")
    return data


def remove_directories(directories: Sequence[Path]) -> None:
    """Removes them; links in them are removed, not followed. Raises `OSError`, also where something is mounted in one,
    before anything is removed."""
    with suppress(FileNotFoundError):  # no Linux
        lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n")[:-1]
        paths = [f"{os.path.realpath(each)}/" for each in directories]
        places = [re.sub(r"[ \t\n\\]", lambda sign: f"\\{ord(sign[0]):03o}", path) for path in paths]
        if any(line.split(" ")[4].startswith(tuple(places)) for line in lines):
            raise OSError(errno.EBUSY, "something is mounted in it")
    for path in directories:
        shutil.rmtree(path)


def measure_tree(directory: Path, counted: set[tuple[int, int]] | None = None) -> tuple[int, float]:
    """Bytes of the files below a directory, in which others may come and go meanwhile, and when the last of them was
    changed, in Unix seconds. Follows no link. A file that is ``counted`` already, by its device and inode, has none."""
    size, times, todo = 0, [0.0], [os.fspath(directory)]
    while todo:  # they may be deeper than Python's stack
        with suppress(OSError):  # it has gone, or is closed
            for entry in os.scandir(todo.pop()):
                with suppress(OSError):
                    if entry.is_dir():
                        todo += [] if entry.is_symlink() else [entry.path]
                        continue
                    status = entry.stat(follow_symlinks=False)
                    times.append(status.st_mtime)
                    file = status.st_dev, status.st_ino
                    if counted is None or file not in counted:
                        size += status.st_size
                    if counted is not None:
                        counted.add(file)
    with suppress(OSError):
        times.append(directory.lstat().st_mtime if len(times) < 2 else 0.0)
    return size, max(times)
