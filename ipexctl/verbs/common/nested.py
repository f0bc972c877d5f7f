"""A workflow inside another one: its events are passed on, but it does not begin, answer or end the command."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ipexctl.model import events as e
from ipexctl.model.errors import Hint
from ipexctl.model.events import Event, Workflow

T = TypeVar("T")


def is_passed_on(event: Event) -> bool:
    """Whether an event of a nested workflow is passed on: all but `Started`, `Planned`, `Answer` and `Ended`."""
    return not isinstance(event, e.Started | e.Planned | e.Answer | e.Ended)


def run_nested(
    workflow: Workflow[T],
    keep: Callable[[Event], bool] = is_passed_on,
    change: Callable[[Event], Event] = lambda event: event,
) -> Workflow[T]:
    """Shows every event to ``keep`` and passes on those for which it is true, as ``change`` makes them; returns the
    workflow's value. What is thrown in, as an interruption, reaches the workflow, which may end its work in order."""
    thrown: BaseException | None = None
    try:
        while True:
            event = workflow.throw(thrown) if thrown else next(workflow)
            thrown = None
            if keep(event):
                try:
                    yield change(event)
                except BaseException as error:
                    thrown = error
    except StopIteration as end:
        value: T = end.value
        return value


def advise_without_share(event: Event) -> Event:
    """Returns the event without the advice to share hosts: on busy ones nothing is measured."""
    if not (isinstance(event, e.HostFailed) and event.failure.code == "busy" and isinstance(event.failure.hint, Hint)):
        return event
    return replace(event, failure=replace(event.failure, hint=Hint(event.failure.hint.words, "wait for it")))
