"""The card at the top of a page: how the run ended, its first cause, and what to do."""

from typing import Literal

from ipexctl.model.errors import complete_hint
from ipexctl.model.events import STUDY_ENDS
from ipexctl.model.json_values import Record
from ipexctl.model.page import RunPage
from ipexctl.model.reports import RankOutcome, RunOutcome
from ipexctl.model.text import pluralize
from ipexctl.show import run_screen
from ipexctl.show.phrases import format_duration, format_hosts


class RunVerdict(Record):
    """``lines`` are those of the failed rank, of a stall, or of separate worlds; ``details`` are named sentences."""

    state: Literal["good", "bad", "warn"]
    headline: str
    lines: tuple[str, ...] = ()
    details: tuple[tuple[str, str], ...] = ()


def make_verdict(page: RunPage) -> RunVerdict:
    """The verdict on a run that has ended, or the state of one that goes on."""
    run = page.report.run
    if run is None:
        return RunVerdict("warn", "nothing is known of the end of this run")
    many = run_screen.count_ranks(run)
    after = format_duration(page.seconds)
    details = _list_details(page, run)
    notes = (run.lost_loss, run.separate)
    slow = run.slow_host.lines if run.slow_host else ()
    stall = (*(note.text for note in notes if note), *(run.stall or ()), *slow)
    if not run.reason:
        what = f"no end of the run is recorded: {many}" if page.report.finished else f"{many}, running"
        return RunVerdict("warn", f"{what} for {after}", stall, details)
    if run.first is not None:
        rank = next(rank for rank in run.ranks if rank.rank == run.first)
        followers = f" (first of {len(run.followers) + 1} that failed)" if run.followers else ""
        headline = f"rank {rank.rank} on {rank.host} {run_screen.describe_rank_end(rank)} after {after}{followers}"
        return RunVerdict("bad", headline, (*_list_last_words(rank), *stall), details)
    if run.good:
        # All is done, and not by all of them, or not well.
        lost = run.unchecked or run.lost_loss or run.uncaught or any(host.lost for host in page.hosts)
        headline = f"{many} ended well after {after}{run_screen.name_flaws(run)}"
        return RunVerdict("warn" if lost or run.separate else "good", headline, stall, details)
    if run.reason == "stopped" and run.detail in STUDY_ENDS:
        return RunVerdict("good", f"{many}, {run.detail} and then ended, after {after}", stall, details)
    headline = f"{run_screen.name_end(run)} after {after}" + (f": {run.detail}" if run.detail else "")
    return RunVerdict("warn" if run.reason == "stopped" else "bad", headline, stall, details)


def _list_last_words(rank: RankOutcome) -> tuple[str, ...]:
    output = run_screen.get_last_output(rank)
    lines = output.split("\n") if output else []
    above, lines = lines[: -run_screen.LAST_WORDS], lines[-run_screen.LAST_WORDS :]
    exception = rank.error.partition("\n")[0]
    if exception and exception in above and exception not in lines:
        lines[:2] = [exception, "…"]
    if not rank.traceback and rank.error not in output:
        lines.append(rank.error)
    return (*lines, *([f"kernel: {rank.kernel}"] if rank.kernel else []))


def _list_details(page: RunPage, run: RunOutcome) -> tuple[tuple[str, str], ...]:
    details: list[tuple[str, str]] = []
    if run.separate:
        details += [("why", cause) for cause in run.separate.causes]
    if run.diagnosis:
        details += [("known as", run.diagnosis.title), ("why", run.diagnosis.why)]
    words, command = run_screen.choose_next_step(run)
    if words or command:
        step = " ".join(filter(None, (words, complete_hint(command, page.report.selection_flags))))
        details.append(("what to do", step))
    if run.followers:
        details.append(("failed after it", run_screen.locate_ranks(run.followers, run)))
    if run.stopped:
        details.append(("ended by ipexctl", run_screen.locate_ranks(run.stopped, run)))
    details += [("lost", f"{host.host}: {host.lost}") for host in page.hosts if host.lost][:4]
    if page.attempts > 1:
        details.append(("started", f"{page.attempts} times"))
    if run.orphans:
        left = sum(map(len, run.orphans.values()))
        details.append(("left", f"{pluralize(left, 'process')} on {format_hosts(run.orphans)}"))
    elif run.clean:
        details.append(("left", f"0 processes on {pluralize(len(run.clean), 'host')}"))
    if run.unchecked:
        details.append(("not searched", format_hosts(run.unchecked)))
    return tuple((name, text) for name, text in details if text)
