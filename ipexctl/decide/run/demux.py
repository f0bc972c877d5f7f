"""The frames in which ranks' output arrives → bytes per rank, exactly.

Frames are those of `protocol.frames`. What stands between them is nobody's: a mark of the keeper where the space had
ended. Time is linear in the bytes."""

from ipexctl.protocol import frames

Piece = tuple[int | None, str, bytes]


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
