"""What ``--notify`` reports of a command, as JSON."""

from typing import Literal

from ipexctl.model.json_values import JsonRecord
from ipexctl.model.saved_runs import RunResult

NotificationEvent = Literal["start", "stall", "failure", "end"]


class Notification(JsonRecord):
    """``text`` is one line for people; ``at`` in Unix seconds of the controller. ``ranks`` are those of the run, at a
    stall those without progress, at a failure the one that failed; ``hosts`` are theirs. ``result``, ``exit`` and
    ``seconds`` (since the command began) come with "end"; ``result`` "detached" means that the run goes on."""

    event: NotificationEvent
    text: str
    at: float
    verb: str
    title: str
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    run: str | None = None
    result: RunResult | None = None
    exit: int | None = None
    seconds: float | None = None
    saved: str | None = None
