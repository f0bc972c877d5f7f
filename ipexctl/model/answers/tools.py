"""The answers of ``accelerate`` and ``migrate``."""

from typing import Literal

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


class ComparedRun(JsonRecord):
    """One of the two runs of ``migrate --compare``."""

    name: str
    script: str
    venv: str | None
    good: bool
    seconds: float | None
    samples_per_s: float | None


class Comparison(JsonRecord):
    """``ratio``: how many times as fast the second run is as the first, by ``samples_per_s`` or ``seconds``."""

    host: str
    runs: tuple[ComparedRun, ...]
    ratio: float | None
    by: Literal["samples_per_s", "seconds"] | None


class MigrateAnswer(AnyAnswer):
    """``migrate``: ``text`` is the report for people."""

    file: str
    uses: tuple[ScriptUse, ...]
    text: str
    compare: Comparison | None = None
