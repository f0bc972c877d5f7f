"""The directory a cluster lives in, and the removal of those whose owner died.

Processes, mounts and namespaces need no sweeping: a host's first process ends when the pipe to its owner closes,
and takes all of them along. Only files stay, and the lock on them is free once their owner is gone.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

_PREFIX = "ipexctl-cluster-"


class Ground:
    """``path`` is ours until `close`. ``IPEXCTL_TEST_DISK`` names another place than /var/tmp (overlays need a real
    file system under them)."""

    def __init__(self) -> None:
        disk = Path(os.environ.get("IPEXCTL_TEST_DISK", "/var/tmp"))
        sweep(disk)
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=disk))  # no sweep looks at it before it is locked
        made.chmod(0o711)
        self._lock = _lock(made / "lock", create=True)
        self.path = made.rename(disk / made.name.removeprefix("."))

    def close(self) -> None:
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
        shutil.rmtree(self.path)  # the lock goes last: without it another suite would sweep what we still remove
        if self._lock is not None:
            os.close(self._lock)


def sweep(disk: Path) -> list[Path]:
    """Removes what dead owners left on ``disk``; returns what it removed."""
    removed = []
    for path in disk.glob(_PREFIX + "*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # its owner has removed it meanwhile
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            continue
        lock = _lock(path / "lock", create=False)
        if lock is None and ((path / "lock").exists() or time.time() - status.st_mtime < 60):
            continue  # somebody's, or just being removed
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
        if lock is not None:
            os.close(lock)
    return removed


def _lock(path: Path, *, create: bool) -> int | None:
    """A descriptor that holds the lock, or None: somebody else holds it, or there is no such file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
