"""Runs a command while every core of this machine is busy, and ends with its exit code.

``python tests/busy.py make fast``: tests must be green under it: nothing may depend on how much of a core it gets.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys


def burn_core() -> None:
    """Computes until the process that started it is gone, however that ended."""
    while multiprocessing.parent_process().is_alive():  # type: ignore[union-attr]
        sum(range(1 << 20))


def main(argv: list[str]) -> int:
    for _ in range(2 * len(os.sched_getaffinity(0))):
        multiprocessing.Process(target=burn_core, daemon=True).start()
    return subprocess.run(argv).returncode


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit("usage: python tests/busy.py COMMAND…")
    sys.exit(main(sys.argv[1:]))
