"""A workflow inside another one: its events are passed on, but it does not begin, answer or end the command. Of a run,
what its ranks measured (lines of JSON), and how long it took."""

import json
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from ipexctl.model import events as e
from ipexctl.model.errors import Exit
from ipexctl.model.events import Event
from ipexctl.model.hints import Hint
from ipexctl.model.json_values import JsonObject, Record

T = TypeVar("T")

_SEARCHED_OUTPUT = 1 << 20  # bytes of each rank's output that are looked through


def is_passed_on(event: Event) -> bool:
    """Whether an event of a nested workflow is passed on: all but `Started`, `Planned`, `Answer` and `Ended`."""
    return not isinstance(event, e.Started | e.Planned | e.Answer | e.Ended)


def run_nested(
    workflow: Generator[Event, None, T],
    keep: Callable[[Event], bool] = is_passed_on,
    change: Callable[[Event], Event] = lambda event: event,
) -> Generator[Event, None, T]:
    """Shows every event to ``keep`` and passes on those for which it is true, as ``change`` makes them; returns the
    workflow's value. What is thrown in, as an interruption, reaches the workflow, which may end its work in order and
    say how."""
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


class RunMetrics(Record):
    """``lines``: (host, JSON object) by rank, each rank's in order. ``seconds``: from the start of rank 0 to its end,
    None where that was not seen. ``good``: every rank ended with 0. ``exit``: the code of the run itself, as 130 when
    it was interrupted; how its ranks ended is judged from the events."""

    lines: tuple[tuple[str, JsonObject], ...]
    seconds: float | None
    good: bool
    exit: Exit = Exit.OK


def collect_metrics(run: Generator[Event, None, Any]) -> Generator[Event, None, RunMetrics]:
    """Passes on the events of a nested run; returns what its ranks measured."""
    output: dict[int, bytearray] = {}
    others: list[Event] = []

    def take(event: Event) -> bool:
        if isinstance(event, e.RankStage | e.RankEnded | e.RunStarted | e.HostFailed | e.Ended):
            others.append(event)
        elif isinstance(event, e.Output) and event.stream == "out":
            kept = output.setdefault(event.rank, bytearray())
            kept += event.data if len(kept) < _SEARCHED_OUTPUT else b""
        return is_passed_on(event)

    yield from run_nested(run, take, advise_without_share)
    size = max((len(event.ranks) for event in others if isinstance(event, e.RunStarted)), default=0)
    started = {event.rank: event.at for event in others if isinstance(event, e.RankStage) and event.stage == "start"}
    ended = {event.rank: event for event in others if isinstance(event, e.RankEnded)}
    exit = next((event.exit for event in reversed(others) if isinstance(event, e.Ended)), Exit.OK)
    all_well = 0 < size == len(ended) and all(end.status == 0 for end in ended.values())
    good = all_well and exit is Exit.OK and not any(isinstance(event, e.HostFailed) for event in others)
    seconds = ended[0].at - started[0] if 0 in ended and 0 in started else None
    lines = tuple(
        (ended[rank].host if rank in ended else "", line)
        for rank, data in sorted(output.items())
        for line in _parse_objects(bytes(data))
    )
    return RunMetrics(lines, seconds, good, exit)


def advise_without_share(event: Event) -> Event:
    """Returns the event without the advice to share hosts: on busy ones nothing is measured."""
    if not (isinstance(event, e.HostFailed) and event.failure.code == "busy" and isinstance(event.failure.hint, Hint)):
        return event
    hint = Hint(event.failure.hint.words, "wait for it, or stop it:")
    return replace(event, failure=replace(event.failure, hint=hint))


def _parse_objects(data: bytes) -> Generator[JsonObject, None, None]:
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith("{"):
            with suppress(ValueError, RecursionError):
                yield json.loads(line)
