"""What ``--notify`` reports of a command, as JSON, and to whom."""

import shlex
from typing import Literal

from ipexctl.model.errors import UsageError
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


def split_command(flag: str, text: str) -> list[str]:
    """Returns the words of a command that gets notifications, split as a shell does. Raises `UsageError`."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag} takes a command: {str(error).lower()}") from None
    if not words:
        raise UsageError(f"{flag} takes a command, not an empty word")
    if "://" in words[0]:  # which may hold a secret
        raise UsageError(f"{flag} takes a command, not a URL", hint="a script of yours that runs curl -d @- URL")
    return words
