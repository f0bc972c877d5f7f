"""All that a rank wrote, for the eye: its newest lines in memory, those before them in a file that has no name."""

import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from ipexctl.model.run_state import Attempt, RunState
from ipexctl.model.text import strip_colours
from ipexctl.show.sanitise import decode_utf8, escape

RECENT_SIZE = 1 << 16  # bytes of whole lines held of each rank at least; of a rank whose older ones are stored, twice
_PIECE = 1 << 18  # bytes that are stored, and searched, at once, at most; but a line is never cut


class LineSpool:
    """A file of the older lines of all ranks, in ``directory``; it goes with its process. It takes at most half of the
    space that was free there: beyond, and after an error, it begins anew, and ``generation`` counts how often."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._size = 0
        self.generation = 0

    def store(self, data: bytes) -> int:
        """Where the bytes are now; -1 where they could not be stored."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115  # it lives as long as this
            status = os.fstatvfs(self._file.fileno())
            if status.f_bavail * status.f_frsize < self._size + len(data):
                raise OSError
            if os.pwrite(self._file.fileno(), data, self._size) < len(data):
                raise OSError
        except OSError:
            self.generation, self._size = self.generation + 1, 0
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), 0) if self._file else None
            return -1
        self._size += len(data)
        return self._size - len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes that were stored; fewer where they cannot be read."""
        try:
            return os.pread(self._file.fileno(), length, offset) if self._file else b""
        except OSError:
            return b""


class _Piece(NamedTuple):
    """Stored lines: the number of the first, how many, and where."""

    first: int
    lines: int
    offset: int
    length: int


class RankLog:
    """The whole lines of one rank, numbered from 1, in the order in which they came."""

    def __init__(self, spool: LineSpool | None = None) -> None:
        self._spool = spool
        self._pieces: list[_Piece] = []
        self._generation = spool.generation if spool else 0
        self._before = 0  # lines before ``recent``
        self.recent = b""
        self.count = 0

    @property
    def first(self) -> int:
        """The number of the first line that can be read."""
        pieces = self._get_pieces()
        return pieces[0].first if pieces else self._before + 1

    def append(self, data: bytes) -> None:
        """Whole lines."""
        self.count += data.count(b"\n")
        self.recent += data
        if len(self.recent) < 2 * RECENT_SIZE:
            return
        while len(self.recent) > RECENT_SIZE:
            most = min(len(self.recent) - RECENT_SIZE, _PIECE)
            cut = self.recent.rfind(b"\n", 0, most) + 1 or self.recent.find(b"\n") + 1
            if cut == len(self.recent):  # the last line, however long
                return
            self._store(self.recent[:cut])
            self.recent = self.recent[cut:]

    def _store(self, data: bytes) -> None:
        first, count = self._before + 1, data.count(b"\n")
        self._before += count
        offset = self._spool.store(data) if self._spool else -1
        pieces = self._get_pieces()
        if offset >= 0:
            pieces.append(_Piece(first, count, offset, len(data)))
        else:
            pieces.clear()

    def _get_pieces(self) -> list[_Piece]:
        if self._spool and self._generation != self._spool.generation:
            self._generation = self._spool.generation
            self._pieces.clear()
        return self._pieces

    def read_lines(self, first: int, last: int) -> list[str]:
        """The lines with these numbers, as far as they can be read."""
        lines: list[str] = []
        number = max(first, self.first)
        while number <= min(last, self.count):
            start, data = self._read_piece(number)
            held = data.removesuffix(b"\n").split(b"\n")[number - start : last - start + 1]
            lines += map(format_line, held)
            number += max(len(held), 1)
        return lines

    def search(self, text: str, start: int, *, forwards: bool, fold: bool) -> Iterator[int]:
        """Looks for a text in the lines before ``start``, the nearest first, or in those after it with ``forwards``.
        ``fold``: case does not matter. Yields 0 after each part without it, and at last the line's number."""
        number = max(start + 1, self.first) if forwards else min(start - 1, self.count)
        while self.first <= number <= self.count:
            at, data = self._read_piece(number)
            lines = data.removesuffix(b"\n").split(b"\n")
            if _may_contain(data, text, fold):
                order = range(number - at, len(lines)) if forwards else range(number - at, -1, -1)
                for index in order:
                    line = format_line(lines[index])
                    if text in (line.lower() if fold else line):
                        yield at + index
                        return
            number = at + len(lines) if forwards else at - 1
            yield 0

    def _read_piece(self, number: int) -> tuple[int, bytes]:
        """The part of the log in which the line of this number is, and the number of its first line."""
        if number > self._before or self._spool is None:
            return self._before + 1, self.recent
        pieces = self._get_pieces()
        piece = pieces[bisect_right(pieces, number, key=lambda piece: piece.first) - 1]
        data = self._spool.read(piece.offset, piece.length)
        return piece.first, data if len(data) == piece.length else b"\n" * piece.lines


def _may_contain(data: bytes, text: str, fold: bool) -> bool:
    r"""Whether lines have to be looked at one by one. What `format_line` adds to them has a backslash."""
    whole = strip_colours(decode_utf8(data)).replace("\t", "    ")
    return "\\" in text or text in (whole.lower() if fold else whole)


def format_line(line: bytes) -> str:
    """A line as the screen may hold it: harmless, colours and tabs gone."""
    return escape(strip_colours(decode_utf8(line))).replace("\t", "    ")


class RankLogs:
    """The logs of the ranks of the attempt at work."""

    def __init__(self, spool: LineSpool | None = None) -> None:
        self._spool = spool
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
            self._logs[rank] = RankLog(self._spool)
        return self._logs[rank]
