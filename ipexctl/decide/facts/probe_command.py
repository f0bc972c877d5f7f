"""Build the probe command of a host."""

from __future__ import annotations

from collections.abc import Sequence

from ipexctl.decide.facts.probe_output import CAP, CAP_ASIDE
from ipexctl.model.commands import Command

_GRACE = 5.0  # seconds beyond the limit: to start on a busy host, to kill what hangs and to say so


def build_probe_command(
    text: str, nonce: str, *, venv: str = "", workdir: str = "", names: Sequence[str] = (), limit: float = 10.0
) -> Command:
    """``text`` is that of ``remote/probe.sh``; ``nonce`` must not be guessable. ``names`` are looked up on the host.

    ``limit`` (seconds, whole ones: not every `sleep` knows fractions) bounds each question; all run at once.
    """
    seconds = max(1, round(limit))
    argv = ("sh", "-s", "--", nonce, str(seconds), str(CAP_ASIDE), venv, workdir, *names)
    return Command(argv, stdin=text.encode(), timeout=seconds + _GRACE, cap=16 * CAP)
