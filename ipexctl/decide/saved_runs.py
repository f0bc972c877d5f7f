"""Saved runs: which of them a command is about, and which ones make room."""

from collections.abc import Callable, Sequence

from ipexctl.model.answers.saved import SavedRun
from ipexctl.model.errors import Exit
from ipexctl.model.json_values import Record
from ipexctl.model.reports import CommandReport
from ipexctl.model.saved_runs import RunResult

_IDLE = 86400.0  # seconds without a change after which a record without an end counts as abandoned


class RunFilter(Record):
    """Of saved runs: verb, result, a part of the title, and the earliest start in Unix seconds."""

    verb: str | None = None
    result: RunResult | None = None
    script: str | None = None
    since: float | None = None

    def matches(self, run: SavedRun) -> bool:
        return (
            self.verb in (None, run.verb)
            and self.result in (None, run.result)
            and (self.script is None or self.script.lower() in run.title.lower())
            and (self.since is None or run.started >= self.since)
        )


class PrunePolicy(Record):
    """Which saved runs are removed: those that ended ``older_than`` seconds ago, those of more than ``larger_than``
    bytes, and the oldest ones until all saved runs together have at most ``max_size`` bytes; without these, all.
    Never the newest ``keep``."""

    older_than: float | None = None
    larger_than: int | None = None
    max_size: int | None = None
    keep: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == PrunePolicy()


class PruneChoice(Record):
    """``removed`` go, oldest first; ``spared`` would go as well, but may not, with the reason."""

    removed: tuple[SavedRun, ...]
    spared: tuple[tuple[SavedRun, str], ...]


def classify_result(report: CommandReport) -> RunResult:
    """How a command that wrote its report ended, in one word."""
    run = report.run
    if run and run.reason in ("stopped", "limit", "lost"):
        return run.reason  # type: ignore[return-value]
    if report.exit is Exit.HUP and run and not run.reason:  # its terminal was closed, the run was left alone
        return "detached"
    if report.exit in (Exit.INT, Exit.TERM, Exit.HUP):
        return "interrupted"
    if report.exit is Exit.OK:
        return "detached" if run and not run.reason else "ok"
    return "lost" if report.exit is Exit.LOST else "failed"


def choose_runs_to_prune(
    runs: Sequence[SavedRun], policy: PrunePolicy, now: float, total: int, is_in_use: Callable[[SavedRun], bool]
) -> PruneChoice:
    """Which of ``runs`` (newest first) go; ``now`` in Unix seconds, ``total`` the bytes of all saved runs.

    ``is_in_use``: whether another process holds the record, or it is another user's. A record without an end that was
    written to within a day is spared as well: its owner may be on another machine with the same home."""
    removed: list[SavedRun] = []
    spared: list[tuple[SavedRun, str]] = []
    conditions = (policy.older_than, policy.larger_than, policy.max_size) != (None, None, None)
    for run in reversed(runs[policy.keep or 0 :]):
        goes = (
            not conditions
            or (policy.older_than is not None and now - run.changed > policy.older_than)
            or (policy.larger_than is not None and run.bytes > policy.larger_than)
            or (policy.max_size is not None and total > policy.max_size)
        )
        if not goes:
            continue
        if run.result == "running" or is_in_use(run):
            spared.append((run, "in use by another process"))
        elif run.result == "unfinished" and now - run.changed < _IDLE:
            spared.append((run, "has no end and was written to within a day"))
        else:
            removed.append(run)
            total -= run.bytes
    return PruneChoice(tuple(removed), tuple(spared))
