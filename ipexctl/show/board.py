"""What the live screen knows: the state behind it, kept from events. No Rich, no terminal, no clock.

Memory is bounded whatever ranks print: each keeps its last few kilobytes, the record keeps the rest. Nothing here looks
at single lines but for `unusual` ones, and at those only within a budget."""

import re
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Literal

from ipexctl.model import events as e
from ipexctl.model.errors import Failure
from ipexctl.model.events import Stamped
from ipexctl.show.line_buffer import drop_overwritten, keep_latest_redraw
from ipexctl.show.sanitise import decode_utf8, escape, find_decodable_end, strip_colours

_RECENT = 1 << 13  # bytes of whole lines kept of each rank
_OPEN = 1 << 12  # bytes kept of a line that has not ended
_LOOKED_AT = 1 << 16  # bytes a tenth of a second that are looked at for unusual lines
_UNUSUAL = 200

# Words that make a line of standard output unusual. No leading repetition: it would look at each byte many times.
_ODD = re.compile(rb"Warning|WARN|Error|ERROR|Exception|Traceback|FATAL|Killed|\b(?:nan|NaN)\b")


def _odd_lines(data: bytes) -> list[bytes]:
    """The lines of these bytes that hold such a word, the last 50 of them."""
    lines: list[bytes] = []
    end = -1
    for match in _ODD.finditer(data):
        if match.start() < end:
            continue  # a line that is known already
        start = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.end())
        end = len(data) if end < 0 else end
        lines.append(data[start:end])
    return lines[-50:]


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

    @property
    def state(self) -> Literal["failed", "busy", "done", "waiting"]:
        if self.failure is not None or self.outcome == "failed":
            return "failed"
        if self.step and not self.outcome:
            return "busy"
        return "done" if self.ended else "waiting"


@dataclass(slots=True)
class RankView:
    """What a rank printed last, how far it has come, how it ended."""

    rank: int
    host: str
    stage: str = ""
    at: float = 0.0  # stamp of its last sign of life
    lines: int = 0
    recent: bytes = b""
    open: dict[str, bytes] = field(default_factory=dict)
    ended: e.RankEnded | None = None
    cpu: float | None = None  # cores in use, as last sampled
    rss: int | None = None  # bytes

    def feed(self, stream: str, data: bytes, at: float) -> None:
        """Bytes as they come. Long ones are not copied whole."""
        self.at = at
        data = self.open.get(stream, b"") + data
        end = data.rfind(b"\n") + 1
        if end:
            self.lines += data.count(b"\n", 0, end)
            fresh = data[max(0, end - _RECENT) : end]
            self.recent = fresh if len(fresh) >= _RECENT else (self.recent + fresh)[-_RECENT:]
        self.open[stream] = keep_latest_redraw(data[end:])[-_OPEN:]

    def last_lines(self, most: int) -> list[str]:
        """Its last whole lines, and what it draws at this moment."""
        # The first piece may be the rest of a cut line: it is left out where there are others.
        pieces = self.recent.removesuffix(b"\n").split(b"\n") if self.recent else []
        if len(self.recent) >= _RECENT and len(pieces) > 1:
            pieces = pieces[1:]
        lines = [format_line(line) for line in pieces[-most:]]
        lines += [text for held in self.open.values() if (text := format_line(held))]
        return lines[-most:]

    @property
    def last(self) -> str:
        """One line: its bar if it draws one, else its last line that is not blank."""
        lines = [line for line in self.last_lines(8) if line.strip()]
        return lines[-1] if lines else ""


def format_line(line: bytes) -> str:
    """A line as the screen may hold it: its latest state, harmless, colours and tabs gone."""
    state = drop_overwritten(line)
    return escape(strip_colours(decode_utf8(state[: find_decodable_end(state)]))).replace("\t", "    ")


@dataclass(slots=True)
class Odd:
    """An unusual line and the ranks that printed it."""

    text: str
    ranks: set[int] = field(default_factory=set)
    count: int = 0


class Board:
    """Takes events, remembers what a screen may show."""

    def __init__(self) -> None:
        self.verb = ""
        self.title = ""
        self.started = 0.0
        self.at = 0.0
        self.phase: e.PhaseStarted | None = None
        self.ended = False  # the verb: until then a host that has nothing to do may get more
        self.hosts: OrderedDict[str, HostView] = OrderedDict()
        self.run: e.RunStarted | None = None
        self.over: e.RunEnded | None = None
        self.ranks: list[RankView] = []
        self.odd: OrderedDict[bytes, Odd] = OrderedDict()
        self.launcher: deque[str] = deque(maxlen=5)
        self.stall: list[str] = []  # lines about ranks that stall, until they make progress again
        self.suspects: frozenset[int] = frozenset()  # of these, those that the others wait for
        self.stopping = ""  # "stopping" or "killing", once that was asked for
        self._window = 0.0
        self._budget = _LOOKED_AT

    def handle_event(self, stamped: Stamped) -> None:
        event, at = stamped.event, stamped.at
        self.at = max(self.at, at)
        match event:
            case e.Output():
                self._output(event, at)
            case e.HostSample(host=host, cpu=cpu, memory=memory, ranks=samples):
                view = self._host(host)
                view.cpu, view.memory = cpu, memory
                for sample in samples:
                    rank_view = self._rank(sample.rank, host)
                    rank_view.cpu, rank_view.rss = sample.cpu, sample.rss
            case e.Started(verb=verb, title=title, hosts=hosts):
                self.verb, self.title = verb, title
                self.started, self.ended = at, False
                self.hosts = OrderedDict((name, HostView(name)) for name in hosts)
                self.run, self.over, self.ranks, self.phase = None, None, [], None
                self.odd.clear()
                self.launcher.clear()
                self.stopping = ""
            case e.PhaseStarted():
                self.phase = event
            case e.StepStarted(host=host, step=step):
                view = self._host(host)
                self.hosts[host] = HostView(host, step, since=at, ended=view.ended, failure=view.failure)
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
                if title:  # we came later
                    self.title, self.started = title, min(event.at or at, at)
                self.ranks = [RankView(rank, host, at=at) for rank, host in enumerate(ranks)]
            case e.Stalled(ranks=ranks, kind=kind):
                self.suspects = frozenset(() if kind == "all" else ranks)
            case e.StallCompared(ranks=ranks, text=text):
                self.stall = [*self.stall[:1], *map(escape, text.splitlines())]
                self.suspects = frozenset(ranks) or self.suspects
            case e.Message(code="stalled", text=text):
                self.stall = [escape(text)]
            case e.Message(code="resumed"):
                self.stall, self.suspects = [], frozenset()
            case e.Message(code="stop" | "kill" as code):
                self.stopping = {"stop": "stopping", "kill": "killing"}[code]
            case e.RankStage(rank=rank, host=host, stage=stage):
                rank_view = self._rank(rank, host)
                rank_view.stage, rank_view.at = stage, at
            case e.LauncherOutput(data=data):
                self.launcher.extend(format_line(line) for line in data.splitlines()[-5:])
            case e.RankEnded(rank=rank, host=host):
                rank_view = self._rank(rank, host)
                rank_view.ended, rank_view.at = event, at
            case e.RunEnded():
                self.over = event
            case e.Answer() | e.Ended():
                self.ended = True

    @property
    def took(self) -> float:
        """Seconds from the beginning: of the run, where we came later, up to its own end."""
        if self.run is not None and self.run.title and self.run.at and self.over is not None and self.over.at:
            return self.over.at - self.run.at
        return self.at - self.started

    def _host(self, name: str) -> HostView:
        return self.hosts.setdefault(name, HostView(name))

    def _rank(self, rank: int, host: str) -> RankView:
        while len(self.ranks) <= rank < 1 << 16:
            self.ranks.append(RankView(len(self.ranks), host))
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else RankView(rank, host)

    def _output(self, event: e.Output, at: float) -> None:
        rank = self._rank(event.rank, event.host)
        rank.feed(event.stream, event.data, at)
        if rank.stage in ("", "start", "python"):  # a script without torch has no further stages
            rank.stage = "running"
        if not event.partial:
            self._look(event, at)

    def _look(self, event: e.Output, at: float) -> None:
        if not 0 <= at - self._window < 0.1:
            self._window, self._budget = at, _LOOKED_AT
        data = event.data[-self._budget :] if self._budget else b""
        self._budget -= len(data)
        lines = data.split(b"\n")[-51:] if event.stream == "err" else _odd_lines(data)
        for line in lines:
            key = line[:400].strip()
            if not key:
                continue
            if key not in self.odd:
                self.odd[key] = Odd(format_line(line[:400]))
                if len(self.odd) > _UNUSUAL:
                    self.odd.popitem(last=False)
            self.odd[key].ranks.add(event.rank)
            self.odd[key].count += 1
