"""A run that is listened to by another story: its ranks' numbers, its end, and interruptions that reach it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.errors import Exit, Interrupted
from ipexctl.model.events import Answer, Ended, Event, Message, Output, RankEnded, RankStage, RunStarted, Started
from ipexctl.verbs.common.nested import RunMetrics, collect_metrics


def reported(status: int = 0) -> Generator[Event, None, None]:
    yield Started("run", "x.py", ("a", "b"))
    yield RunStarted("r", "a", ("a", "b"), "x.py")
    yield RankStage(0, "a", "start", 100.0)
    yield Output(0, "a", "out", b'noise\n{"samples_per_s": 3}\n[1]\n{broken\n')
    yield Output(1, "b", "out", b'{"samples_per_s": ')
    yield Output(1, "b", "out", b"4}\n")
    yield Output(1, "b", "err", b'{"samples_per_s": 9}\n')
    yield RankEnded(0, "a", 0, at=107.5)
    yield RankEnded(1, "b", status, at=108.0)
    yield Answer(RunAnswer("r", None, False))
    yield Ended("run", Exit.OK)


def heard(story: Generator[Event, None, Any]) -> tuple[list[Event], RunMetrics]:
    events: list[Event] = []
    inside = collect_metrics(story)
    while True:
        try:
            events.append(next(inside))
        except StopIteration as end:
            return events, end.value


def test_the_objects_that_ranks_print_are_kept_with_their_hosts() -> None:
    events, result = heard(reported())
    assert result == RunMetrics((("a", {"samples_per_s": 3}), ("b", {"samples_per_s": 4})), 7.5, True)
    assert not [event for event in events if isinstance(event, Started | Answer | Ended)]


def test_a_run_of_which_a_rank_failed_or_never_ended_is_not_good() -> None:
    assert not heard(reported(status=1))[1].good
    assert not heard(event for event in reported() if not isinstance(event, RankEnded))[1].good
    assert not heard(iter(()))[1].good  # type: ignore[arg-type]


def test_a_run_that_was_interrupted_says_so_by_its_exit_code() -> None:
    def stopped() -> Generator[Event, None, None]:
        yield from (event for event in reported() if not isinstance(event, Ended))
        yield Ended("run", Exit.INT)

    result = heard(stopped())[1]
    assert (result.good, result.exit) == (False, Exit.INT)


def test_an_interruption_reaches_the_run_and_what_it_then_says_is_passed_on() -> None:
    def careful() -> Generator[Event, None, None]:
        try:
            yield Message("it goes on")
        except Interrupted:
            yield Message("stopping")
            yield Message("proved")
            raise

    inside = collect_metrics(careful())
    assert next(inside) == Message("it goes on")
    assert inside.throw(Interrupted(2)) == Message("stopping")
    assert next(inside) == Message("proved")
    with pytest.raises(Interrupted):
        next(inside)
