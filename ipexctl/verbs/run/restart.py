"""Starting a run again when it failed: the script goes on from its own checkpoint (``$IPEXCTL_RESTART`` counts)."""

from __future__ import annotations

from collections.abc import Callable, Generator

from ipexctl.model.errors import Kind
from ipexctl.model.events import Event, HostFailed, Message
from ipexctl.verbs.run.attempt import Attempt

Make = Callable[[int, frozenset[str]], Generator[Event, None, Attempt]]


def restarting(make: Make, restarts: int, min_hosts: int | None) -> Generator[Event, None, None]:
    """Tells attempts until one ends well, is stopped, or none is left. ``make`` is given how many there were before,
    and hosts that are left out. A lost host is left out only if ``min_hosts`` others remain."""
    without: frozenset[str] = frozenset()
    for count in range(restarts + 1):
        attempt = yield from make(count, without)
        lost: set[str] = set()
        story = attempt.live()
        while True:
            try:
                event = next(story)
            except StopIteration as end:
                left_alone: bool = end.value
                break
            if isinstance(event, HostFailed) and event.failure.kind is Kind.LOST and event.failure.code == "lost":
                lost.add(event.failure.host)
            yield event
        watching = attempt.watching
        over = watching.over
        again = over is not None and over.reason in {"rank", "lost"} and watching.interrupted is None
        stays = {seat.host for seat in attempt.launch.nodes} - lost
        if lost and min_hosts is not None:
            again = again and len(stays) >= min_hosts
        if left_alone or not again or count == restarts:
            yield from attempt.answer(left_alone)
            return
        if lost and min_hosts is not None:
            without |= lost
            yield Message(f"going on without {', '.join(sorted(lost))}", "warning")
        why = over.detail if over and over.detail else "the run failed"
        yield Message(f"{why}: starting again ({count + 1} of {restarts}) from the script's own checkpoint", "warning")
