"""Files of ipexctl's own that are read again later: whole or not at all, on the disk, and for nobody else, whatever the
umask."""

import os
import pwd
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def make_private_directories(directory: Path) -> None:
    """Makes a directory and its missing parents, each 0700 whatever the umask; those that exist stay as they are.
    Raises `OSError`."""
    for path in (*reversed(directory.parents), directory):
        if not path.is_dir():  # mkdir gives its mode to the last one alone
            path.mkdir(mode=0o700, exist_ok=True)


def create_private_file(path: Path) -> BinaryIO:
    """Opens a new file, 0600 whatever the umask. Raises `OSError`, also for one that exists."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")


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


def write_private_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replaces a file by one rename, once its bytes are on the disk. No other process, here or on another host with the
    same home, uses the same temporary name."""
    make_private_directories(path.parent)
    number, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            os.fchmod(number, mode)
            file.flush()
            os.fsync(number)
        Path(part).replace(path)
    except OSError:
        with suppress(OSError):
            Path(part).unlink()
        raise


def switch_to_root_home(environ: MutableMapping[str, str], uid: int) -> str:
    """Under sudo that keeps HOME, everything of ours is root's own, as ssh has it: nothing in the user's home becomes
    root's. Returns root's home, or nothing where it was in use already; changes ``environ``."""
    old, home = environ.get("HOME", ""), pwd.getpwuid(0).pw_dir
    if uid != 0 or "SUDO_UID" not in environ or not Path(old).is_dir() or Path(old).stat().st_uid == 0:
        return ""
    environ["HOME"] = home
    for name in [name for name in environ if name.startswith("XDG_") and environ[name].startswith(old)]:
        del environ[name]
    return home
