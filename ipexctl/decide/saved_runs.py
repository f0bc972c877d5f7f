"""Saved runs: which of them a command is about, and which ones make room."""

from collections.abc import Callable, Sequence

from ipexctl.model.answers.saved import SavedRun
from ipexctl.model.errors import Exit
from ipexctl.model.json_values import Record
from ipexctl.model.reports import CommandReport
from ipexctl.model.saved_runs import RunResult

_ABANDONED_AFTER = 86400.0  # seconds without a change after which a record without an end counts as abandoned


class RunFilter(Record):
    """Of saved runs: verb and result."""

    verb: str | None = None
    result: RunResult | None = None

    def matches(self, run: SavedRun) -> bool:
        return self.verb in (None, run.verb) and self.result in (None, run.result)


class PrunePolicy(Record):
    """Which saved runs are removed: those that ended ``older_than`` seconds ago, without it all; never the newest
    ``keep``."""

    older_than: float | None = None
    keep: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == PrunePolicy()


def classify_result(report: CommandReport) -> RunResult:
    """Returns how a command that wrote its report ended, in one word."""
    run = report.run
    if run and run.reason in ("stopped", "limit", "lost"):
        return run.reason
    if report.exit is Exit.HUP and run and not run.reason:  # its terminal was closed, the run was left alone
        return "detached"
    if report.exit in (Exit.INT, Exit.TERM, Exit.HUP):
        return "interrupted"
    if report.exit is Exit.OK:
        return "detached" if run and not run.reason else "ok"
    return "lost" if report.exit is Exit.LOST else "failed"


def choose_runs_to_prune(
    runs: Sequence[SavedRun], policy: PrunePolicy, now: float, is_in_use: Callable[[SavedRun], bool]
) -> tuple[list[SavedRun], list[tuple[SavedRun, str]]]:
    """Returns which of ``runs`` (newest first) go, oldest first, and which would go as well, but may not, with the
    reason; ``now`` in Unix seconds. ``is_in_use``: another process holds the record, or it is another user's. A record
    without an end that was written to within a day is spared as well: its owner may be on another machine with the same
    home."""
    removed: list[SavedRun] = []
    spared: list[tuple[SavedRun, str]] = []
    for run in reversed(runs[policy.keep or 0 :]):
        if policy.older_than is not None and now - run.changed <= policy.older_than:
            continue
        if run.result == "running" or is_in_use(run):
            spared.append((run, "in use by another process"))
        elif run.result == "unfinished" and now - run.changed < _ABANDONED_AFTER:
            spared.append((run, "has no end and was written to within a day"))
        else:
            removed.append(run)
    return removed, spared
