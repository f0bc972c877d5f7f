"""Launches for programs that know one number of ranks for all hosts."""

from __future__ import annotations

from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.launch import Launch


def alike(launch: Launch, form: str) -> int:
    """Ranks on each host. Raises `UsageError` where hosts differ, in the name of the program ``form``."""
    counts = {len(seat.ranks) for seat in launch.seats}
    if len(counts) > 1:
        raise UsageError(
            f"{form} wants as many ranks on every host",
            reasons=[f"{seat.host}: {len(seat.ranks)}" for seat in launch.seats],
            hint="give --ppn, or use --emit sh",
            exit=Exit.STEP,
        )
    return counts.pop()
