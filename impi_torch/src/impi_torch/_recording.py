"""When each operation began and ended, for profilers. Nothing of it costs anything while nobody records."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ._engine import Engine, Group, Work

Record = Callable[[tuple[str, int, int]], object]


def record_works(record: Record) -> Callable[[], None]:
    """Call `record` with the name, begin and end (Unix nanoseconds) of each operation that ends from now on; returns
    what stops that. It is called under the engine's lock, from any thread: it must be short and start no operation."""
    finish, at_once = Engine._finish, Engine.at_once

    def note(name: str, begun: float) -> None:
        now = time.time_ns()
        record((name, now - round((time.monotonic() - begun) * 1e9), now))

    def noting_finish(engine: Engine, work: Work) -> list[Work]:
        note(work.name, work.begun)
        return finish(engine, work)

    def noting_at_once(engine: Engine, group: Group, *given: Any) -> Work | None:
        begun = time.monotonic()
        work = at_once(engine, group, *given)
        if work is group.done:  # an all-reduce that ended before its caller had to wait
            note("allreduce", begun)
        return work

    def stop() -> None:
        Engine._finish, Engine.at_once = finish, at_once  # type: ignore[method-assign]

    Engine._finish, Engine.at_once = noting_finish, noting_at_once  # type: ignore[method-assign, assignment]
    return stop
