"""Words about saved runs: how they ended, and what of them is exported, where to. (`answers` takes long to import.)"""

from typing import Literal

from ipexctl.model.json_values import Record

RunResult = Literal[
    "ok", "failed", "lost", "stopped", "limit", "interrupted", "detached", "running", "unfinished"
]  # "detached": it was left while it went on, "unfinished": its record has no end
ExportFormat = Literal["csv", "json"]


class FigureRow(Record):
    """``time`` in Unix seconds: the controller's for what a rank printed, the host's own for a sample. ``rank`` is
    None for a whole host. ``origin`` is "out", "err" or "sample". ``step`` is the last that the rank reported, None
    where there is none. ``value`` may be NaN or infinite."""

    run: str
    time: float
    host: str
    rank: int | None
    origin: str
    name: str
    step: int | None
    value: float


COLUMNS = ("run", "time", "host", "rank", "origin", "name", "step", "value")
