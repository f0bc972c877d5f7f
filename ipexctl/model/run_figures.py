"""One value of a figure of a run, as it is exported."""

from ipexctl.model.json_values import Record


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
