"""What is wrong, on which hosts, how we know, and how to fix it."""

from typing import Literal

from ipexctl.model.json_values import Record

Level = Literal["error", "warning", "info"]  # the gravest first


class Finding(Record):
    """``code`` is stable (``CPU001``); ``fix`` is a command where one exists, else a sentence.
    ``action`` is False where nothing has to be done. A ``momentary`` one was true at one
    moment, or is refuted by a run that starts."""

    code: str
    level: Level
    hosts: tuple[str, ...]
    title: str
    evidence: str = ""
    fix: str = ""
    action: bool = True
    momentary: bool = False


class Diagnosis(Record):
    """The known error that a failure was found to be. ``evidence`` is the line that shows it; ``command`` the one to
    type next, empty where the catalogue has none."""

    code: str
    title: str
    why: str
    fix: str
    evidence: str = ""
    command: str = ""
