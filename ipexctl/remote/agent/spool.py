"""An output of a run, stored in segments of one size; offsets count from its first byte for ever.

Under a cap the oldest segments go first. Without space bytes are lost and counted, the ranks go on; when there is space
again, a mark tells how much is missing. No frame is ever stored in part."""

import os
from contextlib import suppress
from typing import BinaryIO, List, Optional, Pattern, Tuple

from ipexctl.protocol.frames import find_frame_end

SEGMENT_SIZE = 1 << 24  # bytes
SPARE_SPACE = 1 << 20  # bytes of the disk that are left for others, and for the run's own records


def build_segment_path(base: str, number: int) -> str:
    return "%s.%06d" % (base, number)


def list_segments(base: str) -> "List[int]":
    """Returns the segments that are there, in order."""
    directory, name = os.path.split(base)
    ends = (entry.rpartition(".") for entry in os.listdir(directory))
    return sorted(int(end) for start, _, end in ends if start == name and end.isdigit())


def measure_end(base: str) -> int:
    """Returns the offset of a spool's end; 0 where there is none."""
    try:
        number = list_segments(base)[-1]
        return number * SEGMENT_SIZE + os.path.getsize(build_segment_path(base, number))
    except (OSError, IndexError):
        return 0


def read_end(base: str, most: int) -> bytes:
    """Returns the last bytes of a spool, at most so many and at most one segment; empty where there are none."""
    try:
        with open(build_segment_path(base, list_segments(base)[-1]), "rb") as segment:
            segment.seek(-min(most, os.fstat(segment.fileno()).st_size), os.SEEK_END)
            return segment.read(most)
    except (OSError, IndexError):
        return b""


class Spool:
    """``frames``: the pattern of the output's frames; None for plain text. ``cap``: bytes that are kept, 0: all."""

    def __init__(self, base: str, frames: "Optional[Pattern[bytes]]" = None, cap: int = 0) -> None:
        self.base = base
        self.cap = cap
        self.frames = frames
        self.offset = 0
        self.first = 0  # the oldest segment
        self.file: "Optional[BinaryIO]" = None
        self.rest = b""  # of a frame that was stored in part when the space ended
        self.gap = 0  # bytes lost since the last one that was stored

    def write(self, piece: bytes) -> int:
        """Stores what can be stored of some whole frames; how many bytes could not be."""
        if self.gap or self.rest:
            self.rest = self.rest[self._append(self.rest) :]
            words = b"1 byte of output was" if self.gap == 1 else b"%d bytes of output were" % self.gap
            mark = b"\n[%s not stored here: no space]\n" % words if self.gap else b""
            if self.rest or self._append(mark) < len(mark):
                self.gap += len(piece)
                return len(piece)
            self.gap = 0
        done = self._append(piece)
        if done and self.frames and done < len(piece):
            end = find_frame_end(piece, self.frames, done)
            self.rest, done = piece[done:end], end
        self.gap += len(piece) - done
        return len(piece) - done

    def measure_free_space(self, missing: int) -> "Tuple[int, int]":
        """Returns bytes needed to store ``missing`` more, and the free ones, of which some are left for others."""
        try:
            space = os.statvfs(os.path.dirname(self.base))
        except OSError:
            return missing + SPARE_SPACE, 0
        return missing + SPARE_SPACE, space.f_bavail * space.f_frsize

    def close(self) -> int:
        """Returns how many bytes of the last frame could not be stored."""
        self.rest = self.rest[self._append(self.rest) :]
        if self.file:
            self.file.close()
        return len(self.rest)

    def _append(self, data: bytes) -> int:
        done = 0
        while done < len(data):
            at = self.offset % SEGMENT_SIZE
            try:
                if self.file is None or not at:
                    self._open_next_segment()
                assert self.file is not None
                space = os.fstatvfs(self.file.fileno())
                most = min(SEGMENT_SIZE - at, space.f_bavail * space.f_frsize - SPARE_SPACE)
                written = (self.file.write(data[done : done + most]) or 0) if most > 0 else 0
            except OSError:
                written = 0
            done += written
            self.offset += written
            if not written:
                break
        return done

    def _open_next_segment(self) -> None:
        if self.file:
            self.file.close()
        self.file = None
        number = self.offset // SEGMENT_SIZE
        self.file = open(build_segment_path(self.base, number), "ab", buffering=0)
        while self.cap and (number - self.first + 1) * SEGMENT_SIZE > self.cap and self.first < number:
            with suppress(OSError):
                os.unlink(build_segment_path(self.base, self.first))
            self.first += 1


class Tail:
    """Reads what a spool holds from an offset on; ``offset`` jumps where segments are gone."""

    def __init__(self, base: str, offset: int) -> None:
        self.base, self.offset = base, offset
        self.file: "Optional[BinaryIO]" = None
        self.number = -1

    def measure_end(self) -> int:
        return measure_end(self.base)

    def read(self, most: int) -> bytes:
        while True:
            number = self.offset // SEGMENT_SIZE
            if (number != self.number or self.file is None) and not self._open_segment(number):
                return b""
            assert self.file is not None
            piece = self.file.read(most)
            self.offset += len(piece)
            if piece or self.offset // SEGMENT_SIZE == self.number:
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
            self.offset = number * SEGMENT_SIZE
            return self._open_segment(number)
        self.file.seek(self.offset % SEGMENT_SIZE)
        self.number = number
        return True
