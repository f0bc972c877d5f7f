"""The answer of ``tune``."""

from collections.abc import Mapping

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonRecord


class TriedLaunch(JsonRecord):
    """A launch of a study: ``values`` is what is not as in the default, which has none. ``ratio`` is its rate against
    the default's at the same time (greater is better), between ``low`` and ``high`` by the scatter of its ``runs``,
    where it has several; None where it has none, and ``why``. ``changes`` is what it changes in what is computed."""

    name: str
    values: Mapping[str, bool | int | str]
    runs: int
    rate: float | None
    ratio: float | None
    low: float | None
    high: float | None
    dropped: bool
    why: str
    changes: str


class TuneAnswer(AnyAnswer):
    """``tune``: the launches, the best one first. ``best`` was set against the default in turn, and its gain is
    ``gain`` (a share), within a factor of exp(``error``); ``recommended``: it is beyond the noise, and ``next`` starts
    it, or goes on with a study that had too few pairs of runs. ``playbook`` is the file with it."""

    script: str
    metric: str
    launches: tuple[TriedLaunch, ...]
    best: str | None
    pairs: int
    gain: float
    error: float
    recommended: bool
    verdict: str
    tried: int
    seconds: float
    budget: float
    playbook: str | None = None
    next: str | None = None
