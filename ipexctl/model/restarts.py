"""What a restart of a run lost and goes on from, in words, as screens, the card and the page show it."""

import re

from ipexctl.model.run_state import Attempt
from ipexctl.model.text import format_clock, format_size, join_names, pluralize

_STEP = re.compile(r"(?:step|checkpoint|iter|iteration)[-_=]?(\d{1,18})", re.ASCII)  # in the name of a checkpoint
_NAMES = 3  # names of hosts


def describe_restart(before: Attempt, attempt: Attempt, now: float | None = None) -> tuple[str, ...]:
    """Returns the parts of one line: the hosts that were lost, or why else the attempt before ended; who is new; the
    checkpoint that the ranks go on from; the steps that are made again. With ``now`` also how long ago that was."""
    old, new = dict.fromkeys(before.started.ranks), dict.fromkeys(attempt.started.ranks)
    lost = [(host, at) for host, (at, _) in before.lost.items() if host not in new]
    ago = f" {format_clock(now - lost[-1][1]).removeprefix('00:')} ago" if lost and now is not None else ""
    why = f"{join_names([host for host, _ in lost], _NAMES)} lost{ago}" if lost else before.over and before.over.detail
    fresh = [host for host in new if host not in old]
    parts = [why, f"spare {join_names(fresh, _NAMES)} in" if fresh else "", *_describe_checkpoint(before, attempt)]
    return tuple(part for part in parts if part)


def _describe_checkpoint(before: Attempt, attempt: Attempt) -> tuple[str, ...]:
    resumed = attempt.started.resumed
    if resumed is None:
        return ()
    numbers = _STEP.findall(resumed.name.lower())
    text, step = f"checkpoint {resumed.name}", None
    if numbers:
        step = int(numbers[-1])
        text = f"checkpoint step {step:,}"
    elif not resumed.name:
        step = 0
    if resumed.size:
        text += f" ({format_size(resumed.size)}) from {join_names(resumed.sources, _NAMES)} in {resumed.seconds:.0f} s"
    reached = max([rank.figures.get("step", 0.0) for rank in before.ranks], default=0.0)
    again = int(reached - step) if step is not None else 0
    lost = f"at least {pluralize(again, 'step', ',')} lost" if again > 0 else ""
    return text if resumed.name else "from the beginning", lost
