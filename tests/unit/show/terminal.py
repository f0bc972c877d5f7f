"""A terminal made of memory (pyte): feeds it bytes, says what stands on it, as text or as an SVG picture.

A picture holds one element for each run of equal style, so that differences can be read, and follows the reader's
light or dark theme. It names fonts and fetches nothing.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple
from xml.sax.saxutils import escape

import pyte
from pyte.screens import Char
from rich.console import Console

CELL, LINE, EDGE = 8.4, 18, 12  # pixels: the width and height of a character of 14 px, and the margin

_LIGHT = """text{fill:#1f2328}rect{fill:#fff;stroke:#d0d7de}
.red{fill:#c0202b}.green{fill:#1a7f37}.brown{fill:#8a5a00}.blue{fill:#0550ae}.magenta{fill:#8250df}.cyan{fill:#1b7c83}"""
_DARK = """text{fill:#d1d7e0}rect{fill:#15191f;stroke:#3d444d}
.red{fill:#ff7b72}.green{fill:#57ab5a}.brown{fill:#d9a13b}.blue{fill:#6cb6ff}.magenta{fill:#b083f0}.cyan{fill:#56d4dd}"""
_FONT = 'text{font:14px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;white-space:pre}'
_STYLE = f"{_FONT}.b{{font-weight:bold}}.q{{opacity:.65}}\n{_LIGHT}\n@media (prefers-color-scheme:dark){{{_DARK}}}"


class Terminal(io.BytesIO):
    """What `Pipe` needs of a terminal; ``encoding`` is that of its locale."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self.encoding = encoding

    def isatty(self) -> bool:
        return True


def make_console(pipe: Any, width: int, height: int, *, colours: bool = True) -> Console:
    """The console of ipexctl on a pipe, of this size."""
    colour_system: Literal["256"] | None = "256" if colours else None
    return Console(
        file=pipe, force_terminal=True, color_system=colour_system, width=width, height=height,
        markup=False, emoji=False, highlight=False,
    )  # fmt: skip


class _Screen(pyte.Screen):
    """pyte knows no faint characters: here they are its italics, which ipexctl never writes. What scrolls out of the
    top is stored as in its own HistoryScreen, which takes half as long again for pages that nobody turns here."""

    def __init__(self, width: int, height: int) -> None:
        self.scrolled_out: list[Mapping[int, Char]] = []
        super().__init__(width, height)

    def index(self) -> None:
        top, bottom = self.margins or (0, self.lines - 1)
        if self.cursor.y == bottom:
            self.scrolled_out.append(self.buffer[top])
        super().index()

    def select_graphic_rendition(self, *attributes: int, **more: bool) -> None:
        changed = [3 if number == 2 else number for number in attributes]
        if 22 in changed:
            changed.insert(changed.index(22), 23)
        super().select_graphic_rendition(*changed, **more)


def read_screen(data: bytes, width: int, height: int, *, whole: bool = False) -> list[list[Char]]:
    """The cells of the lines that a terminal of this size shows after these bytes; ``whole``: those that scrolled out
    of it too. Empty lines at the end are left out."""
    screen = _Screen(width, height)
    pyte.ByteStream(screen).feed(data.replace(b"\n", b"\r\n"))
    above = screen.scrolled_out if whole else []
    written = 1 + max((y for y, line in screen.buffer.items() if line), default=-1)
    rows = [[line[x] for x in range(width)] for line in [*above, *(screen.buffer[y] for y in range(written))]]
    while rows and not _text(rows[-1]):
        rows.pop()
    return rows


def _text(row: list[Char]) -> str:
    return "".join(cell.data for cell in row).rstrip()


def as_text(rows: list[list[Char]]) -> str:
    return "".join(f"{_text(row)}\n" for row in rows)


def as_svg(rows: list[list[Char]], title: str, width: int, height: int) -> str:
    """The picture of a screen of ``width`` × ``height`` characters."""
    across, down = _measure(width, height)
    head = f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>"
    return "\n".join([_open(across, down), head, *_draw(rows, width, height), "</svg>", ""])


def as_moving_svg(frames: Sequence[list[list[Char]]], title: str, width: int, height: int) -> str:
    """Screens one after the other, 0.75 s each, the last one for six seconds, and from the beginning again. A reader
    who wants no motion sees the last one."""
    across, down = _measure(width, height)
    whole = 0.75 * (len(frames) - 1) + 6
    rules, parts = [], []
    for number, rows in enumerate(frames):
        begin, end = 100 * 0.75 * number / whole, 100.0 if number == len(frames) - 1 else 75 * (number + 1) / whole
        steps = f"0%{{opacity:0}}{begin:.3f}%{{opacity:1}}{end:.3f}%{{opacity:0}}100%{{opacity:0}}"
        rules.append(f"@keyframes f{number}{{{steps}}}.f{number}{{animation:f{number} {whole:g}s step-end infinite}}")
        parts += [f'<g class="f{number}">', *_draw(rows, width, height), "</g>"]
    still = "".join(f".f{number}{{animation:none;opacity:0}}" for number in range(len(frames) - 1))
    still += f".f{len(frames) - 1}{{animation:none}}"
    rules.append(f"@media (prefers-reduced-motion){{{still}}}")
    head = f"<title>{escape(title)}</title>\n<style>{_STYLE}{''.join(rules)}</style>"
    return "\n".join([_open(across, down), head, *parts, "</svg>", ""])


class Panel(NamedTuple):
    """A screen among others: its lines, its width, and the theme it has whatever the reader's is."""

    caption: str
    rows: list[list[Char]]
    width: int
    theme: Literal["", "light", "dark"] = ""


def as_sheet(panels: Sequence[Panel], title: str) -> str:
    """Screens below each other, each as high as it needs to be, with a caption above it."""
    lines, top, across = [], 0.0, max(_measure(panel.width, 1)[0] for panel in panels)
    for panel in panels:
        lines.append(f'<text class="c" x="{EDGE}" y="{top + 20:g}">{escape(panel.caption)}</text>')
        lines.append(f'<g transform="translate(0 {top + 28:g})" class="{panel.theme or "own"}">')
        lines += [*_draw(panel.rows, panel.width, len(panel.rows)), "</g>"]
        top += 28 + _measure(panel.width, len(panel.rows))[1] + EDGE
    # The captions stand on the page, whose colour is not known: a grey that can be read on both.
    themes = "".join(f".{name} {rule}" for name, css in (("light", _LIGHT), ("dark", _DARK)) for rule in _rules(css))
    style = f"{_STYLE}\n{themes}\n.c{{fill:#768390;font-family:sans-serif}}"
    head = f"<title>{escape(title)}</title>\n<style>{style}</style>"
    return "\n".join([_open(across, top), head, *lines, "</svg>", ""])


def _rules(css: str) -> list[str]:
    return [f"{rule}}}\n" for rule in css.replace("\n", "").split("}") if rule]


def _measure(width: int, height: int) -> tuple[float, float]:
    return width * CELL + 2 * EDGE, height * LINE + 2 * EDGE


def _open(across: float, down: float) -> str:
    size = f'viewBox="0 0 {across:g} {down:g}" width="{across:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" xml:space="preserve">'


def _draw(rows: list[list[Char]], width: int, height: int) -> list[str]:
    """A frame and one element for each run of equal style."""
    across, down = _measure(width, height)
    lines = [f'<rect x=".5" y=".5" width="{across - 1:g}" height="{down - 1:g}" rx="8"/>']
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
    return lines


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
