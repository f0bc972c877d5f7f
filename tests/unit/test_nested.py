"""A workflow inside another one: what of it is passed on, and interruptions that reach it."""

from collections.abc import Generator

import pytest

from ipexctl.model.errors import Exit, Interrupted
from ipexctl.model.events import Ended, Event, Message, Started
from ipexctl.verbs.common.nested import run_nested


def test_a_nested_workflow_neither_begins_nor_ends_the_command() -> None:
    def nested() -> Generator[Event, None, int]:
        yield Started("run", "x.py", ("a", "b"))
        yield Message("it goes on")
        yield Ended("run", Exit.OK)
        return 3

    def outer() -> Generator[Event, None, None]:
        value = yield from run_nested(nested())
        yield Message(f"returned {value}")

    assert [*outer()] == [Message("it goes on"), Message("returned 3")]


def test_an_interruption_reaches_the_run_and_what_it_then_says_is_passed_on() -> None:
    def careful() -> Generator[Event, None, None]:
        try:
            yield Message("it goes on")
        except Interrupted:
            yield Message("stopping")
            yield Message("proved")
            raise

    inside = run_nested(careful())
    assert next(inside) == Message("it goes on")
    assert inside.throw(Interrupted(2)) == Message("stopping")
    assert next(inside) == Message("proved")
    with pytest.raises(Interrupted):
        next(inside)
