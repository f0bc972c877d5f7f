"""What the live screen knows of one rank: its last lines, the figures in them, its stage, how it ended."""

from collections import deque
from dataclasses import dataclass, field

from ipexctl.model import events as e
from ipexctl.model.figures import read_figures
from ipexctl.show.line_buffer import keep_latest_redraw
from ipexctl.show.rank_log import RankLog, format_line

OPEN = 1 << 12  # bytes held of a line that has not ended
_READ = 1 << 12  # bytes of these that are searched for figures
_LATEST = 8  # of its last lines that are searched for figures, or for one to show
_STALE = 10.0  # seconds without a step after which a pace is 0; five steps where those take longer


@dataclass(slots=True)
class RankView:
    """A rank, kept from its events. Memory is bounded whatever it prints."""

    rank: int
    host: str
    stage: str = ""
    at: float = 0.0  # stamp of its last sign of life
    staged: float = 0.0  # stamp at which its stage began
    log: RankLog = field(default_factory=RankLog)
    open: dict[str, bytes] = field(default_factory=dict)
    line: str = ""  # of its script, at which it failed or stands while it stalls: "train.py:41"
    call: str = ""  # the collective in which it waits for others, while it stalls
    ended: e.RankEnded | None = None
    cpu: float | None = None  # cores in use, as last sampled
    rss: int | None = None  # bytes
    figures: dict[str, float] = field(default_factory=dict)  # as `read_figures` names them
    pace: float | None = None  # iterations per second: as printed, else computed from its steps
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=60))  # about one a second
    _steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=32))  # (stamp, step)
    _moved: float = 0.0  # stamp of its last step, or of its last printed pace
    _read: float = -1.0
    _sampled: float = -1.0
    _unread: bool = False
    _taken: int = 0  # lines of its log that were searched for figures

    def feed(self, stream: str, data: bytes, at: float) -> None:
        """Bytes as they come."""
        self.at = at
        self._unread = True
        data = self.open.get(stream, b"") + data
        end = data.rfind(b"\n") + 1
        if end:
            self.log.append(data[:end])
        self.open[stream] = keep_latest_redraw(data[end:])[-OPEN:]

    def enter_stage(self, stage: str, at: float) -> None:
        """A stage that begins at this stamp."""
        if stage != self.stage:
            self.stage, self.staged = stage, at

    def last_lines(self, most: int) -> list[str]:
        """Its last whole lines, and what it draws at this moment."""
        lines = self.log.read_lines(self.log.count - most + 1, self.log.count)
        lines += [text for held in self.open.values() if (text := format_line(held))]
        return lines[-most:]

    def drawn_lines(self) -> list[str]:
        """What it draws at this moment: lines without an end."""
        return [text for held in self.open.values() if (text := format_line(held)).strip()]

    @property
    def last(self) -> str:
        """One line: its bar if it draws one, else its last line that is not blank."""
        lines = [format_line(line) for line in self.log.recent[-_READ:].removesuffix(b"\n").split(b"\n")[-_LATEST:]]
        lines = [line for line in [*lines, *self.drawn_lines()] if line.strip()]
        return lines[-1] if lines else ""

    def refresh(self, at: float, every: float = 0.25) -> None:
        """Reads the figures of its last lines, at most once in ``every`` seconds; ``at`` is a stamp."""
        if 0 <= at - self._read < every:
            return
        self._read = at
        if self._unread:
            self._unread = False
            fresh: dict[str, float] = {}
            for line in [*self._take_new_lines(), *self.open.values()]:
                fresh |= read_figures(format_line(line))
            step = fresh.get("step")
            if step is not None and step != self.figures.get("step"):
                if step < self.figures.get("step", 0.0):
                    self._steps.clear()
                self._steps.append((self.at, step))
                self._moved = self.at
            elif step is None and "pace" in fresh:
                self._moved = self.at
            self.figures |= fresh
        self._measure_pace(at)
        if self.pace is not None and not 0 <= at - self._sampled < 1.0:
            self._sampled = at
            self.paces.append(self.pace)

    def _take_new_lines(self) -> list[bytes]:
        """Its lines since the last time, each once, and of many the last ones only."""
        new, self._taken = min(self.log.count - self._taken, _LATEST), self.log.count
        lines = self.log.recent[-_READ:].removesuffix(b"\n").split(b"\n")
        return lines[-new:] if new else []

    def _measure_pace(self, at: float) -> None:
        pace = self.figures.get("pace")
        if pace is None and len(self._steps) > 1:
            (first, low), (last, high) = self._steps[0], self._steps[-1]
            pace = (high - low) / (last - first) if last - first >= 1.0 else self.pace
        if pace and at - self._moved > max(_STALE, 5 / pace):
            pace = 0.0
        self.pace = pace
