"""The newest lines that each rank wrote, for the eye. `logs` has all of them."""

from collections import deque
from itertools import islice

from ipexctl.model.run_state import Attempt, RunState
from ipexctl.model.text import strip_colours
from ipexctl.show.sanitise import decode_utf8, escape

LOG_SIZE, MIN_LOG_SIZE = 1 << 21, 1 << 16  # bytes of the lines that are held: of all ranks together, of each at least


class RankLog:
    """The newest whole lines of one rank, numbered from 1, in the order in which they came."""

    def __init__(self, room: int = LOG_SIZE) -> None:
        self._room = room
        self._lines: deque[bytes] = deque()
        self._size = 0  # bytes
        self.count = 0

    @property
    def first(self) -> int:
        """The number of the first line that is held."""
        return self.count - len(self._lines) + 1

    def append(self, data: bytes) -> None:
        """Adds whole lines."""
        lines = data.removesuffix(b"\n").split(b"\n")
        self._lines += lines
        self._size += len(data)
        self.count += len(lines)
        while self._size > self._room and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()) + 1

    def read_lines(self, first: int, last: int) -> list[str]:
        """The lines with these numbers, as far as they are held."""
        start = max(first - self.first, 0)
        return [format_line(line) for line in islice(self._lines, start, max(last - self.first + 1, start))]

    def search(self, text: str, start: int, *, forwards: bool, fold: bool) -> int:
        """The number of the line with this text that is nearest before ``start``, or after it with ``forwards``; 0
        where there is none. ``fold``: case does not matter."""
        lines = enumerate(self._lines, self.first)
        candidates = [each for each in lines if (each[0] > start if forwards else each[0] < start)]
        for number, line in candidates if forwards else reversed(candidates):
            shown = format_line(line)
            if text in (shown.lower() if fold else shown):
                return number
        return 0


def format_line(line: bytes) -> str:
    """A line as the screen may hold it: harmless, colours and tabs gone."""
    return escape(strip_colours(decode_utf8(line))).replace("\t", "    ")


class RankLogs:
    """The logs of the ranks of the attempt at work."""

    def __init__(self) -> None:
        self._attempt: Attempt | None = None
        self._logs: dict[int, RankLog] = {}

    def add_lines(self, state: RunState) -> None:
        """Adds the lines that the last event ended."""
        if state.attempt is not self._attempt:
            self._attempt, self._logs = state.attempt, {}
        for lines in state.lines:
            if lines.rank is not None:
                self[lines.rank].append(lines.data)

    def __getitem__(self, rank: int) -> RankLog:
        if rank not in self._logs:
            ranks = len(self._attempt.ranks) if self._attempt else 1
            self._logs[rank] = RankLog(max(LOG_SIZE // max(ranks, 1), MIN_LOG_SIZE))
        return self._logs[rank]
