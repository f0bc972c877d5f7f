"""What ranks write: frames → bytes per rank, exactly → lines, whatever the pieces in which the bytes come.

Frames are those of `protocol.frames`. What stands between them is nobody's: a mark of the keeper where the space had
ended. Time is linear in the bytes. This is the one place that says what a line is.

A carriage return redraws a line: what stands before it is gone. So does a step up, as of a bar within a bar, also with
the newline that takes it back. A line longer than `LINE_LIMIT` is several, with `MORE` on both sides of each cut. A
character of UTF-8 is never cut."""

from dataclasses import dataclass

from ipexctl.model.text import strip_colours
from ipexctl.protocol import frames
from ipexctl.protocol.codec import MESSAGE_LIMIT

LINE_LIMIT = 1 << 16  # bytes of a line
MORE = "…".encode()
_UP = b"\x1b[A"
Piece = tuple[int | None, str, bytes]


def drop_overwritten(line: bytes) -> bytes:
    """What a terminal would show of a line: the text after its last redraw."""
    line = line.replace(_UP, b"\r").rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def find_decodable_end(data: bytes) -> int:
    """How many of these bytes can be decoded now: all but the beginning of a character that is not complete yet."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needs = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return len(data) - back if needs > back else len(data)
    return len(data)


def decode_line(line: bytes) -> str:
    """The text of a line, without colours; a replacement character for each byte that is no UTF-8."""
    return strip_colours(line.decode("utf-8", "replace"))


class LineSplitter:
    """Makes whole lines of one stream. Time is linear in the bytes, and at most one line is held."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The lines that these bytes end, each with its newline and as a terminal would show it."""
        data = (self._held + data).replace(_UP + b"\n", b"\r")
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        if b"\r" in whole or _UP in whole:
            whole = b"\n".join(map(drop_overwritten, whole.split(b"\n")))
        if len(whole) > LINE_LIMIT:
            whole = b"\n".join(map(_cut_long_line, whole.split(b"\n")))
        *pieces, self._held = _cut_long_line(rest[max(0, rest.rstrip(b"\r").rfind(b"\r")) :]).split(b"\n")
        return whole + b"".join(drop_overwritten(piece) + b"\n" for piece in pieces)

    @property
    def current(self) -> bytes:
        """The line that has not ended, as it stands, without a character that is not complete yet."""
        line = drop_overwritten(self._held)
        return line[: find_decodable_end(line)]

    @property
    def redraws(self) -> bool:
        """Whether that line has redrawn itself."""
        return b"\r" in self._held or _UP in self._held

    def end(self) -> bytes:
        """The line that has not ended, at the end of everything."""
        if not self._held:
            return b""
        self._held = drop_overwritten(self._held)
        return self.feed(b"\n")


def _cut_long_line(line: bytes) -> bytes:
    pieces = []
    while len(line) > LINE_LIMIT:
        cut = find_decodable_end(line[:LINE_LIMIT])
        pieces.append(line[:cut] + MORE)
        line = MORE + line[cut:]
    return b"\n".join([*pieces, line])


def extend_tail(tail: bytes, text: bytes) -> bytes:
    """The last lines of both. A long line, also one that was cut into several, is only its beginning and its end."""
    lines = (tail + text).replace(MORE + b"\n" + MORE, b"").rsplit(b"\n", _LAST_LINES)[-_LAST_LINES:]
    return b"\n".join([_drop_middle(line) if len(line) > _LINE_SIZE else line for line in lines])


_LAST_LINES, _LINE_SIZE = 48, 1 << 10  # lines (AddressSanitizer explains its marks in 32); bytes of one


def _drop_middle(line: bytes) -> bytes:
    begin, end = line[: _LINE_SIZE // 2], line[-_LINE_SIZE // 2 :]
    return begin[: find_decodable_end(begin)] + MORE + end.lstrip(bytes(range(0x80, 0xC0)))


@dataclass(slots=True)
class LineHolder:
    """Holds the last line of a stream back until it ends, so that events have whole lines. What comes out, joined, is
    what went in."""

    _held: bytes = b""
    _grown: bool = False  # since `release` was called

    def feed(self, data: bytes) -> bytes:
        """Everything up to the last end of a line, or the last redraw of one; and a line that is too long to hold."""
        data = self._held + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > LINE_LIMIT:
            end = len(data)
        self._held, self._grown = data[end:], True
        return data[:end]

    def release(self) -> bytes:
        """The line that has not ended, if it has not grown since the last call."""
        grown, self._grown = self._grown, False
        return b"" if grown else self.end()

    def end(self) -> bytes:
        """The last line, if it has no end."""
        held, self._held = self._held, b""
        return held


class RecordLines:
    """Makes lines of a file of records; a piece of it without an end of a line costs no more than its bytes. A line
    that is longer than any record is one that cannot be read."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        lines: list[bytearray] = []
        self._held += data
        if b"\n" in data:
            *lines, self._held = self._held.split(b"\n")
        if len(self._held) > MESSAGE_LIMIT:
            self._held = bytearray(b"\0")
        return [*map(bytes, lines)]


class Demux:
    """Takes the ranks' output in pieces of any size, from any byte on; gives (rank, stream, bytes), rank None for what
    is outside of frames."""

    def __init__(self, nonce: str) -> None:
        self._opening = frames.build_opening(nonce)
        self._frame = frames.compile_frame_pattern(nonce)
        self._held = b""  # what may be the beginning of a frame
        self._within = (0, "")  # rank and stream of the frame that goes on
        self._left = 0  # its bytes still to come

    def feed(self, data: bytes) -> list[Piece]:
        data, self._held = self._held + data if self._held else data, b""
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
            until = header.start() if header else self._find_unfinished_header(data)
            if until > at:
                gathered.setdefault((None, frames.ERR), []).append(data[at:until])
            if header is None:
                self._held = data[max(at, until) :]
                break
            self._within, self._left = (int(header[1]), header[2].decode()), int(header[3])
            at = header.end()
        return [(rank, stream, b"".join(pieces)) for (rank, stream), pieces in gathered.items()]

    def end(self) -> list[Piece]:
        """What was held back: the output ended in the middle of something that looked like a frame."""
        data, self._held = self._held, b""
        return [(None, frames.ERR, data)] if data else []

    def _find_unfinished_header(self, data: bytes) -> int:
        """Where a header begins that has not ended yet; the length of ``data`` if there is none."""
        at = data.rfind(self._opening[:1], max(0, len(data) - len(self._opening) - 25))
        if at < 0:
            return len(data)
        tail, size = data[at:], len(self._opening)
        begun = self._opening.startswith(tail) or (
            tail[:size] == self._opening and frames.UNFINISHED.fullmatch(tail[size:]) is not None
        )
        return at if begun else len(data)
