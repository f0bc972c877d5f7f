"""Processor time as a plain machine of 2026 would have taken it: bounds hold on a slow machine, and under coverage."""

import sys
import time

_UNIT = 0.011  # seconds of that machine for the loop below: 20 million additions a 1.1 s
_TRACED = 3.0  # coverage's own part, of code whose lines it counts


class Stopwatch:
    """Takes the processor time of this process from its making on."""

    def __init__(self) -> None:
        self._slowness = _measure_slowness()
        self._begun = time.process_time()

    def read(self) -> float:
        """Returns the seconds since then, as that machine would have taken them."""
        seconds = time.process_time() - self._begun
        traced = _TRACED if sys.gettrace() else 1.0  # its hook; Python 3.12 may have another
        return seconds / max(self._slowness, _measure_slowness(), 1.0) / traced


def _measure_slowness() -> float:
    """How much longer than there a loop takes here and now, as others have the cores, too: the middle of five."""
    return sorted(_time_loop() for _ in range(5))[2] / _UNIT


def _time_loop() -> float:
    begun, number = time.process_time(), 0
    while number < 200_000:
        number += 1
    return time.process_time() - begun
