"""Single lines of frames: rows, rules, two ends, bars and sparklines. However narrow the screen, each is one."""

import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ipexctl.show.sanitise import escape
from ipexctl.show.typeset import QUIET, STRONG, Part, text

_BAR = re.compile(r"(.*?)(\d{1,3}%)\|[^|]*\|(.*)")  # of tqdm: words, how far, the bar itself, numbers
_LEVELS = "▁▂▃▄▅▆▇█"


def make_row(*parts: Part) -> Text:
    """One line, cut at the screen's edge."""
    line = text(*parts)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def fill_cells(words: str, size: int) -> str:
    """Words in exactly so many cells: filled with blanks, or cut with a mark."""
    missing = size - cell_len(words)
    return words + " " * missing if missing >= 0 else set_cell_size(words, max(size - 1, 0)) + "…"[:size]


def fit_bar(line: str, room: int) -> str:
    """A line as it is, but of tqdm's that has not enough room the numbers: words and the bar itself give way."""
    bar = _BAR.fullmatch(line) if cell_len(line) > room else None
    if bar is None:
        return line
    shorter = ("".join(bar.groups()[first:]).lstrip() for first in range(3))
    return next((words for words in shorter if cell_len(words) <= room), bar[3].lstrip())


def justify_ends(width: int, left: str, right: str, more: str = "") -> Text:
    """One line with something at both ends; ``more`` follows the left end, quieter."""
    room = max(width - cell_len(right) - 2, 8)
    left = left if cell_len(left) <= room else set_cell_size(left, room - 1) + "…"
    more = more if cell_len(left + more) <= room else ""
    gap = max(width - cell_len(left + more) - cell_len(right), 2)
    return make_row((left, STRONG), more, " " * gap, (right, QUIET))


def draw_rule(name: str, width: int, end: str = "") -> Text:
    """``─ name ───── end ─``."""
    name, end = (f"─ {escape(name)} " if name else ""), (f" {escape(end)} ─" if end else "")
    end = end if cell_len(name + end) <= width else ""
    return make_row((name + "─" * max(width - cell_len(name + end), 0) + end, QUIET))


def draw_sparkline(values: Sequence[float], top: float, width: int) -> str:
    """The last ``width`` values, each as a bar of an eighth to eight eighths of a line; ``top`` is the highest."""
    if top <= 0:
        return _LEVELS[0] * min(len(values), width)
    return "".join(_LEVELS[min(max(int(value / top * 8 - 1e-9), 0), 7)] for value in list(values)[-width:])
