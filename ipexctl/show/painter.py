"""Frames on a terminal: writes the cells that have changed and nothing else.

The frame is at the end of what was written: the cursor rests behind its last line, and what is printed above it scrolls
away as usual. A frame is drawn inside a synchronized update (``CSI ? 2026 h`` … ``l``, which terminals that do not know
it ignore), so that no half of one is seen."""

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.style import Style

from ipexctl.show.pipe import Pipe

_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"

Cell = tuple[str, Style | None]  # a character and its style; "" is the second half of a wide one
CellLine = list[Cell]


class Painter:
    """Draws frames, one after the other, on the terminal behind ``out``. Use by one thread only."""

    def __init__(self, console: Console, out: Pipe) -> None:
        self._console, self._out = console, out
        self._lines: list[CellLine] = []
        self._size = (0, 0)
        self._hidden = False

    def paint(self, frame: RenderableType, above: Sequence[RenderableType] = ()) -> None:
        """Shows the frame, after it has printed what belongs above it."""
        width, height = self._console.size
        lines = self._render(frame, width)[: max(height - 1, 1)]
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

    def _render(self, frame: RenderableType, width: int) -> list[CellLine]:
        options = self._console.options.update(width=width, height=None)
        lines = self._console.render_lines(frame, options, pad=False)
        return [_split_cells(line) for line in lines]

    def _print(self, above: Sequence[RenderableType]) -> str:
        with self._console.capture() as captured:
            for item in above:
                self._console.print(item, crop=False)
        return captured.get()

    def _take_away(self, width: int, height: int) -> str:
        """Moves to the first cell of the frame on the screen and clears from there on. Lines of a wider screen may have
        become several. Line by line, from the last one: tmux keeps a screen that is cleared at once in its history."""
        rows = (
            sum(max(1, -(-len(line) // width)) for line in self._lines) if width < self._size[0] else len(self._lines)
        )
        return "\r\x1b[2K\x1b[J" + "\x1b[A\x1b[2K" * (min(max(rows, 1), height) - 1)

    def _draw_changes(self, lines: list[CellLine]) -> str:
        old = self._lines
        if not old:
            return "\n".join(self._encode_cells(line) for line in lines)
        at = len(old) - 1  # the row of the cursor
        written = ""
        for row, line in enumerate(lines):
            if row >= len(old):
                written += _move(at, row - 1) + "\n" + self._encode_cells(line)
                at = row
            elif change := self._write_change(old[row], line):
                written += _move(at, row) + change
                at = row
        if len(lines) < len(old):  # rows that no line takes any more
            written += _move(at, len(lines)) + "\r\x1b[J"
            at = len(lines)
        return written + _move(at, len(lines) - 1)

    def _write_change(self, old: CellLine, new: CellLine) -> str:
        """From the first cell that differs to the last one that does."""
        if old == new:
            return ""
        first = next((x for x, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        while first and first < len(new) and not new[first][0]:
            first -= 1
        end = len(new)
        if len(old) == len(new):
            while end > first and old[end - 1] == new[end - 1]:
                end -= 1
            while end < len(new) and not new[end][0]:
                end += 1
        erase = "\x1b[K" if len(new) < len(old) else ""
        # The cursor is moved by its column; a line as wide as the screen leaves no cell to erase.
        return f"\x1b[{first + 1}G" + erase + self._encode_cells(new[first:end])

    def _encode_cells(self, cells: CellLine) -> str:
        segments = [
            Segment("".join(char for char, _ in run), style) for style, run in groupby(cells, key=lambda cell: cell[1])
        ]
        with self._console.capture() as captured:
            self._console.print(Segments(segments), end="", soft_wrap=True)
        return captured.get()


def _split_cells(line: Sequence[Segment]) -> CellLine:
    cells: CellLine = []
    for text, style, control in line:
        if control:
            continue
        style = style or None
        if text.isascii():
            cells += [(char, style) for char in text]
            continue
        for char in text:
            wide = 1 if char.isascii() else cell_len(char)
            if wide == 0 and cells:
                cells[-1] = (cells[-1][0] + char, cells[-1][1])
                continue
            cells.append((char, style))
            if wide == 2:
                cells.append(("", style))
    while cells and cells[-1] == (" ", None):
        cells.pop()
    return cells


def _move(row: int, to: int) -> str:
    if to == row:
        return ""
    return f"\x1b[{abs(to - row)}{'A' if to < row else 'B'}"
