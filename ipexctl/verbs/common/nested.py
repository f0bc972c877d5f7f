"""A story inside a story: its events pass, but it does not begin, answer or end the command."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from ipexctl.model.events import Answer, Ended, Event, Planned, Started

T = TypeVar("T")


def run_nested(story: Generator[Event, None, T]) -> Generator[Event, None, T]:
    """Passes the story's events on but for `Started`, `Planned`, `Answer` and `Ended`; returns its value."""
    while True:
        try:
            event = next(story)
        except StopIteration as end:
            value: T = end.value
            return value
        if isinstance(event, Started | Planned | Answer | Ended):
            continue
        try:
            yield event
        except BaseException as error:  # an interruption belongs to the story that is going on
            story.throw(error)
            raise
