"""The card at the top of a page: how the run ended, its first cause, and what to do."""

from typing import Literal

from ipexctl.model.answers.doctor import DoctorAnswer
from ipexctl.model.hints import advise, complete_hint
from ipexctl.model.json_values import Record
from ipexctl.model.page import RunPage
from ipexctl.model.reports import RankOutcome, RunOutcome
from ipexctl.model.text import pluralize
from ipexctl.show.phrases import format_duration, format_hosts, format_ranks
from ipexctl.show.run_screen import describe_rank_end
from ipexctl.show.sanitise import strip_colours

_LAST_WORDS = 30  # lines of a failed rank
_ENDS = {
    "done": "ended, not all of it well,", "rank": "ended because a rank failed,", "stopped": "was stopped",
    "lost": "lost a part of it", "limit": "reached its limit", "launch": "could not be launched:",
}  # fmt: skip


class Verdict(Record):
    """``lines`` are those of the failed rank or the stall; ``details`` are named sentences."""

    state: Literal["good", "bad", "warn"]
    headline: str
    lines: tuple[str, ...] = ()
    details: tuple[tuple[str, str], ...] = ()

    @property
    def glyph(self) -> str:
        return {"good": "✓", "bad": "✗", "warn": "●"}[self.state]


def make_verdict(page: RunPage) -> Verdict:
    """The verdict on a run that has ended, or the state of one that goes on."""
    run = page.report.run
    if run is None:
        return Verdict("warn", "nothing is known of the end of this run")
    many = f"{pluralize(len(run.ranks), 'rank')} on {pluralize(len({rank.host for rank in run.ranks}), 'host')}"
    after = format_duration(run.ended - (run.started or page.report.started))  # of a launch that failed, the command
    details = _list_details(page, run)
    stall = tuple(run.stall or ())
    if not run.reason:
        what = f"no end of the run is recorded: {many}" if page.report.finished else f"{many}, running"
        return Verdict("warn", f"{what} for {after}", stall, details)
    if run.first is not None:
        rank = next(rank for rank in run.ranks if rank.rank == run.first)
        followers = f" (first of {len(run.followers) + 1} that failed)" if run.followers else ""
        headline = f"rank {rank.rank} on {rank.host} {describe_rank_end(rank)} after {after}{followers}"
        return Verdict("bad", headline, (*_list_last_words(rank), *stall), details)
    if run.reason == "done" and all(rank.state == "ok" for rank in run.ranks):
        lost = run.unchecked or any(host.lost for host in page.hosts)  # all is done, and not by all of them
        return Verdict("warn" if lost else "good", f"{many} ended well after {after}", stall, details)
    detail = f"the run {_ENDS[run.reason]} after {after}: {run.detail}" if run.detail else ""
    return Verdict("bad", detail or f"the run {_ENDS[run.reason]} after {after}", stall, details)


def make_cluster_verdict(answer: DoctorAnswer) -> Verdict:
    """Whether the hosts are fit for a run, and what to do if they are not."""
    count = {level: sum(finding.level == level for finding in answer.findings) for level in ("error", "warning")}
    silent = [host.host for host in answer.hosts if host.facts is None]
    parts = [pluralize(number, level) for level, number in count.items() if number]
    parts += [f"{pluralize(len(silent), 'host')} could not be probed"] if silent else []
    bad = count["error"] or silent or not answer.hosts
    details = [("common", f"{answer.common_isa} on every host that answered")] if answer.common_isa else []
    details += [("advice", line) for line in answer.advice]
    details += [("no answer", format_hosts(silent))] if silent else []
    words = ", ".join(parts) or "no error, no warning"
    state: Literal["good", "bad", "warn"] = "bad" if bad else "warn" if parts else "good"
    return Verdict(state, f"{'not fit' if bad else 'fit'}: {words}", (), tuple(details))


def _list_last_words(rank: RankOutcome) -> tuple[str, ...]:
    output = strip_colours((rank.traceback or rank.tail).strip("\n") or rank.error)
    lines = output.split("\n")[-_LAST_WORDS:] if output else []
    if rank.error and rank.error not in output:
        lines.append(rank.error)
    return (*lines, *([f"kernel: {rank.kernel}"] if rank.kernel else []))


def _list_details(page: RunPage, run: RunOutcome) -> tuple[tuple[str, str], ...]:
    details: list[tuple[str, str]] = []
    if run.diagnosis:
        details += [("known as", run.diagnosis.title), ("why", run.diagnosis.why)]
        details.append(("what to do", run.diagnosis.fix))
    elif run.first is not None:
        hint = advise("logs", run.run, "--rank", str(run.first))
        details.append(("what to do", complete_hint(hint, page.report.place)))
    hosts = {rank.rank: rank.host for rank in run.ranks}
    if run.followers:
        details.append(("failed after it", _format_ranks_and_hosts(run.followers, hosts)))
    if run.stopped:
        details.append(("ended by ipexctl", _format_ranks_and_hosts(run.stopped, hosts)))
    details += [("lost", f"{host.host}: {host.lost}") for host in page.hosts if host.lost][:4]
    if page.attempts > 1:
        details.append(("started", f"{page.attempts} times"))
    if run.orphans:
        left = sum(map(len, run.orphans.values()))
        details.append(("left", f"{pluralize(left, 'process')} on {format_hosts(run.orphans)}"))
        details.append(("next", complete_hint(advise("stop", "--orphans", run.run), page.report.place)))
    elif run.clean:
        details.append(("left", f"0 processes on {pluralize(len(run.clean), 'host')}"))
    if run.unchecked:
        details.append(("not searched", format_hosts(run.unchecked)))
    return tuple((name, text) for name, text in details if text)


def _format_ranks_and_hosts(numbers: tuple[int, ...], hosts: dict[int, str]) -> str:
    return f"{format_ranks(numbers)} on {format_hosts(hosts[number] for number in numbers if number in hosts)}"
