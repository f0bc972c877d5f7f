"""Frames on a terminal: writes what has changed of each line, and nothing else.

The frame is at the end of what was written: the cursor rests behind its last line, and what is printed above it scrolls
away as usual. A frame is drawn inside a synchronized update (``CSI ? 2026 h`` … ``l``, which terminals that do not know
it ignore), so that no half of one is seen."""

from collections.abc import Sequence
from itertools import takewhile

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

from ipexctl.show.pipe import Pipe

_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"

Line = list[Segment]


class Painter:
    """Draws frames, one after the other, on the terminal behind ``out``. Use by one thread only."""

    def __init__(self, console: Console, out: Pipe) -> None:
        self._console, self._out = console, out
        self._lines: list[Line] = []
        self._size = (0, 0)
        self._hidden = False

    def paint(self, frame: RenderableType, above: Sequence[RenderableType] = ()) -> None:
        """Shows the frame, after it has printed what belongs above it."""
        width, height = self._console.size
        options = self._console.options.update(width=width, height=None)
        lines = self._console.render_lines(frame, options, pad=False)[: max(height - 1, 1)]
        written = ""
        if above or (self._lines and self._size != (width, height)):
            written += self._take_away(width, height) + self._print(above)
            self._lines = []
        written += self._draw_changes(lines)
        self._lines, self._size = lines, (width, height)
        if written:
            written = ("" if self._hidden else _HIDE) + _BEGIN + written + _END
            self._hidden = True
            self._out.write(written)
            self._out.flush()

    def erase(self) -> None:
        """Takes the frame away and gives the cursor back: the terminal is as it was, below what was printed."""
        if self._hidden or self._lines:
            width, height = self._console.size
            self._out.write(self._take_away(width, height) + _SHOW)
            self._out.flush()
        self._lines, self._hidden = [], False

    def _print(self, above: Sequence[RenderableType]) -> str:
        with self._console.capture() as captured:
            for item in above:
                self._console.print(item, crop=False)
        return captured.get()

    def _take_away(self, width: int, height: int) -> str:
        """Moves to the first cell of the frame on the screen and clears from there on. Lines of a wider screen may have
        become several. Line by line, from the last one: tmux keeps a screen that is cleared at once in its history."""
        sizes = [Segment.get_line_length(line) if width < self._size[0] else 1 for line in self._lines]
        rows = sum(max(1, -(-size // width)) for size in sizes)
        return "\r\x1b[2K\x1b[J" + "\x1b[A\x1b[2K" * (min(max(rows, 1), height) - 1)

    def _draw_changes(self, lines: list[Line]) -> str:
        old = self._lines
        if not old:
            return "\n".join(self._encode(line) for line in lines)
        at = len(old) - 1  # the row of the cursor
        written = ""
        for row, line in enumerate(lines):
            if row >= len(old):
                written += _move(at, row - 1) + "\n" + self._encode(line)
                at = row
            elif line != old[row]:
                written += _move(at, row) + self._write_change(old[row], line)
                at = row
        if len(lines) < len(old):  # rows that no line takes any more
            written += _move(at, len(lines)) + "\r\x1b[J"
            at = len(lines)
        return written + _move(at, len(lines) - 1)

    def _write_change(self, old: Line, new: Line) -> str:
        """From the first part that differs on. A line as wide as the screen leaves no cell to erase."""
        same = sum(1 for _ in takewhile(lambda parts: parts[0] == parts[1], zip(old, new, strict=False)))
        erase = "\x1b[K" if Segment.get_line_length(new) < Segment.get_line_length(old) else ""
        return f"\x1b[{Segment.get_line_length(new[:same]) + 1}G" + self._encode(new[same:]) + erase

    def _encode(self, line: Line) -> str:
        with self._console.capture() as captured:
            self._console.print(Segments(line), end="", soft_wrap=True)
        return captured.get()


def _move(row: int, to: int) -> str:
    if to == row:
        return ""
    return f"\x1b[{abs(to - row)}{'A' if to < row else 'B'}"
