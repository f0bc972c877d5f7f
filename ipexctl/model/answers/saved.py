"""The answers about saved runs: ``runs``, ``support`` and ``report``."""

from collections.abc import Mapping

from ipexctl.model.answers import AnyAnswer
from ipexctl.model.json_values import JsonRecord
from ipexctl.model.saved_runs import ExportFormat, RunResult


class SavedRun(JsonRecord):
    """A saved run, and the ``name`` by which every command finds it, also on hosts. ``cause`` says why it did not end
    well. ``started`` and ``changed`` (when it was last written to) in Unix seconds, ``seconds`` from start to end.
    ``loss`` is the last that a rank printed, that of an epoch if there is one; null if it was no number."""

    name: str
    verb: str
    title: str
    result: RunResult
    cause: str
    started: float
    changed: float
    seconds: float
    ranks: int
    hosts: int
    bytes: int
    directory: str
    exit: int | None = None
    loss: float | None = None


class RunsAnswer(AnyAnswer):
    """``runs``: saved runs, newest first; ``total`` counts all in ``directory``. ``next`` shows more of a named one."""

    directory: str
    total: int
    runs: tuple[SavedRun, ...]
    next: str | None = None


class SparedRun(JsonRecord):
    """A saved run that may not be removed now, and why."""

    name: str
    why: str


class PruneAnswer(AnyAnswer):
    """``runs --prune``: what was removed; in a dry run, what would be, and ``next``, the command that removes it.
    ``bytes`` is the space of it."""

    directory: str
    removed: tuple[SavedRun, ...]
    spared: tuple[SparedRun, ...]
    bytes: int
    dry: bool | None = None
    next: str | None = None


class ExportAnswer(AnyAnswer):
    """``runs --export``: the figures of these runs are in the file ``path``."""

    path: str
    format: ExportFormat
    runs: tuple[str, ...]
    values: int


class SupportPart(JsonRecord):
    """A file of a support archive: its size there, and how many secrets were masked in it."""

    name: str
    bytes: int
    masked: int


class LeftOutPart(JsonRecord):
    """A file of a saved run that is not in its support archive, and why."""

    name: str
    why: str


class SupportAnswer(AnyAnswer):
    """``support``: the archive ``path`` of ``bytes``, and what is in it; in a dry run nothing is written."""

    path: str | None
    parts: tuple[SupportPart, ...]
    left_out: tuple[LeftOutPart, ...]
    bytes: int | None
    dry: bool | None = None
    plan: str | None = None


class ReportAnswer(AnyAnswer):
    """``report`` of one run: the file of its page, and how large that is."""

    page: str
    bytes: int
    runs: tuple[str, ...]


class RankSpread(JsonRecord):
    """One figure of a run, of the rank with the least, the median rank, and the one with the greatest, of so many
    ``ranks`` that have it."""

    least: float
    median: float
    greatest: float
    ranks: int = 0


class ReportedRun(JsonRecord):
    """A run beside others. ``figures`` maps a figure ("pace" in steps a second, "loss" at the end …) to its spread
    between ranks, ``phases`` maps "start", "python", "torch", "rendezvous" (with the first collective), "setup" (the
    script's own work between these) and "running" to the seconds that the median rank spent in it; ``joules`` is the
    energy of the ``metered`` hosts, None where none was metered. ``earlier`` counts the runs before it in the same
    record, of which nothing is compared. ``lost_loss`` says since when the loss is no number, as does the ``result`` of
    a run that ended well otherwise; ``figures`` has no loss then. Else it is empty."""

    name: str
    run: str
    title: str
    result: str
    seconds: float
    ranks: int
    hosts: tuple[str, ...]
    figures: Mapping[str, RankSpread]
    joules: float | None
    metered: int
    earlier: int = 0
    phases: Mapping[str, float] = {}
    lost_loss: str = ""


class RunDifference(JsonRecord):
    """What differs between runs: ``values`` has one of each run, in their order. ``of``: "plan", "variable", "stack",
    "hosts"."""

    of: str
    name: str
    values: tuple[str, ...]


class FigureRatio(JsonRecord):
    """A figure of one run against the first one's: how many times it is, by the median ranks. ``apart`` is false where
    the ranges of several ranks of both meet, so that ranks differ as much as the runs do."""

    name: str
    figure: str
    ratio: float
    apart: bool


class CompareAnswer(AnyAnswer):
    """``report`` of several runs: what differed, and what came of it. ``page`` is the file, if one was written."""

    compared: tuple[ReportedRun, ...]
    differences: tuple[RunDifference, ...]
    ratios: tuple[FigureRatio, ...]
    summary: tuple[str, ...] = ()  # of two runs: why the second was slower or faster
    page: str | None = None
