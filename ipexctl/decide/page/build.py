"""`RunState` → the values of a run's page."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Literal

from ipexctl.decide.diagnosis.stack_traces import group_stacks
from ipexctl.decide.page.cluster import make_doctor_record
from ipexctl.decide.run.lines import decode_line
from ipexctl.decide.run.report import ReadErrors, judge_run
from ipexctl.decide.run.series import find_stragglers, list_points
from ipexctl.model import page
from ipexctl.model.answers.doctor import DoctorAnswer
from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.errors import Hint, complete_hint
from ipexctl.model.harmless import find_harmless
from ipexctl.model.reports import CommandReport, RankResult, SlowHost
from ipexctl.model.restarts import describe_restart
from ipexctl.model.run_state import Attempt, OutputLog, RankState, ReachedStage, RunHistory, RunState, Series, Stall
from ipexctl.model.text import format_ranks, group_pairs

_CURVES = 64  # drawn of one figure: the eye tells no more apart
_LINE_LIMIT = 2000  # characters of a line that are shown
_ORDER = ("loss", "train_loss", "pace", "samples_s", "tokens_s", "accuracy", "eval_loss", "eval_accuracy",
          "grad_norm", "lr", "epoch")  # fmt: skip
_TITLES = {
    "loss": ("loss", ""), "pace": ("pace", "it/s"), "samples_s": ("samples", "1/s"), "tokens_s": ("tokens", "1/s"),
    "eval_loss": ("evaluation loss", ""), "eval_accuracy": ("evaluation accuracy", ""),
    "grad_norm": ("gradient norm", ""), "lr": ("learning rate", ""),
    "cpu": ("CPU", "cores"), "memory": ("memory", "GiB"), "swap": ("swap", "GiB"),
    "received": ("network received", "MiB/s"), "sent": ("network sent", "MiB/s"), "disk": ("disk", "MiB/s"),
    "watts": ("power", "W"), "celsius": ("temperature", "°C"), "mhz": ("clock", "MHz"),
    "waiting": ("waiting (pressure)", "%"), "capped": ("no CPU time left (control group)", "%"),
    "delay": ("delay to the head and back", "ms"), "resent": ("TCP segments sent again", "%"),
    "rank cpu": ("CPU per rank", "cores"), "rank memory": ("memory per rank", "GiB"),
}  # fmt: skip
_SMALLER = {"GiB": "MiB", "MiB/s": "KiB/s"}
_OF_HOSTS = ("cpu", "memory", "swap", "received", "sent", "delay", "resent", "disk", "watts", "celsius", "mhz",
             "waiting", "capped")  # fmt: skip
_AMOUNTS = ("pace", "samples_s", "tokens_s")  # whose axis begins at 0
_LEVELS = ("celsius", "mhz")  # of hosts, whose axis does not
_OF_RANKS = ("rank cpu", "rank memory")
_STAGES: Mapping[str, page.SpanKind] = {
    "start": "start", "python": "python", "torch": "torch", "rendezvous": "rendezvous", "connected": "setup",
    "first collective": "rendezvous", "running": "running",
}  # fmt: skip

_STARTING = (("run",), ("play",))  # how commands begin that can be typed again
_MARKS: Mapping[RankResult, tuple[page.MarkKind, str]] = {
    "ok": ("ended", "ended well"),
    "stopped": ("stopped", "ended by ipexctl"),
    "lost": ("lost", "end not observed"),
}


def build_page(
    state: RunState, report: CommandReport, saved: page.DoctorRecord | None = None, known: ReadErrors = tuple
) -> page.RunPage:
    """The page of the last run, with all that is known so far. ``report`` is the command's; ``saved`` doctor's last
    one; ``known`` reads the known errors. Raises `ValueError` where no rank was started."""
    if not state.run.attempts:
        raise ValueError("no rank was started")
    at, answer = state.answers.get("doctor", (0.0, None))
    doctor = make_doctor_record(at, answer) if isinstance(answer, DoctorAnswer) else saved
    study = state.answers.get("tune", (0.0, None))[1]
    if report.run is None:  # a study's
        report = replace(report, run=judge_run(state, known))
    return replace(_PageBuilder(state, report).build(doctor), study=study)


class _PageBuilder:
    """Makes the page of one run. Times of it are seconds since ``begun``."""

    def __init__(self, state: RunState, report: CommandReport) -> None:
        run = state.run
        self._state, self._run, self._report = state, run, report
        self._shifts = run.shifts
        self._results = {rank.rank: rank.state for rank in report.run.ranks} if report.run else {}
        stalls = [stall for attempt in run.attempts for stall in attempt.stalls]
        self._groups = {
            id(stall): {rank: group for group in group_stacks(stall.stacks) for rank in group.ranks} for stall in stalls
        }
        self._open = group_pairs((rank, (stream, line.data)) for (rank, stream), line in state.open.items())
        self._restarts = [describe_restart(*pair) for pair in pairwise(run.attempts)]
        self._stalled = {id(stall): (frozenset(stall.event.ranks), frozenset(stall.odd)) for stall in stalls}
        first = run.attempts[0]
        begun = self._convert(first.started.head, first.started.at, first.at)
        self._begun = min(max(begun, 0.0), first.at)  # a time of somebody else's record may be any number
        paces = ((rank, list_points(series)) for rank, series in run.figures.get("pace", {}).items() if series.count)
        self._paces = {rank: median(value for _, value in points) for rank, points in paces}
        self._slow = _find_slow_ranks(run, self._paces)

    def _convert(self, host: str, own: float, seen: float) -> float:
        """A time of a host's own clock on the controller's; when it was seen, where it is not known."""
        return own + self._shifts.get(host, 0.0) if own else seen

    def build(self, doctor: page.DoctorRecord | None) -> page.RunPage:
        """``doctor`` is left out where it came after the run: the page says what was known then."""
        run, begun, outcome = self._run, self._begun, self._report.run
        last = run.attempts[-1]
        end = max(self._state.at, begun + 0.1)
        if last.over is not None:
            end = max(run.find_end(last), *(rank.ended_at for rank in last.ranks), begun + 0.1)
        count = max(len(attempt.ranks) for attempt in run.attempts)
        rows = tuple(self._build_row(rank, end) for rank in range(count))
        lost = {host: what for attempt in run.attempts for host, (_, what) in attempt.lost.items()}
        late = group_pairs((row.host, row.rank) for row in rows if row.rank in self._slow)
        hosts = tuple(
            page.HostPart(
                name, self._state.facts.get(name), lost.get(name, ""), run.joules.get(name),
                f"{format_ranks(late[name])}: {self._slow[late[name][0]]}" if name in late else "",
            )
            for name in run.hosts
        )  # fmt: skip
        odd = {host.host for host in hosts if host.lost or host.straggles}
        doctor = doctor if doctor and doctor.at <= end else None
        findings = self._report.findings or (doctor.findings if doctor else ())
        return page.RunPage(
            title=run.title,
            run=last.started.run,
            begun=begun,
            length=end - begun,
            seconds=outcome.ended - outcome.started if outcome else end - begun,
            live=not last.is_final and not self._report.finished,
            attempts=len(run.attempts),
            report=self._report,
            rows=rows,
            hosts=hosts,
            figures=(*self._build_figures(), *self._build_samples(odd)),
            logs=tuple(self._build_log(row) for row in rows if row.rank in run.outputs),
            launcher=self._list_lines(run.launcher)[0],
            plan=run.plan,
            launch=run.launch,
            doctor=doctor,
            findings=tuple(finding for finding in findings if not finding.momentary),
            watched_from=run.watched_from - begun if run.watched_from else None,
            profile=run.answer.profile if isinstance(run.answer, RunAnswer) else None,
            restarts=tuple(attempt.at - begun for attempt in run.attempts[1:]),
            again=self._format_command(),
            resumed=resumed.name if (resumed := run.attempts[0].started.resumed) else "",
            earlier=self._state.earlier,
        )

    def _format_command(self) -> str:
        """The command of the run as it was typed, with the options by which it finds its hosts from anywhere."""
        asked = [each for each in (self._state.command, self._run.asked) if each and each.words[:1] in _STARTING]
        return complete_hint(Hint(asked[0].words), self._state.selection_flags) if asked else ""

    def _build_row(self, number: int, end: float) -> page.RankRow:
        run, begun = self._run, self._begun
        spans: list[page.Span] = []
        marks: list[page.Mark] = []
        if number in run.not_finite:
            at, name, what = run.not_finite[number]
            marks.append(page.Mark(at - begun, "figure", what, name))
        host = ""
        result: RankResult = "running"
        for index, attempt in enumerate(run.attempts):
            if number >= len(attempt.ranks):
                continue
            rank = attempt.ranks[number]
            host = rank.host
            following = run.attempts[index + 1].at if index + 1 < len(run.attempts) else end
            stop, mark, result = self._classify_end(attempt, rank, following)
            if index:
                why = " · ".join((f"started again on {host}", *self._restarts[index - 1]))
                marks.append(page.Mark(attempt.at - begun, "restart", why))
            if mark is not None:
                marks.append(replace(mark, at=max(mark.at - begun, 0.0)))
            alive = min(rank.at, stop) if rank.host in attempt.lost else stop
            spans += self._list_stage_spans(rank.host, rank.stages, alive)
            if alive < stop:
                spans.append(page.Span(alive - begun, stop - begun, "lost", f"no sign of {rank.host}"))
            for stall in attempt.stalls:
                spans += self._list_stall_spans(stall, number, attempt.started.head, stop)
            if (slow := attempt.slowdown and attempt.slowdown.verdict) and slow.host == host:
                spans.append(page.Span(slow.since - begun, stop - begun, "odd", _describe_slow_host(slow)))
        loss = run.figures.get("loss", {}).get(number)
        return page.RankRow(
            number,
            host,
            self._results.get(number, result),
            tuple(spans),
            tuple(sorted(marks, key=lambda mark: mark.at)),
            pace=self._paces.get(number),
            loss=loss.last[1] if loss and loss.last else None,
            straggles=self._slow.get(number, ""),
        )

    def _classify_end(
        self, attempt: Attempt, rank: RankState, following: float
    ) -> tuple[float, page.Mark | None, RankResult]:
        """When a rank's part of an attempt ended, the mark of it, and how it did."""
        event, result = rank.ended, rank.result
        end: tuple[float, page.MarkKind, str] | None = None
        if event is not None:
            at = self._convert(event.host, event.at, rank.ended_at)
            how = f"signal {event.signal}" if event.signal else f"exit code {event.status}"
            how = how if event.abort is None else f"MPI_Abort({event.abort})"
            end = (at, *_MARKS[result]) if result != "failed" else (at, "failed", f"failed: {event.error or how}")
        if rank.host in attempt.lost and (end is None or end[1] in ("lost", "stopped")):
            at, what = attempt.lost[rank.host]
            end, result = (at, "lost", f"{rank.host} {what}"), "lost"
        if end is None:
            return self._run.find_end(attempt) if attempt.over else following, None, "running"
        return end[0], page.Mark(*end), result

    def _list_stage_spans(self, host: str, stages: Iterable[ReachedStage], stop: float) -> list[page.Span]:
        """The stages of one rank in one attempt, each to the beginning of the next."""
        times = sorted((self._convert(host, each.own, each.seen), each.stage) for each in stages)
        ends = [at for at, _ in times[1:]] + [stop]
        works = () if any(stage == "torch" for _, stage in times) else ("python",)  # without torch this is the script
        spans = []
        for (at, stage), end in zip(times, ends, strict=False):
            kind = "running" if stage in works else _STAGES.get(stage, "running")
            spans.append(page.Span(max(at - self._begun, 0.0), max(max(end, at) - self._begun, 0.0), kind, stage))
        return spans

    def _list_stall_spans(self, stall: Stall, rank: int, head: str, stop: float) -> list[page.Span]:
        """What a rank did in a stall: waited in a collective, let the others wait, straggled, or simply was silent."""
        event, (ranks, odd) = stall.event, self._stalled[id(stall)]
        if rank not in ranks:
            return []
        group = self._groups[id(stall)].get(rank)
        where = group.where if group else f"no progress for {event.seconds:.0f} s"
        kind: page.SpanKind = "stall"
        if event.kind == "stragglers":
            kind, where = "straggles", "still running when the others were done"
        elif rank in odd:
            kind, where = "odd", f"the others wait for it: {where}"
        elif group and odd:
            kind, where = "wait", f"waits: {where}"
        begin = self._convert(head, event.at, stall.at) - event.seconds
        end = min(self._convert(head, *stall.resumed), stop) if stall.resumed else stop
        return [page.Span(max(begin - self._begun, 0.0), max(end - self._begun, 0.0), kind, where)]

    def _build_log(self, row: page.RankRow) -> page.LogExcerpt:
        output = self._run.outputs[row.rank]
        lines, gap = self._list_lines(output)
        lines += tuple(self._make_log_line(self._state.at, *line) for line in self._open.get(row.rank, ()))
        return page.LogExcerpt(row.rank, row.host, lines, output.omitted, gap)

    def _list_lines(self, log: OutputLog) -> tuple[tuple[page.LogLine, ...], int]:
        """The lines of a log, and the index of the first one after the gap."""
        head, tail = (
            [self._make_log_line(at, stream, line) for at, stream, text in part for line in text[:-1].split(b"\n")]
            for part in (log.head, log.tail)
        )
        return (*head, *tail), len(head) if log.omitted else 0

    def _make_log_line(self, at: float, stream: str, line: bytes) -> page.LogLine:
        text = line.decode("utf-8", "replace")
        text = text if len(text) <= _LINE_LIMIT else text[:_LINE_LIMIT] + "…"
        return page.LogLine(at - self._begun, stream == "err", text, find_harmless(decode_line(line)) or "")

    def _make_curves(self, table: Mapping[int, Series], shifts: Mapping[int, float]) -> list[page.Curve]:
        """The curve of each rank; ``shifts`` are those of its clock."""
        return [
            page.Curve(f"rank {rank}", list_points(series, shifts.get(rank, 0.0) - self._begun), rank in self._slow)
            for rank, series in sorted(table.items())
            if series.count
        ]

    def _build_figures(self) -> list[page.Figure]:
        table = self._run.figures
        figures = []
        for name in [*(name for name in _ORDER if name in table), *(name for name in table if name not in _ORDER)]:
            if curves := self._make_curves(table[name], {}):
                title, unit = _TITLES.get(name, (name, ""))
                figures.append(page.Figure(name, title, unit, "rank", _choose_curves(curves), zero=name in _AMOUNTS))
        return figures

    def _build_samples(self, odd: Container[str]) -> list[page.Figure]:
        """Samples have the times of the head's clock. The curves of ``odd`` hosts are marked."""
        run, figures = self._run, []
        shift = self._shifts.get(run.attempts[-1].started.head, 0.0)
        for name in _OF_HOSTS:
            curves = [
                page.Curve(host, list_points(series, shift - self._begun), host in odd)
                for host in run.hosts
                if (series := run.samples.get(host, {}).get(name)) and series.count > 1
            ]
            if any(value for curve in curves for _, value in curve.points):
                figures.append(_make_usage_figure(name, "host", curves))
        for name in _OF_RANKS:
            table = run.rank_samples.get(name, {})
            if curves := self._make_curves(table, dict.fromkeys(table, shift)):
                figures.append(_make_usage_figure(name, "rank", curves))
        return figures


def _describe_slow_host(slow: SlowHost) -> str:
    return f"makes the run slow: {slow.cause}" if slow.cause else "makes the run slow"


def _find_slow_ranks(run: RunHistory, paces: Mapping[int, float]) -> dict[int, str]:
    """Ranks that are slower than the others, and why they are called so."""
    slow = {rank: f"pace {share:.0%} of the median" for rank, share in find_stragglers([*paces.items()]).items()}
    for stall in (stall for attempt in run.attempts for stall in attempt.stalls):
        if stall.event.kind == "stragglers":
            slow |= dict.fromkeys(stall.event.ranks, "still running when others were done")
        else:
            slow |= dict.fromkeys(stall.odd, "others waited for it")
    for host in (attempt.slow_host for attempt in run.attempts if attempt.slow_host):
        ranks = run.attempts[-1].ranks
        slow |= {rank.rank: _describe_slow_host(host) for rank in ranks if rank.host == host.host}
    return slow


def _make_usage_figure(name: str, by: Literal["rank", "host"], curves: list[page.Curve]) -> page.Figure:
    """The chart of something that is used, in the next smaller unit where it is less than one everywhere."""
    title, unit = _TITLES[name]
    if unit in _SMALLER and max(value for curve in curves for _, value in curve.points) < 1:
        unit = _SMALLER[unit]
        curves = [replace(c, points=tuple((at, 1024 * value) for at, value in c.points)) for c in curves]
    return page.Figure(name, title, unit, by, _choose_curves(curves), zero=name not in _LEVELS)


def _choose_curves(curves: list[page.Curve]) -> tuple[page.Curve, ...]:
    if len(curves) <= _CURVES:
        return tuple(curves)
    marked = [curve for curve in curves if curve.marked][: _CURVES // 2]
    others = [curve for curve in curves if not curve.marked]
    room = _CURVES - len(marked)
    chosen = {id(curve) for curve in [*marked, *(others[at * len(others) // room] for at in range(room))]}
    return tuple(curve for curve in curves if id(curve) in chosen)
