r"""Untrusted text made harmless and visible: what a rank, a host or a file name says never steers the terminal.

Every control character becomes its escape as text (``\x1b``, ``\x9b``), so that no sequence survives, whole, split over
two writes or never ended. Bidirectional overrides and other invisible characters are shown too (``\u202e``). Nothing
here knows markup: carry the result in `rich.text.Text`, never in a markup string."""

import re

from ipexctl.model.text import escape_char

_PLAIN = bytes([9, 10, *range(0x20, 0x7F)])

# C1 and DEL, Arabic letter mark, zero widths but joiners, bidi marks and overrides, line and paragraph separators,
# interlinear marks, tag characters (invisible), and lone surrogates (file names that are not UTF-8: no terminal stream
# can encode them). The joiners U+200C and U+200D stay: scripts and emoji need them, and they move nothing.
_REST = (
    "\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff"
)
_UNSAFE = re.compile(f"[\x00-\x08\x0a-\x1f{_REST}]")
_UNSAFE_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_REST}]")


def is_printable_ascii(data: bytes) -> bool:
    """Whether these bytes are printable ASCII, tabs and newlines only. About 1 ns a byte."""
    return not data.translate(None, _PLAIN)


def is_safe_to_print(text: str) -> bool:
    """Whether a text of several lines can be shown as it is."""
    return _UNSAFE_IN_LINES.search(text) is None


def decode_utf8(data: bytes) -> str:
    """UTF-8; a replacement character for each really invalid byte or cut character."""
    return data.decode("utf-8", "replace")


def escape(text: str) -> str:
    r"""One line, harmless. A newline inside is shown as ``\x0a``: split lines first."""
    return text if _UNSAFE.search(text) is None else _UNSAFE.sub(lambda match: escape_char(match.group()), text)


def one_line(value: object) -> str:
    """Any value as one harmless line."""
    return escape(" ".join(str(value).splitlines()))


def escape_lines(text: str) -> list[str]:
    r"""A text of several lines (a traceback, last words), harmless line by line. CR LF counts as one end."""
    return [escape(line.removesuffix("\r")) for line in text.split("\n")]
