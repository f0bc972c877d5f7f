"""A run inside another workflow: what its ranks measured (lines of JSON), and how long it took."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from ipexctl.model import events as e
from ipexctl.model.errors import Exit
from ipexctl.model.events import Event
from ipexctl.model.json_values import JsonObject
from ipexctl.verbs.common.nested import is_inner, run_nested

_KEPT = 1 << 20  # bytes of each rank's output that are looked through


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """``lines``: (host, JSON object) by rank, each rank's in order. ``seconds``: from the start of rank 0 to its end,
    None where that was not seen. ``good``: every rank ended with 0. ``exit``: the code of the run itself, as 130 when
    it was interrupted; how its ranks ended is judged from the events."""

    lines: tuple[tuple[str, JsonObject], ...]
    seconds: float | None
    good: bool
    exit: Exit = Exit.OK


def collect_metrics(run: Generator[Event, None, Any]) -> Generator[Event, None, RunMetrics]:
    """Passes on the events of a nested run; returns what its ranks measured."""
    collected = _CollectedEvents()
    yield from run_nested(run, collected.take)
    return collected.metrics()


@dataclass
class _CollectedEvents:
    """What metrics are made of."""

    output: dict[int, bytearray] = field(default_factory=dict)
    started_at: dict[int, float] = field(default_factory=dict)
    ended: dict[int, e.RankEnded] = field(default_factory=dict)
    size: int = 0
    failed: bool = False
    exit: Exit = Exit.OK

    def take(self, event: Event) -> bool:
        """True for events to pass on."""
        match event:
            case e.RunStarted(ranks=ranks):
                self.size = len(ranks)
            case e.Output(rank=rank, stream="out", data=data):
                output = self.output.setdefault(rank, bytearray())
                if len(output) < _KEPT:
                    output += data
            case e.RankStage(rank=rank, stage="start", at=at):
                self.started_at[rank] = at
            case e.RankEnded():
                self.ended[event.rank] = event
            case e.HostFailed():
                self.failed = True
            case e.Ended(exit=code):
                self.exit = code
            case _:
                pass
        return is_inner(event)

    def metrics(self) -> RunMetrics:
        all_well = 0 < self.size == len(self.ended) and all(end.status == 0 for end in self.ended.values())
        seconds = self.ended[0].at - self.started_at[0] if 0 in self.ended and 0 in self.started_at else None
        lines = tuple(
            (self.ended[rank].host if rank in self.ended else "", line)
            for rank, output in sorted(self.output.items())
            for line in _parse_objects(bytes(output))
        )
        return RunMetrics(lines, seconds, all_well and not self.failed and self.exit is Exit.OK, self.exit)


def _parse_objects(data: bytes) -> Generator[JsonObject, None, None]:
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value
