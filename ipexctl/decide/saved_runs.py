"""Saved runs: which of them a command is about, which ones make room, and the figures of one, one value a row."""

from collections.abc import Callable, Iterator, Sequence

from ipexctl.model.answers.saved import SavedRun
from ipexctl.model.errors import Exit
from ipexctl.model.events import HostSample, Stamped
from ipexctl.model.json_values import Record
from ipexctl.model.reports import CommandReport
from ipexctl.model.run_state import RunState
from ipexctl.model.saved_runs import FigureRow, RunResult

_ABANDONED_AFTER = 86400.0  # seconds without a change after which a record without an end counts as abandoned


class RunFilter(Record):
    """Of saved runs: verb and result."""

    verb: str | None = None
    result: RunResult | None = None

    def matches(self, run: SavedRun) -> bool:
        return self.verb in (None, run.verb) and self.result in (None, run.result)


class PrunePolicy(Record):
    """Which saved runs go: those that ended ``older_than`` seconds ago, without it all; never the newest ``keep``."""

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


def list_figures(run: str, stamped: Stamped, state: RunState) -> Iterator[FigureRow]:
    """The figures that the last event of a run brought. ``run`` names it in each row."""
    for value in state.values:
        yield FigureRow(run, stamped.at, value.host, value.rank, value.stream, value.name, value.step, value.value)
    if isinstance(stamped.event, HostSample):
        yield from _list_sample(run, stamped.event)


def _list_sample(run: str, sample: HostSample) -> Iterator[FigureRow]:
    values: dict[str, float | None] = {
        "cpu_cores": sample.cpu,
        "memory_bytes": sample.memory,
        "swap_bytes": sample.swap,
        "disk_read_bytes": sample.read,
        "disk_written_bytes": sample.written,
        "mhz": sample.mhz,
        "celsius": sample.celsius,
        "joules": sample.joules,
        "capped": sample.capped,
        "resent": sample.resent,
        "delay_ms": sample.delay,
    }
    values |= {f"received_bytes/{name}": count for name, count in sample.received.items()}
    values |= {f"sent_bytes/{name}": count for name, count in sample.sent.items()}
    values |= {f"pressure/{name}": share for name, share in sample.pressure.items()}
    for name, value in values.items():
        if value is not None:
            yield FigureRow(run, sample.at, sample.host, None, "sample", name, None, value)
    for rank in sample.ranks:
        for name, value in (("cpu_cores", rank.cpu), ("rss_bytes", rank.rss)):
            yield FigureRow(run, sample.at, sample.host, rank.rank, "sample", name, None, value)
