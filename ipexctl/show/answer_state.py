"""What must be remembered of a story to show its answers: whose answer it is, and what was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipexctl.model import events as e
from ipexctl.model.errors import Failure
from ipexctl.model.events import Event


class AnswerState:
    """Takes events; ``verb`` and ``plan`` are those of the story that is going on, ``dry`` whether nothing is done: in
    a play, whether that holds of all of it. ``explains``: its answer may tell of failures, with what helps; they wait
    for it (`untold`)."""

    def __init__(self) -> None:
        self.verb = ""
        self.plan = ""
        self.dry = False
        self.explains = False
        self._answered: Mapping[str, Any] | None = None

    def take(self, event: Event) -> Mapping[str, Any] | None:
        """An answer's value when it is to be shown: not again when the story around tells the same."""
        if isinstance(event, e.Started | e.Answer | e.Ended):
            self.explains = isinstance(event, e.Started) and event.verb == "doctor"
        match event:
            case e.Started(verb=verb, plan=plan):
                self.verb, self.plan = verb, plan
            case e.Planned(text=text):
                self.plan = text
            case e.Answer(value=value) if value != self._answered:
                self._answered = value
                self.dry = bool(value.get("dry")) if "play" in value else self.dry or is_dry(value)
                return value
            case _:
                pass
        return None


def untold(failures: Sequence[Failure], value: Mapping[str, Any]) -> list[Failure]:
    """The failures that this answer does not tell of as findings."""
    if not isinstance(value.get("findings"), list) or not isinstance(value.get("hosts"), list):
        return list(failures)
    named = {host for finding in value["findings"] for host in finding.get("hosts") or ()}
    told = {(one["host"], one["failure"]["what"]) for one in value["hosts"] if one.get("failure")}
    return [one for one in failures if one.host not in named or (one.host, one.what) not in told]


def is_dry(value: Mapping[str, Any]) -> bool:
    """Whether an answer is that of a dry run: its plan is all that is to be shown. A play shows its steps."""
    return "play" not in value and bool(value.get("dry") or value.get("check") or set(value) == {"plan"})
