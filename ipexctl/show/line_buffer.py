"""The lines of one stream of one rank, whatever the pieces, for the eye (the record keeps the bytes)."""

from ipexctl.show.sanitise import decode_utf8, escape, find_decodable_end, strip_colours

LIMIT = 1 << 16  # bytes of one line held at most; a longer one is shown in pieces
MORE = "…"  # marks both sides of a cut


def drop_overwritten(line: bytes) -> bytes:
    """What a terminal would show of a line that redraws itself: the text after its last carriage return."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def keep_latest_redraw(rest: bytes) -> bytes:
    """Of a line that has not ended the latest state, with the return before it: only the newest is ever shown."""
    return rest[max(0, rest.rstrip(b"\r").rfind(b"\r")) :]


class Lines:
    """Holds the unfinished line, at most `LIMIT` bytes. A bar that redraws itself is held as its latest state."""

    __slots__ = ("_continued", "_held")

    def __init__(self) -> None:
        self._held = b""
        self._continued = False

    def __bool__(self) -> bool:
        """Whether an unfinished line is held."""
        return bool(self._held) or self._continued

    def feed(self, data: bytes) -> list[str]:
        """The lines that these bytes finish, harmless, without their ends."""
        *whole, rest = (self._held + data if self._held else data).split(b"\n")
        done = [text for line in whole for text in self._finish_line(line)]
        self._held = self._cut_long_line(keep_latest_redraw(rest), done)
        return done

    def _finish_line(self, line: bytes) -> list[str]:
        done: list[str] = []
        rest = self._cut_long_line(drop_overwritten(line), done)
        if rest or not self._continued:
            done.append(self._format_piece(rest))
        self._continued = False
        return done

    def _cut_long_line(self, line: bytes, done: list[str]) -> bytes:
        """Adds what is too long to ``done``, in pieces; returns the rest."""
        while len(line) > LIMIT:
            cut = find_decodable_end(line[:LIMIT])
            done.append(self._format_piece(line[:cut]) + MORE)
            line, self._continued = line[cut:], True
        return line

    def _format_piece(self, line: bytes) -> str:
        return (MORE if self._continued else "") + escape(strip_colours(decode_utf8(line)))

    @property
    def current(self) -> str:
        """The unfinished line as it stands, without a character that is not complete yet."""
        line = drop_overwritten(self._held)
        return escape(strip_colours(decode_utf8(line[: find_decodable_end(line)])))

    @property
    def redraws(self) -> bool:
        return b"\r" in self._held

    def release(self) -> list[str]:
        """The unfinished line as far as it came, for one that has not grown for a while. Its rest will be marked."""
        end = find_decodable_end(self._held)
        colour = self._held.rfind(b"\x1b", max(end - 24, 0), end)
        end = colour if colour >= 0 and b"m" not in self._held[colour:end] else end  # it is not complete yet
        done = [self._format_piece(self._held[:end])] if end else []
        self._held, self._continued = self._held[end:], self._continued or end > 0
        return done

    def flush(self) -> list[str]:
        """The unfinished line, at the end of everything."""
        if not self:
            return []
        line, self._held = self._held, b""
        return self._finish_line(line)
