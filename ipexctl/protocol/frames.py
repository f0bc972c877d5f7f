"""Bytes on a stream: the frames in which a watcher passes a run's files on, and those of the ranks' output.

A rank's wrapper writes what its script writes in frames: ``\\x01NONCE=RANK STREAM LENGTH\\x02`` without the spaces,
then LENGTH bytes. The nonce is the run's own. A script that knows it can forge nothing: a length tells what is its."""

import re
import struct
from typing import Iterator, List, Match, NamedTuple, Optional, Pattern, Set, Tuple, Union

from ipexctl.protocol.codec import MESSAGE_LIMIT, DamagedError

_HEADER = struct.Struct("!cQI")  # kind, offset in its file, length; then the bytes

# Kinds of watch frames. The outputs' kinds are also the names of their streams. CLOCK: the head's time, in
# milliseconds. CAUGHT_UP: all that the files held when the watcher began was sent.
CLOCK, JOURNAL, OUT, ERR, SAMPLES, ALIVE, CAUGHT_UP, END = "h", "j", "o", "e", "s", "t", "c", "z"
# The data of END: the final record is there, the keeper died without one (behind a space: what of), only what was there
# now was asked for.
ENDED, GONE, NOW = b"end", b"gone", b"now"
# Words of a watcher's command line, behind the offsets: only what the files hold now; no samples.
ONCE, NO_SAMPLES = "once", "no-samples"


class WatchFrame(NamedTuple):
    """A piece of one of a run's files, from ``offset`` on."""

    kind: str
    offset: int = 0
    data: bytes = b""


def pack_frame(frame: "WatchFrame") -> bytes:
    return _HEADER.pack(frame.kind.encode(), frame.offset, len(frame.data)) + frame.data


def unpack_frame(data: "Union[bytes, bytearray]", at: int = 0) -> "Tuple[Optional[WatchFrame], int]":
    """Returns the frame that begins at a position and the position behind it; None and ``at`` of one that is not whole.
    Raises `DamagedError` for one that is too long."""
    begin = at + _HEADER.size
    if len(data) < begin:
        return None, at
    kind, offset, length = _HEADER.unpack_from(data, at)
    if length > MESSAGE_LIMIT:
        raise DamagedError("a frame of %d bytes" % length)
    end = begin + length
    if len(data) < end:
        return None, at
    return WatchFrame(kind.decode("latin-1"), offset, bytes(data[begin:end])), end


FRAME = 4096  # bytes of one, at most: PIPE_BUF, so that writers who share a pipe never cut each other's frames


def build_opening(nonce: str) -> bytes:
    """Returns how each frame of the run begins."""
    return b"\x01%s=" % nonce.encode()


def build_head(nonce: str, rank: int) -> bytes:
    """Returns a rank's frames up to their stream and length."""
    return b"%s%d" % (build_opening(nonce), rank)


def split_into_frames(head: bytes, stream: str, data: bytes) -> "Iterator[bytes]":
    """Yields the frames of what a rank wrote; ``head`` is that of `build_head`."""
    room = FRAME - len(head) - len("o4096\x02")
    for at in range(0, len(data), room):
        piece = data[at : at + room]
        yield b"%s%s%d\x02%s" % (head, stream.encode(), len(piece), piece)


def compile_frame_pattern(nonce: str) -> "Pattern[bytes]":
    """Groups: rank, stream, length."""
    return re.compile(re.escape(build_opening(nonce)) + rb"(\d{1,9})([oe])(\d{1,9})\x02")


def find_frame_end(data: bytes, pattern: "Pattern[bytes]", least: int = 0) -> int:
    """Where the first frame ends that reaches ``least``; without it, where the last whole frame ends. ``data`` begins
    with a frame; what is none, which only a stranger can have written, counts with the frame before it."""
    end = 0
    for _, after in _list_frames(data, pattern):
        if after > len(data):
            break
        end = after
        if 0 < least <= end:
            break
    return end


def select_frames(data: bytes, pattern: "Pattern[bytes]", ranks: "Set[int]") -> "Tuple[bytes, Set[int]]":
    """Returns the whole frames of these ranks, and whose there are."""
    pieces: List[bytes] = []
    writers: Set[int] = set()
    for header, end in _list_frames(data, pattern):
        if int(header.group(1)) in ranks and end <= len(data):
            writers.add(int(header.group(1)))
            pieces.append(data[header.start() : end])
    return b"".join(pieces), writers


def select_rank_output(data: bytes, nonce: str, rank: int, stream: str) -> bytes:
    """Returns what of a piece of the ranks' output one rank wrote to a stream; the piece may begin and end anywhere."""
    wanted = (b"%d" % rank, stream.encode())
    frames = _list_frames(data, compile_frame_pattern(nonce))
    return b"".join(data[header.end() : end] for header, end in frames if header.groups()[:2] == wanted)


def _list_frames(data: bytes, pattern: "Pattern[bytes]") -> "Iterator[Tuple[Match[bytes], int]]":
    """Yields the header of each frame, and where the frame ends, which may be behind the data."""
    header = pattern.search(data)
    while header:
        end = header.end() + int(header.group(3))
        yield header, end
        header = pattern.search(data, end)


UNFINISHED = re.compile(rb"\d{0,9}(?:[oe]\d{0,9})?")  # what may follow the opening before the rest arrives
