"""Network namespaces held by a process, and how to step into one."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Room:
    """An empty network namespace that lives as long as its one process, which ends when our end of a pipe closes:
    at `close`, or when this process dies, however it dies."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--", "sh", "-c", "echo in; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at the terminal is for pytest alone
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"in\n":
            raise RuntimeError("no network namespace could be made")

    @property
    def pid(self) -> int:
        return self._holder.pid

    @property
    def path(self) -> str:
        """The file of the kernel by which to `enter` it."""
        return f"/proc/{self._holder.pid}/ns/net"

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words in front of a command that is to run in here; it keeps its process id, files and environment."""
        return ("nsenter", f"--net={self.path}", "--")

    def ip(self, *lines: str) -> None:
        """Executes lines of iproute2 in here, all or an exception."""
        ip_batch(self.prefix, *lines)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread, and all threads and processes it starts meanwhile, use this network.

        A socket stays in the network it was made in, also afterwards."""
        with open("/proc/thread-self/ns/net", "rb") as home, open(self.path, "rb") as here:
            enter(here.fileno())
            try:
                yield
            finally:
                enter(home.fileno())

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(60)
        self._holder.stdout.close()


def ip_batch(prefix: tuple[str, ...], *lines: str) -> None:
    done = subprocess.run([*prefix, "ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"ip: {done.stderr.strip()} in\n" + "\n".join(lines))


def enter(fd: int) -> None:
    """Moves the calling thread into the network namespace of a descriptor."""
    if _libc.setns(fd, CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "setns")
