"""Starting a run again when it failed: the script goes on from its own checkpoint (``$IPEXCTL_RESTART`` counts)."""

from __future__ import annotations

from collections.abc import Callable, Generator

from ipexctl.model.events import Event, Message, Planned
from ipexctl.verbs.run.attempt import Attempt

MakeAttempt = Callable[[int, frozenset[str]], Attempt]


def run_attempts(
    attempt: Attempt, make_attempt: MakeAttempt, restarts: int, min_hosts: int | None
) -> Generator[Event, None, None]:
    """Runs attempts, ``attempt`` first, until one ends well, is stopped, or no restart is left.

    ``make_attempt`` is given the number of the restart and the hosts to leave out: hosts that were lost, if at least
    ``min_hosts`` others remain; without ``min_hosts`` none is left out.
    """
    without: frozenset[str] = frozenset()
    for restart in range(1, restarts + 2):
        detached = yield from attempt.execute()
        watcher = attempt.watcher
        ended, lost = watcher.run_ended, watcher.lost_hosts if min_hosts is not None else set()
        remaining = {plan.host for plan in attempt.launch.nodes} - lost
        too_few = bool(lost) and len(remaining) < (min_hosts or 0)
        failed = ended is not None and ended.reason in {"rank", "lost"} and watcher.interrupted is None
        if detached or not failed or too_few or restart > restarts:
            yield from attempt.conclude(detached)
            return
        if lost:
            without |= lost
            yield Message(f"going on without {', '.join(sorted(lost))}", "warning", code="hosts-left-out")
        why = ended.detail if ended and ended.detail else "the run failed"
        text = f"{why}: starting again ({restart} of {restarts}) from the script's own checkpoint"
        yield Message(text, "warning", code="restart")
        attempt = make_attempt(restart, without)
        yield Planned("run", str(attempt.launch))
