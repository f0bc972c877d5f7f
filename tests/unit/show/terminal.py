"""A terminal made of memory (pyte): feeds it bytes, says what stands on it, as text or as an SVG picture.

A picture holds one element for each run of equal style, so that differences can be read, and follows the reader's
light or dark theme. It names fonts and fetches nothing.
"""

from __future__ import annotations

import io
from itertools import groupby
from xml.sax.saxutils import escape

import pyte
from pyte.screens import Char

CELL, LINE, EDGE = 8.4, 18, 12  # pixels: the width and height of a character of 14 px, and the margin

_STYLE = """text{font:14px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;white-space:pre;fill:#1f2328}
rect{fill:#fff;stroke:#d0d7de}.b{font-weight:bold}.q{opacity:.65}
.red{fill:#c0202b}.green{fill:#1a7f37}.brown{fill:#8a5a00}.blue{fill:#0550ae}.magenta{fill:#8250df}.cyan{fill:#1b7c83}
@media (prefers-color-scheme:dark){text{fill:#d1d7e0}rect{fill:#15191f;stroke:#3d444d}
.red{fill:#ff7b72}.green{fill:#57ab5a}.brown{fill:#d9a13b}.blue{fill:#6cb6ff}.magenta{fill:#b083f0}.cyan{fill:#56d4dd}}"""


class Terminal(io.BytesIO):
    """What `Pipe` needs of a terminal; ``encoding`` is that of its locale."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self.encoding = encoding

    def isatty(self) -> bool:
        return True


class _Screen(pyte.HistoryScreen):
    """pyte knows no faint characters: here they are its italics, which ipexctl never writes."""

    def select_graphic_rendition(self, *attributes: int, **more: bool) -> None:
        changed = [3 if number == 2 else number for number in attributes]
        if 22 in changed:
            changed.insert(changed.index(22), 23)
        super().select_graphic_rendition(*changed, **more)


def read_screen(data: bytes, width: int, height: int, *, whole: bool = False) -> list[list[Char]]:
    """The cells of the lines that a terminal of this size shows after these bytes; ``whole``: those that scrolled out
    of it too. Empty lines at the end are left out."""
    screen = _Screen(width, height, history=5000)
    pyte.ByteStream(screen).feed(data.replace(b"\n", b"\r\n"))
    above = list(screen.history.top) if whole else []
    rows = [[line[x] for x in range(width)] for line in [*above, *(screen.buffer[y] for y in range(height))]]
    while rows and not _text(rows[-1]):
        rows.pop()
    return rows


def _text(row: list[Char]) -> str:
    return "".join(cell.data for cell in row).rstrip()


def as_text(rows: list[list[Char]]) -> str:
    return "".join(f"{_text(row)}\n" for row in rows)


def as_svg(rows: list[list[Char]], title: str, width: int, height: int) -> str:
    """The picture of a screen of ``width`` × ``height`` characters."""
    across, down = width * CELL + 2 * EDGE, height * LINE + 2 * EDGE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across:g} {down:g}" width="{across:g}"'
        ' role="img" xml:space="preserve">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect x=".5" y=".5" width="{across - 1:g}" height="{down - 1:g}" rx="8"/>',
    ]
    for number, row in enumerate(rows):
        y, x = EDGE + LINE * number + 14, 0
        for style, run in groupby(row, _style):
            cells = list(run)
            words = "".join(cell.data for cell in cells)
            blank = len(words) - len(words.lstrip())
            if shown := words.strip():
                at, long = EDGE + (x + blank) * CELL, len(shown) * CELL
                attributes = f'x="{at:.4g}" y="{y}" textLength="{long:.4g}"{style}'
                lines.append(f"<text {attributes}>{escape(shown)}</text>")
            x += len(cells)
    return "\n".join([*lines, "</svg>", ""])


def _style(cell: Char) -> str:
    known = cell.fg.removeprefix("bright")
    hexadecimal = len(known) == 6 and not set(known) - set("0123456789abcdef")
    names = [
        *(["b"] if cell.bold else []),
        *(["q"] if cell.italics else []),
        *([known] if known != "default" and not hexadecimal else []),
    ]
    style = f' class="{" ".join(names)}"' if names else ""
    return f'{style} style="fill:#{known}"' if hexadecimal else style
