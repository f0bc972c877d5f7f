"""The answers of ``accelerate`` and ``migrate``."""

from collections.abc import Mapping

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonRecord


class AccelerateAnswer(AnyAnswer):
    """``accelerate config``: ``text`` is the configuration unless it was written to ``file``."""

    version: str
    machines: int
    processes: int
    file: str | None
    text: str | None = None


class ScriptUse(JsonRecord):
    """A place of a script that uses something of IPEX or oneCCL. ``last`` and ``gone`` are versions; ``idle`` from
    which one on it does nothing; ``notes`` what ``instead`` leaves out of a launch line."""

    line: int
    name: str
    text: str
    of: str
    last: str
    idle: str | None
    gone: str
    instead: str
    source: str
    notes: tuple[str, ...] = ()


class MigrateAnswer(AnyAnswer):
    """``migrate``: ``text`` is the report for people; ``imported`` the places in other files of the project."""

    file: str
    uses: tuple[ScriptUse, ...]
    text: str
    imported: Mapping[str, int] = {}
