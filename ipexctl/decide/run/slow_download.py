"""Files that come slowly to hosts: from where, how fast, and how the other hosts fare."""

from statistics import median

from ipexctl.model.errors import Hint, advise
from ipexctl.model.events import Progress
from ipexctl.model.run_state import RunState
from ipexctl.model.text import fold_names, format_size

_WATCHED, _LEFT = 10.0, 60.0  # seconds for which bytes have come, and that are left from which on a step is slow
_FETCH_ONCE = advise("install", "--wheels-from", "controller", text="fetched once, here, and sent to the hosts:")


def describe_slow_download(state: RunState, event: Progress) -> str | None:
    """Returns what to say of a step whose bytes come slowly to the host of this event; None where they do not."""
    step = state.hosts[event.host].at
    pace = step.measure_pace(state.at)
    if event.local or pace is None or pace[1] < _LEFT or state.at - step.moved < _WATCHED:
        return None
    same = [host for host in state.working.values() if host.at.step == event.step]
    done = [host.name for host in same if host.at.outcome]
    busy = [(host.name, host.at.measure_pace(state.at)) for host in same if not host.at.outcome]
    paces = {name: pace for name, pace in busy if pace}
    slow = {name: pace for name, pace in paces.items() if pace[1] >= _LEFT}
    fast = {name: rate for name, (rate, _) in paces.items() if name not in slow}
    rate, left = min(slow.values())
    who = f"{fold_names(slow)}: " if event.host else ""
    source = f" {event.detail}" if event.detail else ""
    parts = [f"{who}{event.step}{source} at {format_size(rate)}/s, at most {left / 60:.0f} min left"]
    if fast:
        parts.append(f"{fold_names(fast)} at {format_size(median(fast.values()))}/s")
    if done:
        parts.append(f"{fold_names(done)} had it sooner")
    text = "; ".join(parts)
    words = state.command.words if state.command else ()
    if event.host and words[:1] == ("install",) and "--wheels-from" not in words:
        hint = _FETCH_ONCE.repeat(words)
        return Hint(hint.words, f"{text}\n{hint.advice}")
    return text
