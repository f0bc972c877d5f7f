"""Paces of one run in windows of time in which some processes beside it go on, and in which they are stopped (SIGSTOP).

Two runs of the same command differ by more than such processes cost, and so do long windows of one run. So the windows
are short, and pairs of them are compared, in the order ABBA.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tables import Cell, Table

MARK = 2  # steps between two marks of marked.py
WARM = 1500  # marks before the first window


def alternate(processes: Sequence[int], marks: Path, rounds: int, window: float) -> list[tuple[float, float]]:
    """Steps per second in pairs of windows of so many seconds: while the processes go on, while they are stopped."""
    windows: list[tuple[bool, float, float]] = []
    try:
        for turn in range(2 * rounds):
            on = turn % 4 in (0, 3)
            _signal_all(processes, signal.SIGCONT if on else signal.SIGSTOP)
            begun = time.monotonic()
            time.sleep(window)
            windows.append((on, begun, time.monotonic()))
    finally:
        _signal_all(processes, signal.SIGCONT)
    moments = [float(line) for line in marks.read_text().splitlines()]  # ranks that train together have one pace
    paces = [(on, _measure_pace(moments, since, until)) for on, since, until in windows]
    return [(max(pair)[1], min(pair)[1]) for pair in zip(paces[::2], paces[1::2], strict=True)]


def await_marks(marks: Sequence[Path], count: int = WARM) -> None:
    """Until every rank has made so many. Ends this program where they do not come within two minutes."""
    begun = time.monotonic()
    while any(_count_lines(mark) < count for mark in marks):
        if time.monotonic() > begun + 120:
            sys.exit("the training did not begin within 120 s")
        time.sleep(0.5)


def summarize_ratios(paces: Sequence[tuple[float, float]]) -> list[Cell]:
    """The pace while the processes go on ÷ while they are stopped: median of the pairs, mean, its standard error."""
    ratios = [on / off for on, off in paces]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    return [statistics.median(ratios), statistics.fmean(ratios), error]


def build_pace_table(paces: Sequence[tuple[float, float]], names: tuple[str, str], title: str) -> Table:
    """Steps per second of the windows of either kind."""
    rows: list[list[Cell]] = [
        [name, statistics.median(each), min(each), max(each)]
        for name, each in zip(names, zip(*paces, strict=True), strict=True)
    ]
    return Table(["", "median", "least", "most"], rows, title)


def read_words(path: Path) -> list[bytes]:
    """The words of a process's command line or environment; none of one that has ended."""
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []


def _signal_all(processes: Sequence[int], number: int) -> None:
    for process in processes:
        os.kill(process, number)


def _measure_pace(moments: Sequence[float], since: float, until: float) -> float:
    """Steps per second between the first and the last mark within this time."""
    inside = [moment for moment in moments if since <= moment <= until]
    return MARK * (len(inside) - 1) / (inside[-1] - inside[0])


def _count_lines(mark: Path) -> int:
    return mark.read_bytes().count(b"\n") if mark.exists() else 0
