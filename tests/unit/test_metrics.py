"""A run inside another story: what is known of it at its end, and interruptions that reach it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.errors import Exit, Interrupted
from ipexctl.model.events import Answer, Ended, Event, Message, Output, RankEnded, RankStage, RunStarted, Started
from ipexctl.model.run_state import RunState
from ipexctl.verbs.common.nested import fold_run
from ipexctl.verbs.migrate import _read_rate


def reported() -> Generator[Event, None, None]:
    yield Started("run", "x.py", ("a", "b"))
    yield RunStarted("r", "a", ("a", "b"), "x.py")
    yield RankStage(0, "a", "start", 100.0)
    yield Output(0, "a", "out", b'noise\n{"samples_per_s": 3}\n[1]\n{broken\n')
    yield Output(1, "b", "out", b'{"samples_per_s": ')
    yield Output(1, "b", "out", b"4}\n")
    yield RankEnded(0, "a", 0, at=107.5)
    yield RankEnded(1, "b", 0, at=108.0)
    yield Answer(RunAnswer("r", None, False))
    yield Ended("run", Exit.OK)


def heard(story: Generator[Event, None, Any]) -> tuple[list[Event], RunState]:
    events: list[Event] = []
    inside = fold_run(story, lambda: 1.0)
    while True:
        try:
            events.append(next(inside))
        except StopIteration as end:
            return events, end.value


def test_what_a_nested_run_printed_and_how_it_ended_is_known() -> None:
    events, state = heard(reported())
    assert _read_rate(state.ranks[0].tail) == 3
    assert (state.ranks[0].stages[0].own, state.ranks[0].ended and state.ranks[0].ended.at) == (100.0, 107.5)
    assert not [event for event in events if isinstance(event, Started | Answer | Ended)]


def test_an_interruption_reaches_the_run_and_what_it_then_says_is_passed_on() -> None:
    def careful() -> Generator[Event, None, None]:
        try:
            yield Message("it goes on")
        except Interrupted:
            yield Message("stopping")
            yield Message("proved")
            raise

    inside = fold_run(careful(), lambda: 1.0)
    assert next(inside) == Message("it goes on")
    assert inside.throw(Interrupted(2)) == Message("stopping")
    assert next(inside) == Message("proved")
    with pytest.raises(Interrupted):
        next(inside)
