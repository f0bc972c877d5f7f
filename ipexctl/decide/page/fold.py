"""Events of a run → the values of its page. Memory grows with hosts and ranks, not with the length of the run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import isfinite
from statistics import median
from typing import Literal

from ipexctl.decide.diagnosis.known_errors import KnownErrors
from ipexctl.decide.diagnosis.stack_traces import group_stacks
from ipexctl.decide.page.cluster import make_doctor_record
from ipexctl.decide.page.logs import FindHarmless, RankOutput
from ipexctl.decide.page.series import Series, find_stragglers, thin_points
from ipexctl.decide.reports import Folding
from ipexctl.model import events as e
from ipexctl.model.answers.doctor import DoctorAnswer
from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.bench_lines import reword_output
from ipexctl.model.errors import Kind
from ipexctl.model.events import Stamped
from ipexctl.model.facts import Facts
from ipexctl.model.launch import PlannedLaunch
from ipexctl.model.page import (
    Curve,
    DoctorRecord,
    Figure,
    HostPart,
    Mark,
    MarkKind,
    RankLog,
    RankRow,
    RunPage,
    Span,
    SpanKind,
)
from ipexctl.model.profile import Profile
from ipexctl.model.reports import CommandReport, RankState

ReadFigures = Callable[[str], Mapping[str, float]]

_LOGS = 5 << 20  # bytes of output of all ranks together
_LEAST_LOG = 8 << 10  # of one rank, however many they are
_POINTS = 40_000  # columns of all curves of one figure together
_CURVES = 64  # drawn of one figure: the eye tells no more apart
_FORMER = 8  # runs before the last one that are drawn
_FORMER_LOGS = 128 << 10  # bytes of output of all ranks of such a run
_FORMER_CURVES, _FORMER_COLUMNS = 16, 2000  # of one of its figures, and columns of all of these together
_SEARCHED = 2000  # lines that are searched for figures in a second, of all ranks together; about 2 % of a core
_LONGEST = 600  # characters of a line with figures
_PACE = 1.0  # seconds at least between two steps that a pace is computed from
_NAMES = 12  # figures of a script, of which each is a chart
_ORDER = ("loss", "pace", "samples_s", "tokens_s", "accuracy", "grad_norm", "lr", "epoch")
_TITLES = {
    "loss": ("loss", ""), "pace": ("pace", "it/s"), "samples_s": ("samples", "1/s"), "tokens_s": ("tokens", "1/s"),
    "grad_norm": ("gradient norm", ""), "lr": ("learning rate", ""),
    "cpu": ("CPU", "cores"), "memory": ("memory", "GiB"), "swap": ("swap", "GiB"),
    "received": ("network received", "MiB/s"), "sent": ("network sent", "MiB/s"), "disk": ("disk", "MiB/s"),
    "watts": ("power", "W"), "celsius": ("temperature", "°C"), "mhz": ("clock", "MHz"),
    "waiting": ("waiting (pressure)", "%"), "rank cpu": ("CPU per rank", "cores"),
    "rank memory": ("memory per rank", "GiB"),
}  # fmt: skip
_SMALLER = {"GiB": "MiB", "MiB/s": "KiB/s"}
_OF_HOSTS = ("cpu", "memory", "swap", "received", "sent", "disk", "watts", "celsius", "mhz", "waiting")
_AMOUNTS = ("pace", "samples_s", "tokens_s")  # whose axis begins at 0
_LEVELS = ("celsius", "mhz")  # of hosts, whose axis does not
_OF_RANKS = ("rank cpu", "rank memory")
_STAGES: Mapping[str, SpanKind] = {
    "start": "start", "python": "python", "torch": "torch", "rendezvous": "rendezvous", "connected": "rendezvous",
    "first collective": "rendezvous", "running": "running",
}  # fmt: skip
_SAME_CLOCK = 2.0  # seconds: a host's clock that differs by less needs no correction


class _Attempt:
    """One start of the run: its ranks' hosts, and what happened to them."""

    def __init__(self, event: e.RunStarted, received: float) -> None:
        self.hosts, self.event, self.received = event.ranks, event, received
        self.stages: dict[int, list[tuple[str, float, float, str]]] = {}  # rank → host, its time, stamp, stage
        self.ends: dict[int, tuple[float, e.RankEnded]] = {}
        self.stalls: list[_Stall] = []
        self.lost: dict[str, tuple[float, str]] = {}
        self.over: tuple[float, e.RunEnded] | None = None


class _Stall:
    """A stall from its last progress on. Times are its host's own, 0 where not known, and when they were received."""

    def __init__(self, event: e.Stalled, received: float) -> None:
        self.event, self.received = event, received
        self.end: tuple[float, float] | None = None
        self.stacks: list[e.RankStack] = []
        self.compared = False  # later stacks are of `logs --stacks`
        self.odd: tuple[int, ...] = ()


class PageBuilder:
    """Takes events as a sink does; `build_page` makes the page of all so far, also of a run that goes on.

    A record may have several runs, those of a playbook: the page is that of the last one, the others are its
    ``former``. ``read_figures`` reads a line's figures, ``find_harmless`` gives the code of a line that is known to be
    harmless, ``known`` the catalogue of errors."""

    def __init__(
        self,
        read_figures: ReadFigures = lambda _: {},
        find_harmless: FindHarmless = lambda _: None,
        known: Callable[[], KnownErrors] = tuple,
    ) -> None:
        self._read_figures, self._find_harmless = read_figures, find_harmless
        self._reports = Folding(known)  # for runs that another one follows
        self._former: list[RunPage] = []
        self._dropped = 0
        self._facts: dict[str, Facts] = {}
        self._doctor: DoctorRecord | None = None
        self._title = self._next_title = ""
        self._planned: tuple[str, PlannedLaunch | None] = "", None  # of the next start
        self._at = 0.0
        self._caught_up = False  # a watcher that came later has read what was before
        self._begin_run()

    def _begin_run(self) -> None:
        """Forgets what happened to the run; hosts stay."""
        self._plan: str = ""
        self._launch: PlannedLaunch | None = None
        self._attempts: list[_Attempt] = []
        self._outputs: dict[int, RankOutput] = {}
        self._launcher = RankOutput(64 << 10)
        self._searched: dict[int, tuple[int, int]] = {}  # rank → a second, and how many lines may be searched in it
        self._unfinished: dict[tuple[int, str], bytes] = {}
        self._figures: dict[str, dict[int, Series]] = {}
        self._steps: dict[int, tuple[float, float]] = {}  # rank → time and number of the step its pace is computed from
        self._printed_pace: set[int] = set()
        self._figure_marks: dict[int, list[Mark]] = {}
        self._samples: dict[str, dict[str, Series]] = {}  # host → figure
        self._rank_samples: dict[str, dict[int, tuple[str, Series]]] = {}  # figure → rank → its host
        self._joules: dict[str, float] = {}
        self._file_figures: dict[str, dict[str, Series]] = {}
        self._delays: dict[str, float] = {}  # host → least of (stamp − the host's own time)
        self._profile: Profile | None = None
        self._over = False  # the next start is that of another run
        self._late_from = 0.0  # of a watcher that came later
        self._ranks = self._hosts = 1

    @property
    def started(self) -> bool:
        """Whether ranks were started: without any there is no page."""
        return bool(self._attempts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of all attempts."""
        return tuple(dict.fromkeys(host for attempt in self._attempts for host in attempt.hosts))

    def handle_event(self, stamped: Stamped) -> None:
        event, at = stamped.event, stamped.at
        self._at = max(at, self._at)
        attempt = self._attempts[-1] if self._attempts else None
        match event:
            case e.Output():
                self._add_output(at, event)
            case e.LauncherOutput(stream=stream, data=data):
                self._launcher.add_piece(at, stream, data)
            case e.HostSample():
                self._add_sample(at, event)
            case e.FiguresRead():
                self._add_file_figures(event)
            case e.Started(verb=verb, title=title):
                self._next_title = title if verb in ("run", "attach") or not self._next_title else self._next_title
                self._over = self._over or (verb == "run" and bool(self._attempts))
            case e.Planned(verb="run", text=text):
                self._planned = text, event.launch
            case e.CaughtUp():
                self._caught_up = True
            case e.FactsRead(host=host, facts=facts):
                self._facts[host] = facts
            case e.Answer(value=DoctorAnswer() as answer):
                self._doctor = make_doctor_record(at, answer)
            case e.Answer(value=RunAnswer(profile=Profile() as profile)):
                self._profile = profile
            case e.RunStarted():
                if self._over or (attempt and attempt.over and attempt.over[1].reason == "done"):
                    self._close_run()  # a playbook, or a benchmark, goes on to its next one
                    self._begin_run()
                if event.title and not self._caught_up:
                    self._late_from = at
                self._attempts.append(_Attempt(event, at))
                self._title = event.title or self._next_title
                self._plan, self._launch = self._planned
                self._ranks = max(self._ranks, len(event.ranks))
                self._hosts = max(self._hosts, len(set(event.ranks)))
                self._steps.clear()
            case _ if attempt is None:
                pass
            case e.RankStage(rank=rank, host=host, stage=stage):
                attempt.stages.setdefault(rank, []).append((host, event.at, at, stage))
                self._record_delay(host, at, event.at)
            case e.RankEnded(rank=rank):
                known = attempt.ends.get(rank)
                if known is None or (known[1].cause == "lost" and event.cause != "lost"):
                    attempt.ends[rank] = (at, event)
                self._record_delay(event.host, at, event.at)
            case e.Stalled():
                attempt.stalls.append(_Stall(event, at))
                self._record_delay(attempt.event.head, at, event.at)
            case e.RankStack() if attempt.stalls and not attempt.stalls[-1].compared:
                attempt.stalls[-1].stacks.append(event)
            case e.StallCompared(ranks=ranks) if attempt.stalls:
                attempt.stalls[-1].odd, attempt.stalls[-1].compared = ranks, True
            case e.Resumed() if attempt.stalls:
                attempt.stalls[-1].end = event.at, at
                self._record_delay(attempt.event.head, at, event.at)
            case e.HostFailed(failure=failure) if failure.kind is Kind.LOST and failure.host in attempt.hosts:
                attempt.lost.setdefault(failure.host, (at, failure.what))
            case e.RunEnded():
                attempt.over = (at, event)
            case _:
                pass
        self._reports.handle_event(stamped)

    def _close_run(self) -> None:
        """Puts the page of the run that another one follows aside, in less space."""
        room = max(_FORMER_LOGS // self._ranks, 1 << 10)
        self._outputs = {rank: output.shrink(room) for rank, output in self._outputs.items()}
        page = self.build_page(replace(self._reports.report(), finished=True))
        figures = tuple(replace(figure, curves=_thin_curves(figure.curves)) for figure in page.figures)
        self._former.append(replace(page, figures=figures, former=(), dropped=0))
        self._dropped += len(self._former) > _FORMER
        self._former = self._former[-_FORMER:]

    # what grows with the run ---------------------------------------------------------------------------------------

    def _add_output(self, at: float, event: e.Output) -> None:
        output = self._outputs.get(event.rank)
        if output is None:
            output = self._outputs[event.rank] = RankOutput(max(_LOGS // self._ranks, _LEAST_LOG))
        output.add_piece(at, event.stream, reword_output(event).data)
        key, data = (event.rank, event.stream), event.data
        room = self._count_lines_left(at, event.rank)
        if not room:  # only where the next line begins is of interest
            self._unfinished[key] = b"" if data.endswith(b"\n") else data[data.rfind(b"\n") + 1 :][-_LONGEST:]
            return
        *lines, unfinished = (self._unfinished.get(key, b"") + data).replace(b"\r", b"\n").split(b"\n")
        self._unfinished[key] = unfinished[-_LONGEST:]
        self._searched[event.rank] = (int(at), room - min(len(lines), room))
        for line in lines[-room:]:
            if len(line) <= _LONGEST:
                self._add_line(at, event.rank, line.decode("utf-8", "replace"))

    def _count_lines_left(self, at: float, rank: int) -> int:
        """How many lines of a rank are still searched in this second: ranks that write without end cost no more. Lines
        that were written before they were watched have no time that a figure could be drawn at."""
        if self._late_from and not self._caught_up:
            return 0
        second, room = self._searched.get(rank, (0, 0))
        return room if second == int(at) else max(_SEARCHED // self._ranks, 4)

    def _add_line(self, at: float, rank: int, line: str) -> None:
        figures = self._read_figures(line)
        if not figures:
            return
        if "pace" in figures:
            self._printed_pace.add(rank)
        elif "step" in figures and rank not in self._printed_pace:
            before_at, before = self._steps.setdefault(rank, (at, figures["step"]))
            if figures["step"] < before:
                self._steps[rank] = (at, figures["step"])
            elif at - before_at >= _PACE and figures["step"] > before:
                self._add_figure("pace", rank, at, (figures["step"] - before) / (at - before_at))
                self._steps[rank] = (at, figures["step"])
        for name, value in figures.items():
            if name not in ("step", "steps"):
                self._add_figure(name, rank, at, value)

    def _add_figure(self, name: str, rank: int, at: float, value: float) -> None:
        if name not in self._figures and len(self._figures) >= _NAMES:
            return
        if not isfinite(value):
            marks = self._figure_marks.setdefault(rank, [])
            if not marks:
                marks.append(Mark(at, "figure", f"{name} is {value}"))
            return
        self._find_series(self._figures.setdefault(name, {}), rank, self._ranks).add_point(at, value)

    def _find_series(self, table: "dict[int, Series]", key: int, members: int) -> Series:
        if key not in table:
            table[key] = Series(_count_columns(members))
        return table[key]

    def _add_sample(self, at: float, sample: e.HostSample) -> None:
        self._record_delay(sample.host, at, sample.at)
        seconds = sample.seconds or 1.0
        values = {
            "cpu": sample.cpu,
            "memory": sample.memory / (1 << 30),
            "swap": sample.swap / (1 << 30),
            "received": _sum_network(sample.received) / seconds / (1 << 20),
            "sent": _sum_network(sample.sent) / seconds / (1 << 20),
            "disk": (sample.read + sample.written) / seconds / (1 << 20),
            "waiting": 100 * max(sample.pressure.values(), default=0.0),
        }
        if sample.joules is not None:
            self._joules[sample.host] = self._joules.get(sample.host, 0.0) + sample.joules
            values["watts"] = sample.joules / seconds
        values |= {name: value for name in ("celsius", "mhz") if (value := getattr(sample, name)) is not None}
        table = self._samples.setdefault(sample.host, {})
        for name, value in values.items():
            if name not in table:
                table[name] = Series(_count_columns(self._hosts))
            table[name].add_point(sample.at, value)
        for rank in sample.ranks:
            for name, value in (("rank cpu", rank.cpu), ("rank memory", rank.rss / (1 << 30))):
                of_ranks = self._rank_samples.setdefault(name, {})
                if rank.rank not in of_ranks:
                    of_ranks[rank.rank] = (sample.host, Series(_count_columns(self._ranks)))
                of_ranks[rank.rank][1].add_point(sample.at, value)

    def _add_file_figures(self, event: e.FiguresRead) -> None:
        if event.name not in self._file_figures and len(self._file_figures) >= _NAMES:
            return
        who = f"rank {event.rank}" if event.rank >= 0 else event.host
        of_name = self._file_figures.setdefault(event.name, {})
        if who not in of_name and len(of_name) >= _CURVES:
            return
        series = of_name.setdefault(who, Series(_count_columns(self._ranks)))
        for step, value in event.points:
            if value is not None:
                series.add_point(step, value)

    def _record_delay(self, host: str, received: float, at: float) -> None:
        if at:
            self._delays[host] = min(self._delays.get(host, received - at), received - at)

    # the page ------------------------------------------------------------------------------------------------------

    def build_page(self, report: CommandReport, saved: DoctorRecord | None = None) -> RunPage:
        """The page of all events so far. ``report`` is theirs; ``saved`` what doctor reported of these hosts before the
        run, if the run has no such report of its own. Raises `ValueError` where no rank was started."""
        if not self._attempts:
            raise ValueError("no rank was started")
        shifts = self._estimate_clock_shifts()
        first, last = self._attempts[0], self._attempts[-1]
        begun = min(
            first.event.at + shifts.get(first.event.head, 0.0) if first.event.at else first.received, first.received
        )
        live = last.over is None and not report.finished
        end = max(self._at, begun + 0.1)
        if last.over is not None:
            end = max(last.over[0], *(received for received, _ in last.ends.values()), begun + 0.1)
        paces = self._measure_paces()
        slow = {rank: f"pace {share:.0%} of the median" for rank, share in find_stragglers(paces).items()}
        for stall in (stall for attempt in self._attempts for stall in attempt.stalls):
            late = stall.event.ranks if stall.event.kind == "stragglers" else stall.odd
            why = "still running when others were done" if stall.event.kind == "stragglers" else "others waited for it"
            slow.update(dict.fromkeys(late, why))
        numbers = range(max(len(attempt.hosts) for attempt in self._attempts))
        waits = self._list_collective_waits(begun, end, shifts)
        rows = tuple(self._build_row(rank, begun, end, shifts, report, slow, waits) for rank in numbers)
        return RunPage(
            title=self._title,
            run=last.event.run,
            command=last.event.command,
            begun=begun,
            length=end - begun,
            live=live,
            attempts=len(self._attempts),
            report=report,
            rows=tuple(replace(row, pace=dict(paces).get(row.rank)) for row in rows),
            hosts=self._build_hosts(rows, slow),
            figures=(*self._build_figures(begun, slow), *self._build_samples(begun, shifts, slow)),
            logs=tuple(self._build_log(row, begun) for row in rows if row.rank in self._outputs),
            launcher=self._launcher.list_lines(begun, lambda _: None)[0],
            plan=self._plan,
            launch=self._launch,
            watched_from=self._late_from - begun if self._late_from else None,
            doctor=self._doctor or saved,
            profile=self._profile,
            former=tuple(replace(page, doctor=page.doctor or saved) for page in self._former),
            dropped=self._dropped,
            restarts=tuple(attempt.received - begun for attempt in self._attempts[1:]),
        )

    def _list_collective_waits(self, begun: float, end: float, shifts: Mapping[str, float]) -> dict[int, list[Span]]:
        """The waits of profiled steps by rank. The profile's clock is that of the host without an offset."""
        profile, spans = self._profile, dict[int, list[Span]]()
        hosts = [host for host, offset in profile.offsets.items() if not offset] if profile else []
        shift = shifts.get(hosts[0], 0.0) if hosts else 0.0
        for wait in profile.waits if profile else ():
            start, stop = wait.at + shift - begun, wait.at + shift - begun + wait.seconds
            text = f"waits in {wait.name} for rank {wait.late}"
            if start >= 0 and stop <= end - begun:
                spans.setdefault(wait.rank, []).append(Span(start, stop, "collective", text))
        return spans

    def _measure_paces(self) -> list[tuple[int, float]]:
        """Each rank's median pace."""
        table = self._figures.get("pace", {})
        return [(rank, median(value for _, value in series.points())) for rank, series in table.items() if series.count]

    def _estimate_clock_shifts(self) -> dict[str, float]:
        """Host → seconds to add to its own time to get the controller's, from the least delay of its messages. Of
        events that were read long after they happened only one thing is known: none is from the future."""
        late = any(attempt.event.title for attempt in self._attempts)
        if late:
            return dict.fromkeys(self._delays, min([0.0, *self._delays.values()]))
        return {host: delay if abs(delay) >= _SAME_CLOCK else 0.0 for host, delay in self._delays.items()}

    def _build_row(
        self, rank: int, begun: float, end: float, shifts: Mapping[str, float], report: CommandReport,
        slow: Mapping[int, str], waits: Mapping[int, list[Span]],
    ) -> RankRow:  # fmt: skip
        spans: list[Span] = []
        marks: list[Mark] = [replace(mark, at=mark.at - begun) for mark in self._figure_marks.get(rank, ())]
        host = ""
        state: RankState = "running"
        for number, attempt in enumerate(self._attempts):
            if rank >= len(attempt.hosts):
                continue
            host = attempt.hosts[rank]
            following = self._attempts[number + 1].received if number + 1 < len(self._attempts) else end
            stop, mark, state = _classify_end(attempt, rank, following, shifts)
            if number:
                marks.append(Mark(attempt.received - begun, "restart", f"started again on {host}"))
            if mark is not None:
                marks.append(replace(mark, at=max(mark.at - begun, 0.0)))
            spans += _list_stage_spans(attempt.stages.get(rank, ()), begun, stop, shifts)
            shift = shifts.get(attempt.event.head, 0.0)
            spans += [span for stall in attempt.stalls for span in _list_stall_spans(stall, rank, begun, stop, shift)]
        spans += waits.get(rank, ())
        outcome: dict[int, RankState] = {each.rank: each.state for each in report.run.ranks} if report.run else {}
        series = self._figures.get("loss", {}).get(rank)
        loss = series.last[1] if series and series.last else None
        marks.sort(key=lambda mark: mark.at)
        state = outcome.get(rank, state)
        return RankRow(rank, host, state, tuple(spans), tuple(marks), loss=loss, straggles=slow.get(rank, ""))

    def _build_hosts(self, rows: Iterable[RankRow], slow: Mapping[int, str]) -> tuple[HostPart, ...]:
        lost = {host: what for attempt in self._attempts for host, (_, what) in attempt.lost.items()}
        late: dict[str, list[int]] = {}
        for row in rows:
            if row.rank in slow:
                late.setdefault(row.host, []).append(row.rank)
        return tuple(
            HostPart(
                name, self._facts.get(name), lost.get(name, ""), self._joules.get(name),
                f"rank {', '.join(map(str, late[name][:4]))} straggles" if name in late else "",
            )
            for name in self.hosts
        )  # fmt: skip

    def _build_log(self, row: RankRow, begun: float) -> RankLog:
        output = self._outputs[row.rank]
        lines, gap = output.list_lines(begun, self._find_harmless)
        return RankLog(row.rank, row.host, lines, output.omitted, gap)

    def _build_figures(self, begun: float, slow: Mapping[int, str]) -> list[Figure]:
        names = [*(name for name in _ORDER if name in self._figures), *(n for n in self._figures if n not in _ORDER)]
        figures = []
        for name in names:
            curves = [
                Curve(f"rank {rank}", series.points(-begun), rank in slow)
                for rank, series in sorted(self._figures[name].items())
                if series.count > 1
            ]
            if curves:
                title, unit = _TITLES.get(name, (name, ""))
                figures.append(Figure(name, title, unit, "rank", _choose_curves(curves), zero=name in _AMOUNTS))
        for name, of_name in self._file_figures.items():
            curves = [Curve(who, series.points()) for who, series in of_name.items() if series.count > 1]
            if curves:
                figures.append(Figure(f"file {name}", name, "", "rank", tuple(curves), steps=True))
        return figures

    def _build_samples(self, begun: float, shifts: Mapping[str, float], slow: Mapping[int, str]) -> list[Figure]:
        figures = []
        for name in _OF_HOSTS:
            curves = [
                Curve(host, table[name].points(shifts.get(host, 0.0) - begun))
                for host, table in self._samples.items()
                if name in table and table[name].count > 1
            ]
            if curves and any(value for curve in curves for _, value in curve.points):
                figures.append(_make_usage_figure(name, "host", curves))
        for name in _OF_RANKS:
            of_ranks = [
                Curve(f"rank {rank}", series.points(shifts.get(host, 0.0) - begun), rank in slow)
                for rank, (host, series) in sorted(self._rank_samples.get(name, {}).items())
                if series.count > 1
            ]
            if of_ranks:
                figures.append(_make_usage_figure(name, "rank", of_ranks))
        return figures


def _sum_network(interfaces: Mapping[str, int]) -> int:
    """Bytes of all interfaces but loopback, which is no network."""
    return sum(size for name, size in interfaces.items() if name != "lo")


def _make_usage_figure(name: str, by: Literal["rank", "host"], curves: list[Curve]) -> Figure:
    """The chart of something that is used, in the next smaller unit where it is less than one everywhere."""
    title, unit = _TITLES[name]
    if unit in _SMALLER and max(value for curve in curves for _, value in curve.points) < 1:
        unit = _SMALLER[unit]
        curves = [replace(c, points=tuple((at, 1024 * value) for at, value in c.points)) for c in curves]
    return Figure(name, title, unit, by, _choose_curves(curves), zero=name not in _LEVELS)


def _count_columns(members: int) -> int:
    """Columns of each of so many curves."""
    return min(max(_POINTS // max(members, 1), 60), 500)


def _choose_curves(curves: list[Curve], most: int = _CURVES) -> tuple[Curve, ...]:
    """At most so many of them: the marked ones, and others at even distances."""
    if len(curves) <= most:
        return tuple(curves)
    marked = [curve for curve in curves if curve.marked][: most // 2]
    others = [curve for curve in curves if not curve.marked]
    room = most - len(marked)
    chosen = {id(curve) for curve in [*marked, *(others[at * len(others) // room] for at in range(room))]}
    return tuple(curve for curve in curves if id(curve) in chosen)


def _thin_curves(curves: tuple[Curve, ...]) -> tuple[Curve, ...]:
    """Less of a figure, for a run that another one follows."""
    chosen = _choose_curves([*curves], _FORMER_CURVES)
    room = _FORMER_COLUMNS // max(len(chosen), 1)
    return tuple(replace(curve, points=thin_points(curve.points, room)) for curve in chosen)


def _classify_end(
    attempt: _Attempt, rank: int, following: float, shifts: Mapping[str, float]
) -> tuple[float, Mark | None, RankState]:
    """When a rank's part of an attempt ended, the mark of it, and the rank's state."""
    host = attempt.hosts[rank]
    end: tuple[float, MarkKind, str, RankState] | None = None
    if rank in attempt.ends:
        received, event = attempt.ends[rank]
        at = event.at + shifts.get(event.host, 0.0) if event.at else received
        if event.cause == "lost":
            end = (at, "lost", "nobody saw its end", "lost")
        elif event.cause == "stopped":
            end = (at, "stopped", "ended by ipexctl", "stopped")
        elif event.status == 0 and not event.signal:
            end = (at, "ended", "ended well", "ok")
        else:
            how = f"signal {event.signal}" if event.signal else f"exit code {event.status}"
            end = (at, "failed", f"failed: {event.error or how}", "failed")
    if host in attempt.lost and (end is None or end[1] in ("lost", "stopped")):
        at, what = attempt.lost[host]
        end = (at, "lost", f"{host} {what}", "lost")
    if end is None:
        over = attempt.over[0] if attempt.over else following
        return over, None, "running"
    return end[0], Mark(end[0], end[1], end[2]), end[3]


def _list_stage_spans(
    stages: Iterable[tuple[str, float, float, str]], begun: float, stop: float, shifts: Mapping[str, float]
) -> list[Span]:
    """The stages of one rank in one attempt, each to the beginning of the next."""
    times = sorted((at + shifts.get(host, 0.0) if at else received, stage) for host, at, received, stage in stages)
    spans = []
    for number, (at, stage) in enumerate(times):
        end = times[number + 1][0] if number + 1 < len(times) else max(stop, at)
        spans.append(Span(max(at - begun, 0.0), max(end - begun, 0.0), _STAGES.get(stage, "running"), stage))
    return spans


def _list_stall_spans(stall: _Stall, rank: int, begun: float, stop: float, shift: float) -> list[Span]:
    """What a rank did in a stall: waited in a collective, let the others wait, straggled, or simply was silent.
    ``shift`` is that of the head's clock."""
    if rank not in stall.event.ranks:
        return []
    groups = group_stacks(stall.stacks)
    group = next((group for group in groups if rank in group.ranks), None)
    where = group.where if group else f"no progress for {stall.event.seconds:.0f} s"
    kind: SpanKind = "stall"
    if stall.event.kind == "stragglers":
        kind, where = "straggles", "still running when the others were done"
    elif rank in stall.odd:
        kind, where = "odd", f"the others wait for it: {where}"
    elif group and stall.odd:
        kind, where = "wait", f"waits: {where}"
    begin = (stall.event.at + shift if stall.event.at else stall.received) - stall.event.seconds
    end = stop
    if stall.end is not None:
        at, received = stall.end
        end = min(at + shift if at else received, stop)
    return [Span(max(begin - begun, 0.0), max(end - begun, 0.0), kind, where)]
