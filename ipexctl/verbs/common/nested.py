"""A workflow inside another one: its events are passed on, but it does not begin, answer or end the command."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from ipexctl.model.events import Answer, Ended, Event, Planned, Started

T = TypeVar("T")


def is_inner(event: Event) -> bool:
    """Whether an event of a nested workflow is passed on: all but `Started`, `Planned`, `Answer` and `Ended`."""
    return not isinstance(event, Started | Planned | Answer | Ended)


def run_nested(
    workflow: Generator[Event, None, T], keep: Callable[[Event], bool] = is_inner
) -> Generator[Event, None, T]:
    """Shows every event to ``keep`` and passes on those for which it is true; returns the workflow's value.

    What is thrown in, as an interruption, reaches the workflow, which may end its work in order and say how.
    """
    thrown: BaseException | None = None
    try:
        while True:
            event = workflow.throw(thrown) if thrown else next(workflow)
            thrown = None
            if keep(event):
                try:
                    yield event
                except BaseException as error:
                    thrown = error
    except StopIteration as end:
        value: T = end.value
        return value
