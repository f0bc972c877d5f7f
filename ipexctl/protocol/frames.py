"""Bytes on a stream: the frames in which a watcher passes a run's files on, and the tags of the ranks' output.

Hydra writes a tag before every line of a rank and before every piece of one: ``\\x01NONCE:RANK\\x02``. Open MPI has no
tag that a rank could not forge; under it the rank's wrapper writes frames: ``\\x01NONCE=RANK STREAM LENGTH\\x02``
without the spaces, then LENGTH bytes. The nonce is the run's own. A script can learn it, so under Hydra the wrapper
escapes what the script writes: then all ``\\x01`` are Hydra's. It also joins lines that it has at once: a tag, and two
writes by mpirun, for each block instead of each line."""

import re
import struct
from typing import NamedTuple, Optional, Pattern, Tuple

from ipexctl.protocol.codec import LONGEST, DamagedError

_HEADER = struct.Struct("!cQI")  # kind, offset in its file, length; then the bytes

# Kinds of watch frames. The outputs' kinds are also the names of their streams. CAUGHT_UP: all that the files held when
# the watcher began was sent.
JOURNAL, OUT, ERR, SAMPLES, ALIVE, CAUGHT_UP, END = "j", "o", "e", "s", "t", "c", "z"
# The data of END: the final record is there, the keeper died without one, only what was there now was asked for.
ENDED, GONE, NOW = b"end", b"gone", b"now"
# Words of a watcher's command line, behind the offsets: only what the files hold now; no samples.
ONCE, NO_SAMPLES = "once", "no-samples"


def get_missing_kind(kind: str) -> str:
    """The kind of what stands for bytes that are gone: how many."""
    return "missing-" + kind


class WatchFrame(NamedTuple):
    """A piece of one of a run's files, from ``offset`` on."""

    kind: str
    offset: int = 0
    data: bytes = b""


def pack_header(frame: "WatchFrame") -> bytes:
    """What stands before the data of a frame."""
    return _HEADER.pack(frame.kind.encode(), frame.offset, len(frame.data))


def pack_frame(frame: "WatchFrame") -> bytes:
    return pack_header(frame) + frame.data


def unpack_frame(data: bytes, at: int = 0) -> "Tuple[Optional[WatchFrame], int]":
    """The frame that begins at a position and the position behind it; None and ``at`` of one that is not whole. Raises
    `DamagedError` for one that is too long."""
    begin = at + _HEADER.size
    if len(data) < begin:
        return None, at
    kind, offset, length = _HEADER.unpack_from(data, at)
    if length > LONGEST:
        raise DamagedError("a frame of %d bytes" % length)
    end = begin + length
    if len(data) < end:
        return None, at
    return WatchFrame(kind.decode("latin-1"), offset, data[begin:end]), end


BLOCK = 1 << 14  # bytes of lines that are one line to Hydra, at most
_ESCAPE = b"\x10"  # a data link escape, rare in text; then the digit of what it stands for
_JOINT = b"\x11"  # stands for the end of a line inside a block


def escape_output(data: bytes) -> bytes:
    """What the wrapper passes on of what a script wrote: without ``\\x01``, in blocks of joined lines. Of each `BLOCK`
    bytes the last end of a line stays one."""
    data = data.replace(_ESCAPE, _ESCAPE + b"0").replace(b"\x01", _ESCAPE + b"1").replace(_JOINT, _ESCAPE + b"2")
    blocks, at = [], 0
    while at < len(data):
        end = data.rfind(b"\n", at, at + BLOCK)
        until = end if end >= 0 else at + BLOCK
        blocks.append(data[at:until].replace(b"\n", _JOINT))
        if end >= 0:
            blocks.append(b"\n")
        at = until + (end >= 0)
    return b"".join(blocks)


def unescape_output(data: bytes) -> "Tuple[bytes, bytes]":
    """What was escaped, and the beginning of an escape whose end is still to come."""
    data = data.replace(_JOINT, b"\n")
    if _ESCAPE not in data:  # a search for two bytes costs a hundred times as much
        return data, b""
    end = len(data) - data.endswith(_ESCAPE)
    whole = data[:end].replace(_ESCAPE + b"2", _JOINT).replace(_ESCAPE + b"1", b"\x01").replace(_ESCAPE + b"0", _ESCAPE)
    return whole, data[end:]


def build_opening(nonce: str) -> bytes:
    """How each tag and each frame of the run begins."""
    return b"\x01" + nonce.encode()


def build_hydra_pattern(nonce: str) -> str:
    """Hydra's ``-prepend-pattern``; ``%r`` becomes the rank."""
    return "\x01%s:%%r\x02" % nonce


def build_frame_opening(nonce: str) -> bytes:
    return build_opening(nonce) + b"="


def build_frame_head(nonce: str, rank: int) -> bytes:
    """A rank's frames up to their stream and length."""
    return b"%s%d" % (build_frame_opening(nonce), rank)


def build_frame_tail(stream: str, length: int) -> bytes:
    return b"%s%d\x02" % (stream.encode(), length)


def build_tag(nonce: str, rank: int) -> bytes:
    return b"%s:%d\x02" % (build_opening(nonce), rank)


def compile_tag_pattern(nonce: str) -> "Pattern[bytes]":
    """Group 1 is the rank."""
    return re.compile(re.escape(build_opening(nonce)) + rb":(\d{1,12})\x02")


def compile_frame_pattern(nonce: str) -> "Pattern[bytes]":
    """Groups: rank, stream, length."""
    return re.compile(re.escape(build_opening(nonce)) + rb"=(\d{1,9})([oe])(\d{1,9})\x02")


def compile_rank_pattern(nonce: str) -> "Pattern[bytes]":
    """The rank of a tag or of a frame, which may still be cut off after its stream."""
    return re.compile(re.escape(build_opening(nonce)) + rb"[:=](\d+)[\x02oe]")


def select_rank_output(data: bytes, nonce: str, rank: int) -> bytes:
    """What of a piece of an output is of one rank; it may begin and end anywhere. Time is linear in the bytes."""
    opening = re.escape(build_opening(nonce))
    parts = re.split(opening + rb"(?::(\d{1,12})|=(\d{1,9})[oe]\d{1,9})\x02", data)
    tags = zip(parts[1::3], parts[2::3], parts[3::3])
    mine = [(tag, text) for tag, frame, text in tags if int(tag or frame) == rank]
    text = b"".join(text for _, text in mine)
    return unescape_output(text)[0] if any(tag for tag, _ in mine) else text  # frames have no escapes


UNFINISHED = re.compile(rb":\d{0,12}|=\d{0,9}(?:[oe]\d{0,9})?")  # what may follow the opening before the rest arrives
