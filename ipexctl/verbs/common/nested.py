"""A workflow inside another one: its events are passed on, but it does not begin, answer or end the command."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from ipexctl.model.events import Answer, Ended, Event, Planned, Started

T = TypeVar("T")


def run_nested(workflow: Generator[Event, None, T]) -> Generator[Event, None, T]:
    """Passes on all events but `Started`, `Planned`, `Answer` and `Ended`; returns the workflow's value."""
    return (yield from forward_events(workflow, is_inner))


def is_inner(event: Event) -> bool:
    """Whether an event of a nested workflow is passed on."""
    return not isinstance(event, Started | Planned | Answer | Ended)


def forward_events(workflow: Generator[Event, None, T], keep: Callable[[Event], bool]) -> Generator[Event, None, T]:
    """Shows every event to ``keep`` and passes on those for which it is true; returns the workflow's value.

    What is thrown in, as an interruption, reaches the workflow, which may end its work in order and say how.
    """
    try:
        event = next(workflow)
        while True:
            if not keep(event):
                event = next(workflow)
                continue
            try:
                yield event
            except BaseException as thrown:
                event = workflow.throw(thrown)
            else:
                event = next(workflow)
    except StopIteration as end:
        value: T = end.value
        return value
