"""Runs a command while this machine is busy, and ends with its exit code.

``python tests/busy.py make fast``: tests must be green under it: nothing may depend on how much of a core, the disk or
the memory it gets, nor on how soon a program starts.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

WRITTEN = 32 << 20  # bytes of each file that is written and synced
HELD = 1 << 30  # bytes of memory that are touched again and again, of a machine with room for them
PAGE = 4096  # bytes


def burn_core() -> None:
    sum(range(1 << 20))


def write_disk() -> None:
    """Writes a file without a name, and waits until the disk has it."""
    with tempfile.TemporaryFile(dir=".") as file:
        for _ in range(WRITTEN >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())


def start_programs() -> None:
    """Starts short processes, which take process ids, the caches and the scheduler's time."""
    for _ in range(20):
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"])
    time.sleep(0.05)


def touch_memory() -> None:
    """Takes memory, writes to each of its pages, and gives it back."""
    size = min(HELD, os.sysconf("SC_AVPHYS_PAGES") * PAGE // 8)
    held = bytearray(size)
    held[::PAGE] = b"x" * len(held[::PAGE])
    time.sleep(0.5)


def repeat(work: Callable[[], None]) -> None:
    """Repeats it until the process that started this one is gone, however that ended."""
    while multiprocessing.parent_process().is_alive():  # type: ignore[union-attr]
        work()


def main(argv: list[str]) -> int:
    cores = [burn_core] * (2 * len(os.sched_getaffinity(0)))
    for work in (*cores, write_disk, start_programs, touch_memory):
        multiprocessing.Process(target=repeat, args=(work,), daemon=True).start()
    return subprocess.run(argv).returncode


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit("usage: python tests/busy.py COMMAND…")
    sys.exit(main(sys.argv[1:]))
