"""One of mpirun's outputs, stored in segments of one size; offsets count from its first byte for ever.

Under a cap the oldest segments go first. Without space bytes are lost and counted, the ranks go on; when there is space
again, a mark tells how much is missing, and what follows begins at a whole tag."""

import os
from contextlib import suppress
from typing import BinaryIO, List, Optional, Tuple

SEGMENT = 1 << 26  # bytes
LEAST = 1 << 20
SPARE = 1 << 20  # bytes of the disk that are left for others, and for the run's own records


def choose_segment_size(cap: int) -> int:
    """Bytes of a segment under this cap (0: no cap)."""
    return max(LEAST, min(SEGMENT, cap // 8)) if cap else SEGMENT


def build_segment_path(base: str, number: int) -> str:
    return "%s.%06d" % (base, number)


def list_segments(base: str) -> "List[int]":
    """The segments that are there, in order."""
    directory, name = os.path.split(base)
    ends = (entry.rpartition(".") for entry in os.listdir(directory))
    return sorted(int(end) for start, _, end in ends if start == name and end.isdigit())


def measure_end(base: str, cap: int) -> int:
    """The offset of a spool's end; 0 where there is none."""
    try:
        number = list_segments(base)[-1]
        return number * choose_segment_size(cap) + os.path.getsize(build_segment_path(base, number))
    except (OSError, IndexError):
        return 0


def read_end(base: str, most: int) -> bytes:
    """The last bytes of a spool, at most so many and at most one segment; empty where there are none."""
    try:
        with open(build_segment_path(base, list_segments(base)[-1]), "rb") as segment:
            segment.seek(-min(most, os.fstat(segment.fileno()).st_size), os.SEEK_END)
            return segment.read(most)
    except (OSError, IndexError):
        return b""


class Spool:
    def __init__(self, base: str, cap: int, opening: bytes) -> None:
        self.base = base
        self.cap = cap
        self.size = choose_segment_size(cap)
        self.opening = opening  # of a tag or a frame
        self.offset = 0
        self.first = 0  # the oldest segment
        self.file: "Optional[BinaryIO]" = None
        self.gap = 0  # bytes lost since the last one that was stored

    def write(self, piece: bytes) -> int:
        """Stores what can be stored; how many bytes could not be."""
        skipped = 0
        if self.gap:
            at = piece.find(self.opening)
            skipped = at if at >= 0 else len(piece)
            count = self.gap + skipped
            words = b"1 byte of output was" if count == 1 else b"%d bytes of output were" % count
            mark = b"\n[%s not stored here: no space]\n" % words
            if skipped == len(piece) or self._append(mark) < len(mark):
                self.gap += len(piece)
                return len(piece)
            piece, self.gap = piece[skipped:], 0
        missing = len(piece) - self._append(piece)
        self.gap += missing
        return skipped + missing

    def measure_free_space(self, missing: int) -> "Tuple[int, int]":
        """Bytes needed to store ``missing`` more, and the free ones, of which some are left for others."""
        try:
            space = os.statvfs(os.path.dirname(self.base))
        except OSError:
            return missing + SPARE, 0
        return missing + SPARE, space.f_bavail * space.f_frsize

    def close(self) -> None:
        if self.file:
            self.file.close()

    def _append(self, data: bytes) -> int:
        """Writes as much as there is space for."""
        done = 0
        while done < len(data):
            at = self.offset % self.size
            try:
                if self.file is None or not at:
                    self._open_next_segment()
                assert self.file is not None
                space = os.fstatvfs(self.file.fileno())
                most = min(self.size - at, space.f_bavail * space.f_frsize - SPARE)
                written = (self.file.write(data[done : done + most]) or 0) if most > 0 else 0
            except OSError:
                written = 0
            done += written
            self.offset += written
            if not written:
                break
        return done

    def _open_next_segment(self) -> None:
        self.close()
        self.file = None
        number = self.offset // self.size
        self.file = open(build_segment_path(self.base, number), "ab", buffering=0)
        while self.cap and (number - self.first + 1) * self.size > self.cap and self.first < number:
            with suppress(OSError):
                os.unlink(build_segment_path(self.base, self.first))
            self.first += 1


class Tail:
    """Reads what a spool holds from an offset on; ``offset`` jumps where segments are gone."""

    def __init__(self, base: str, cap: int, offset: int) -> None:
        self.base, self.cap = base, cap
        self.size = choose_segment_size(cap)
        self.offset = offset
        self.file: "Optional[BinaryIO]" = None
        self.number = -1

    def measure_end(self) -> int:
        return measure_end(self.base, self.cap)

    def read(self, most: int) -> bytes:
        while True:
            number = self.offset // self.size
            if (number != self.number or self.file is None) and not self._open_segment(number):
                return b""
            assert self.file is not None
            piece = self.file.read(most)
            self.offset += len(piece)
            if piece or self.offset // self.size == self.number:
                return piece

    def _open_segment(self, number: int) -> bool:
        if self.file:
            self.file.close()
            self.file = None
        try:
            self.file = open(build_segment_path(self.base, number), "rb", buffering=0)
        except OSError:
            later = [other for other in list_segments(self.base) if other > number]
            if not later:
                return False
            number = later[0]
            self.offset = number * self.size
            return self._open_segment(number)
        self.file.seek(self.offset % self.size)
        self.number = number
        return True
