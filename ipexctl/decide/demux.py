"""Bytes of mpirun's one pipe → bytes per rank, exactly; and from those, whole lines.

Tags and frames are those of `protocol.frames`. What starts a line without a tag is the launcher's own output. Removing
the tags and the escapes gives back exactly what the rank wrote. Time is linear in the bytes and in the tags.

Under Open MPI the wrapper of each rank frames all that the rank writes, both streams, and mpirun passes on each frame
whole. A `Demux` takes tags or frames; the first frame decides."""

from collections.abc import Iterator
from dataclasses import dataclass

from ipexctl.protocol import frames

Piece = tuple[int | None, str, bytes]

LONGEST = 1 << 16  # bytes of one line that are kept back; a longer one is passed on in pieces


class Demux:
    """Takes one of mpirun's outputs in pieces of any size; gives (rank, stream, bytes), rank None for the launcher
    itself. ``stream`` is the output's own name ("o" or "e"), which frames may contradict. ``torn``: the output does not
    begin at its first byte; what comes before the first tag is a part of some rank's block, and is given as None's."""

    def __init__(self, nonce: str, stream: str = "o", *, torn: bool = False) -> None:
        self.stream = stream
        self._torn = torn  # nothing was read yet
        self._opening = frames.build_opening(nonce)
        self._first = self._opening[:1]  # is found a hundred times as fast as a whole opening
        self._tag, self._frame = frames.compile_tag_pattern(nonce), frames.compile_frame_pattern(nonce)
        self._held = b""  # what may be the beginning of a tag
        self._rank: int | None = None
        self._fresh = True  # at the start of a line
        self._framed = False  # a frame was seen
        self._within = (0, "")  # rank and stream of the frame that goes on
        self._left = 0  # its bytes still to come
        self._escapes: dict[int | None, bytes] = {}  # ranks whose last piece ended in the middle of an escape

    def feed(self, data: bytes) -> list[Piece]:
        data = self._held + data if self._held else data
        if self._framed:
            self._held = b""
            return self._split_frames(data)
        cut = self._find_unfinished_tag(data)
        data, self._held = (data[:cut], data[cut:]) if cut < len(data) else (data, b"")
        return self._split_at_tags(data)

    def end(self) -> list[Piece]:
        """What was held back: the pipe ended in the middle of something that looked like a tag."""
        data, self._held = self._held, b""
        pieces = [(None, self.stream, data)] if self._framed and data else self._split_at_tags(data)
        return [*pieces, *((rank, self.stream, cut) for rank, cut in self._escapes.items())]

    def _split_frames(self, data: bytes) -> list[Piece]:
        """The contents of frames. What stands between them is the launcher's."""
        gathered: dict[tuple[int | None, str], list[bytes]] = {}
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                gathered.setdefault(self._within, []).append(piece)
                self._left -= len(piece)
                at += len(piece)
                continue
            header = self._frame.search(data, at)
            until = header.start() if header else self._find_unfinished_tag(data)
            if until > at:
                gathered.setdefault((None, self.stream), []).append(data[at:until])
            if header is None:
                self._held = data[max(at, until) :]
                break
            self._within, self._left = (int(header[1]), header[2].decode()), int(header[3])
            at = header.end()
        return [(rank, stream, b"".join(pieces)) for (rank, stream), pieces in gathered.items()]

    def _split_at_tags(self, data: bytes) -> list[Piece]:
        """What stands between tags. At a frame the rest is that of `_split_frames`."""
        gathered: dict[int | None, list[bytes]] = {}
        framed: list[Piece] = []
        begun, at = 0, data.find(self._first)
        while at >= 0:
            if tag := self._tag.match(data, at):
                self._assign_untagged(data[begun:at], gathered)
                self._rank, self._fresh, begun = int(tag[1]), False, tag.end()
            elif self._frame.match(data, at):
                self._framed = True
                framed, data = self._split_frames(data[at:] + self._take_held()), data[:at]
                break
            at = data.find(self._first, at + 1)
        self._assign_untagged(data[begun:], gathered)
        pieces = [(rank, self.stream, self._unescape(rank, b"".join(text))) for rank, text in gathered.items()]
        self._torn = self._torn and self._rank is None
        return pieces + framed

    def _take_held(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _unescape(self, rank: int | None, data: bytes) -> bytes:
        """The launcher's own output has no escapes."""
        if rank is None and not self._torn:
            return data
        if self._escapes:
            data = self._escapes.pop(rank, b"") + data
        text, cut = frames.unescape_output(data)
        if cut:
            self._escapes[rank] = cut
        return text

    def _assign_untagged(self, text: bytes, gathered: dict[int | None, list[bytes]]) -> None:
        """Text between two tags: the rest of its rank's line, then, if more follows, the launcher's."""
        if not text:
            return
        if self._fresh:
            self._rank = None
        end = text.find(b"\n") + 1
        if self._rank is not None and 0 < end < len(text):
            gathered.setdefault(self._rank, []).append(text[:end])
            self._rank, text = None, text[end:]
        gathered.setdefault(self._rank, []).append(text)
        self._fresh = text.endswith(b"\n")

    def _find_unfinished_tag(self, data: bytes) -> int:
        """Where a tag or a frame begins that has not ended yet; the length of ``data`` if there is none."""
        at = data.rfind(self._first, max(0, len(data) - len(self._opening) - 25))
        if at < 0:
            return len(data)
        tail, size = data[at:], len(self._opening)
        begun = self._opening.startswith(tail) or (
            tail[:size] == self._opening and frames.UNFINISHED.fullmatch(tail[size:]) is not None
        )
        return at if begun else len(data)


@dataclass(slots=True)
class Lines:
    """Holds a rank's last unfinished line back. What comes out, joined, is what went in."""

    _unfinished_line: bytes = b""
    _grown: bool = False  # since `release` was called

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """(bytes, partial): whole lines; pieces with ``partial`` where a bar redraws itself or a line is too long."""
        data = self._unfinished_line + data
        end = data.rfind(b"\n") + 1
        whole, remainder = data[:end], data[end:]
        if whole:
            yield whole, False
        bar = remainder.rfind(b"\r") + 1
        if bar:
            yield remainder[:bar], True
            remainder = remainder[bar:]
        while len(remainder) > LONGEST:
            yield remainder[:LONGEST], True
            remainder = remainder[LONGEST:]
        self._unfinished_line, self._grown = remainder, True

    def release(self) -> bytes:
        """The unfinished line, if it has not grown since the last call."""
        grown, self._grown = self._grown, False
        return b"" if grown else self.end()

    def end(self) -> bytes:
        """The last line, if it has no end."""
        remainder, self._unfinished_line = self._unfinished_line, b""
        return remainder
