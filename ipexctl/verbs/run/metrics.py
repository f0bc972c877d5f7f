"""A run inside another story, listened to: what its ranks measured (lines of JSON), and how long it took."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from ipexctl.model import events as e
from ipexctl.model.errors import Exit
from ipexctl.model.events import Event
from ipexctl.model.json_values import JsonObject

_KEPT = 1 << 20  # bytes of each rank's output that are looked through


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """``lines``: (host, JSON object) in the order in which ranks wrote them, by rank. ``seconds``: from the start of
    rank 0 to its end, None where that was not seen. ``good``: every rank ended well. ``exit``: what the run itself
    ended with, as 130 when it was interrupted; how its ranks ended is judged from the events."""

    lines: tuple[tuple[str, JsonObject], ...]
    seconds: float | None
    good: bool
    exit: Exit = Exit.OK


def collect_metrics(story: Generator[Event, None, Any]) -> Generator[Event, None, RunMetrics]:
    """Passes a run's events on but for those that begin, answer and end a command; what was measured."""
    heard = _Heard()
    try:
        event = next(story)
        while True:
            heard.take(event)
            if isinstance(event, e.Started | e.Planned | e.Answer | e.Ended):
                event = next(story)
                continue
            try:
                yield event
            except BaseException as interruption:  # it belongs to the run, which has to be ended and proved
                event = story.throw(interruption)
            else:
                event = next(story)
    except StopIteration:
        return heard.measured()


@dataclass
class _Heard:
    """What is kept of a run's events."""

    told: dict[int, bytearray] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    ended: dict[int, e.RankEnded] = field(default_factory=dict)
    expected: int = 0
    failed: bool = False
    exit: Exit = Exit.OK

    def take(self, event: Event) -> None:
        match event:
            case e.RunStarted(ranks=ranks):
                self.expected = len(ranks)
            case e.Output(rank=rank, stream="out", data=data):
                kept = self.told.setdefault(rank, bytearray())
                if len(kept) < _KEPT:
                    kept += data
            case e.RankStage(rank=rank, stage="start", at=at):
                self.begun[rank] = at
            case e.RankEnded():
                self.ended[event.rank] = event
            case e.HostFailed():
                self.failed = True
            case e.Ended(exit=code):
                self.exit = code
            case _:
                pass

    def measured(self) -> RunMetrics:
        well = all(end.status == 0 for end in self.ended.values())
        good = not self.failed and 0 < self.expected == len(self.ended) and well
        seconds = self.ended[0].at - self.begun[0] if 0 in self.ended and 0 in self.begun else None
        hosts = {rank: end.host for rank, end in self.ended.items()}
        lines = ((hosts.get(rank, ""), line) for rank in sorted(self.told) for line in _objects(bytes(self.told[rank])))
        return RunMetrics(tuple(lines), seconds, good and self.exit is Exit.OK, self.exit)


def _objects(data: bytes) -> Generator[JsonObject, None, None]:
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value
