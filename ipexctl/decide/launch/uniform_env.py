"""Check launches for programs that take one number of ranks for all hosts."""

from __future__ import annotations

from ipexctl.model.errors import Exit, UsageError
from ipexctl.model.launch import Launch


def require_equal_ppn(launch: Launch, form: str) -> int:
    """Ranks on each host. Raises `UsageError` if hosts differ; ``form`` names the program in the message."""
    counts = {len(node.ranks) for node in launch.nodes}
    if len(counts) > 1:
        raise UsageError(
            f"{form} requires the same number of ranks on every host",
            reasons=[f"{node.host}: {len(node.ranks)}" for node in launch.nodes],
            hint="give --ppn, or use --emit sh",
            exit=Exit.STEP,
        )
    return counts.pop()
