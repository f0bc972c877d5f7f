"""Steps of hosts as plain lines: what several hosts end alike is one line, however many they are."""

from collections import Counter

from ipexctl.model import events as e
from ipexctl.model.text import pluralize
from ipexctl.show import phrases
from ipexctl.show.sanitise import escape, escape_lines

LISTED_LIMIT = 8  # hosts, or outcomes of one step, that have a line each


class StepLines:
    """Holds the ends of steps back, until all hosts have come to them or something else is to be printed."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, str], dict[str, list[str]]] = {}  # step and outcome → detail → hosts
        self.since = 0.0  # when the first of them came

    def add(self, event: e.StepEnded, at: float) -> None:
        if not self._ended:
            self.since = at
        details = self._ended.setdefault((event.step, event.outcome), {})
        key = event.detail if event.detail in details or len(details) < LISTED_LIMIT else ""
        details.setdefault(key, []).append(event.host)

    def pop(self, hosts: int, *, complete: bool = False) -> list[str]:
        """The lines of a command with so many hosts; if ``complete``, only those of steps to which all have come."""
        came = Counter(step for (step, _), details in self._ended.items() for names in details.values() for _ in names)
        lines = []
        for key in [key for key in self._ended if not complete or came[key[0]] >= hosts]:
            for detail, names in self._ended.pop(key).items():
                words = "\n  ".join(escape_lines(f": {detail}" if detail else ""))
                lines.append(f"{_format_hosts_mark(names, hosts)}{escape(key[0])}: {key[1]}{words}")
        return lines


def format_host_mark(host: str) -> str:
    """What stands before a line about one host."""
    return f"[{escape(host)}] " if host else ""


def _format_hosts_mark(names: list[str], hosts: int) -> str:
    if len(names) == 1:
        return format_host_mark(names[0])
    return f"[{pluralize(len(names), 'host') if len(names) == hosts else phrases.format_hosts(names)}] "
