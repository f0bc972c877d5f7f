"""The output of ranks for a page: the first and the last of each, in lines with their times."""

from collections import deque
from collections.abc import Callable

from ipexctl.model.events import Stream
from ipexctl.model.page import LogLine

_LONGEST = 2000  # characters of a line that are shown
FindHarmless = Callable[[str], str | None]


class RankOutput:
    """What one rank wrote, within ``limit`` bytes: a quarter for its beginning, three quarters for its end."""

    __slots__ = ("_end", "_end_size", "_head", "_head_size", "_limit", "omitted")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head: list[tuple[float, Stream, bytes]] = []
        self._end: deque[tuple[float, Stream, bytes]] = deque()
        self._head_size = self._end_size = 0
        self.omitted = 0

    def add_piece(self, at: float, stream: Stream, data: bytes) -> None:
        """The next bytes of a stream."""
        if self._head_size < self._limit // 4 and not self._end:
            self._head.append((at, stream, data[: self._limit // 4]))
            self._head_size += len(data)
            self.omitted += max(len(data) - self._limit // 4, 0)
            return
        room = self._limit * 3 // 4
        self._end.append((at, stream, data[-room:]))
        self.omitted += max(len(data) - room, 0)
        self._end_size += min(len(data), room)
        while self._end_size > room and len(self._end) > 1:
            dropped = len(self._end.popleft()[2])
            self._end_size -= dropped
            self.omitted += dropped

    def shrink(self, limit: int) -> "RankOutput":
        """The same within a smaller ``limit``."""
        smaller = RankOutput(limit)
        for piece in (*self._head, *self._end):
            smaller.add_piece(*piece)
        smaller.omitted += self.omitted
        return smaller

    def list_lines(self, begun: float, find_harmless: FindHarmless) -> tuple[tuple[LogLine, ...], int]:
        """The lines, ``begun`` being time zero, and the index of the first one after the gap."""
        first = _split_lines(self._head, begun, find_harmless)
        if not self.omitted:
            return tuple(_split_lines([*self._head, *self._end], begun, find_harmless)), 0
        return (*first, *_split_lines(list(self._end), begun, find_harmless)), len(first)


def _split_lines(pieces: list[tuple[float, Stream, bytes]], begun: float, find_harmless: FindHarmless) -> list[LogLine]:
    """Whole lines in order of their first byte; of a line that redraws itself the last state."""
    lines: list[LogLine] = []
    unfinished: dict[Stream, tuple[int, float, bytes]] = {}  # stream → where its line will stand

    def make_line(at: float, stream: Stream, data: bytes) -> LogLine:
        text = data.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
        text = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
        return LogLine(at - begun, stream == "err", text, find_harmless(text) or "")

    for at, stream, data in pieces:
        place, since, before = unfinished.pop(stream, (len(lines), at, b""))
        *complete, unfinished_line = (before + data).split(b"\n")
        for number, line in enumerate(complete):
            if number == 0 and before:
                lines[place] = make_line(since, stream, line)
            else:
                lines.append(make_line(at, stream, line))
        if unfinished_line:
            unfinished_line = unfinished_line[max(0, unfinished_line.rstrip(b"\r").rfind(b"\r")) :][-4 * _LONGEST :]
            if before and not complete:
                lines[place] = make_line(since, stream, unfinished_line)
            else:
                place, since = len(lines), at
                lines.append(make_line(at, stream, unfinished_line))
            unfinished[stream] = (place, since, unfinished_line)
    return lines
