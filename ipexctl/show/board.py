"""What the live screen knows: the state behind it, kept from events. No Rich, no terminal, no clock.

Memory is bounded whatever ranks print: of each its last lines are held, the record has all. `UnusualLines` looks at
single lines, within a budget."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ipexctl.model import events as e
from ipexctl.model.bench_lines import reword_output
from ipexctl.model.errors import Failure
from ipexctl.model.events import Stamped
from ipexctl.model.json_values import select_attributes
from ipexctl.show.rank_log import RankLog, Spool, format_line
from ipexctl.show.rank_view import RankView
from ipexctl.show.sanitise import escape, one_line
from ipexctl.show.unusual_lines import UnusualLines


@dataclass(slots=True)
class HostView:
    """What a host is doing, and how far."""

    name: str
    step: str = ""
    done: int = 0
    total: int = 0
    unit: str = "B"
    detail: str = ""
    since: float = 0.0
    moved: float = 0.0  # stamp of its first progress in this step
    skipped: int = 0  # how far the step was then: what an earlier try has done
    outcome: str = ""  # of the last step that ended; "" while one goes on
    ended: int = 0  # steps
    failure: Failure | None = None
    cpu: float | None = None  # cores in use, as last sampled
    memory: int | None = None  # bytes in use
    isa: str = ""  # the level of its CPU

    @property
    def state(self) -> Literal["failed", "busy", "done", "waiting"]:
        if self.failure is not None or self.outcome == "failed":
            return "failed"
        if self.step and not self.outcome:
            return "busy"
        return "done" if self.ended else "waiting"


class Board:
    """Takes events, remembers what a screen may show."""

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool  # for what ranks wrote before their newest lines
        self.verb = ""
        self.title = ""
        self.place: tuple[str, ...] = ()  # options by which a further command finds these hosts
        self.started = 0.0
        self.at = 0.0
        self.phase: e.PhaseStarted | None = None
        self.ended = False  # the verb: until then a host that has nothing to do may get more
        self.hosts: OrderedDict[str, HostView] = OrderedDict()
        self.run: e.RunStarted | None = None
        self.over: e.RunEnded | None = None
        self.ranks: list[RankView] = []
        self._over_at = 0.0
        self.unusual = UnusualLines()
        self.launcher: deque[str] = deque(maxlen=5)
        self.stall: list[str] = []  # lines about ranks that stall, until they make progress again
        self.suspects: frozenset[int] = frozenset()  # of these, those that the others wait for
        self.stopping = ""  # "stopping" or "killing", once that was asked for

    def handle_event(self, stamped: Stamped) -> None:
        event, at = stamped.event, stamped.at
        self.at = max(self.at, at)
        match event:
            case e.Output():
                self._output(reword_output(event), at)
            case e.HostSample(host=host, cpu=cpu, memory=memory, ranks=samples):
                view = self._host(host)
                view.cpu, view.memory = cpu, memory
                for sample in samples:
                    rank_view = self._rank(sample.rank, host)
                    rank_view.cpu, rank_view.rss = sample.cpu, sample.rss
            case e.Started(verb=verb, title=title, hosts=hosts):
                self.verb, self.title, self.place = verb, title, event.place
                self.started, self.ended = at, False
                self.hosts = OrderedDict((name, HostView(name)) for name in hosts)
                self.run, self.over, self.ranks, self.phase = None, None, [], None
                self.unusual = UnusualLines()
                self.launcher.clear()
                self.stopping = ""
            case e.PhaseStarted():
                self.phase = event
            case e.StepStarted(host=host, step=step):
                view = self._host(host)
                self.hosts[host] = HostView(
                    host, step, since=at, **select_attributes(view, "ended", "failure", "cpu", "memory", "isa")
                )
            case e.Progress(host=host, step=step):
                view = self._host(host)
                if view.step != step:
                    view.step, view.since, view.moved = step, at, 0.0
                view.outcome = ""
                if not view.moved:
                    view.moved, view.skipped = at, event.done
                view.done, view.total, view.unit, view.detail = event.done, event.total, event.unit, event.detail
            case e.StepEnded(host=host, step=step, outcome=outcome, detail=detail):
                view = self._host(host)
                view.step, view.outcome, view.detail = step, outcome, detail
                view.ended += 1
            case e.HostFailed(failure=failure) if failure.host:
                self._host(failure.host).failure = failure
            case e.RunStarted(ranks=ranks, title=title):
                self.run, self.over = event, None
                self.stall, self.suspects = [], frozenset()
                self.started = at  # one clock: that of the run
                if title:  # we came later
                    self.title, self.started = title, min(event.at or at, at)
                for host, isa in event.isas.items():
                    self._host(host).isa = isa
                self.ranks = [self._make_rank(rank, host, at) for rank, host in enumerate(ranks)]
            case e.Stalled(ranks=ranks, kind=kind):
                self.suspects = frozenset(() if kind == "all" else ranks)
                self._place_ranks(())
            case e.StallCompared(ranks=ranks, text=text, places=places):
                self.stall = [*self.stall[:1], *map(escape, text.splitlines())]
                self.suspects = frozenset(ranks) or self.suspects
                self._place_ranks(places)
            case e.Message(code="stalled", text=text):
                self.stall = [escape(text)]
            case e.Message(code="resumed"):
                self.stall, self.suspects = [], frozenset()
                self._place_ranks(())
            case e.Message(code="stop" | "kill" as code):
                self.stopping = {"stop": "stopping", "kill": "killing"}[code]
            case e.RankStage(rank=rank, host=host, stage=stage):
                rank_view = self._rank(rank, host)
                rank_view.enter_stage(stage, min(event.at or at, at) if self._came_late else at)
                rank_view.at = at
            case e.LauncherOutput(data=data):
                self.launcher.extend(format_line(line) for line in data.splitlines()[-5:])
            case e.RankEnded(rank=rank, host=host):
                rank_view = self._rank(rank, host)
                rank_view.ended, rank_view.at, rank_view.line = event, at, one_line(event.line) or rank_view.line
            case e.RunEnded():
                self.over, self._over_at = event, at
            case e.Answer() | e.Ended():
                self.ended = True

    @property
    def _came_late(self) -> bool:
        """Whether the run began before this command: its stages have times of their hosts only."""
        return self.run is not None and bool(self.run.title)

    @property
    def took(self) -> float:
        """Seconds from the beginning: of the run, where we came later, up to its own end."""
        if self.run is not None and self._came_late and self.run.at and self.over is not None and self.over.at:
            return self.over.at - self.run.at
        return (self._over_at if self.run is not None and self.over is not None else self.at) - self.started

    def _host(self, name: str) -> HostView:
        return self.hosts.setdefault(name, HostView(name))

    def _rank(self, rank: int, host: str) -> RankView:
        while len(self.ranks) <= rank < 1 << 16:
            self.ranks.append(self._make_rank(len(self.ranks), host))
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else RankView(rank, host)

    def _make_rank(self, rank: int, host: str, at: float = 0.0) -> RankView:
        return RankView(rank, host, at=at, staged=at, log=RankLog(self._spool))

    def _place_ranks(self, places: Iterable[e.StallPlace]) -> None:
        """Where ranks stand while they stall; of the others nothing is known."""
        placed = {rank: place for place in places for rank in place.ranks}
        for view in self.ranks:
            if view.ended is None:
                place = placed.get(view.rank, e.StallPlace(()))
                view.line, view.call = one_line(place.line), one_line(place.call)

    def _output(self, event: e.Output, at: float) -> None:
        rank = self._rank(event.rank, event.host)
        rank.feed(event.stream, event.data, at)
        if rank.stage in ("", "start", "python"):  # a script without torch has no further stages
            rank.enter_stage("running", rank.staged if self._came_late else at)
        if not event.partial:
            self.unusual.handle_output(event, at)
