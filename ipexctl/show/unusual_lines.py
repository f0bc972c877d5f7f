"""Which of the ranks' lines are unusual, and how many are known to be harmless.

Equal lines are one, whatever their time stamps and addresses; a continuation line belongs to the line before it."""

import re
from collections import OrderedDict
from dataclasses import dataclass, field

from ipexctl.model import events as e
from ipexctl.model.figures import read_figures
from ipexctl.model.harmless import find_harmless
from ipexctl.show.rank_log import format_line

BUDGET = 1 << 15  # bytes that are searched in a tenth of a second
LINES = 200  # lines of error output a tenth of a second, likewise
MOST = 200  # unusual lines held; the oldest make room
_LINE = 400  # bytes of a line

# Words that make a line of standard output unusual, or a known harmless one. No leading repetition: it would look at
# each byte many times.
_WORDS = r"Warning|WARN|Error|ERROR|Exception|Traceback|FATAL|Killed|\b(?:nan|NaN)\b"
_ODD = re.compile(_WORDS)
_ODD_OR_KNOWN = re.compile(_WORDS.encode() + rb"|\[Gloo\]|My guessed rank")
_ROUTINE = re.compile(r"%\||\b(?:INFO|DEBUG)\b|^\[?I\d{4} ")  # bars and reports on standard error

# What differs between lines that mean the same: time stamps, addresses, process and rank numbers of loggers.
_VARIABLE = re.compile(
    r"\b[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} {1,4}\d{1,9}(?= )"  # glog, with the number of a thread
    r"|\b\d{4}[-/:]\d\d[-/:]\d\d[-T: ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?|\b\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"|\b[IWEF]\d{3,4}(?= )|\b0x[0-9a-fA-F]{1,16}\b|\[rank\d{1,6}\]|\(\d{2,9}\)|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?"
)


@dataclass(slots=True)
class UnusualLine:
    """An unusual line and the ranks that printed it."""

    text: str
    ranks: set[int] = field(default_factory=set)
    count: int = 0
    more: int = 0  # continuation lines


@dataclass(slots=True)
class HarmlessLines:
    """Lines of one known harmless message, and the ranks that printed them."""

    ranks: set[int] = field(default_factory=set)
    count: int = 0


class UnusualLines:
    """Takes output, remembers what is unusual in it. Memory and time are bounded whatever ranks print."""

    def __init__(self) -> None:
        self.entries: OrderedDict[str, UnusualLine] = OrderedDict()
        self.harmless: dict[str, HarmlessLines] = {}  # by the code of the message
        self._heads: dict[int, UnusualLine | HarmlessLines | None] = {}  # of each rank's error output
        self._tracebacks: dict[int, int] = {}  # lines of a traceback whose last line is still to come
        self._codes: dict[str, str | None] = {}  # of lines looked up lately: all ranks print the same ones
        self._window = 0.0
        self._budget = BUDGET
        self._lines = LINES

    @property
    def hidden(self) -> int:
        """Known harmless lines."""
        return sum(entry.count for entry in self.harmless.values())

    def handle_output(self, event: e.Output, at: float) -> None:
        """Looks at the whole lines of one output, within the budget of this tenth of a second."""
        if not 0 <= at - self._window < 0.1:
            self._window, self._budget, self._lines = at, BUDGET, LINES
        data = event.data[-self._budget :] if self._budget else b""
        self._budget -= len(data)
        if event.stream == "err":
            lines = [line for line in data.split(b"\n") if line.strip()]
            lines = lines[len(lines) - min(len(lines), self._lines) :]
            self._lines -= len(lines)
            for line in lines:
                self._add_error_line(event.rank, format_line(line[:_LINE]))
        else:
            for line in _find_unusual_lines(data):
                shown = format_line(line[:_LINE])
                if (code := self._find_code(shown)) is not None:
                    self._count_harmless(code, event.rank)
                elif _ODD.search(shown):
                    self._get_entry(shown, event.rank)

    def _add_error_line(self, rank: int, line: str) -> None:
        if line.startswith("Traceback (most recent call last)"):
            self._tracebacks[rank] = 1
            return
        indented = line[:1] == " "
        if rank in self._tracebacks:
            if indented:
                self._tracebacks[rank] += 1
                return
            entry = self._get_entry(line, rank)
            entry.more = max(entry.more, self._tracebacks.pop(rank))
            self._heads[rank] = None
            return
        head = self._heads.get(rank)
        code = self._find_code(line)
        if code is not None:
            self._heads[rank] = self._count_harmless(code, rank)
        elif indented and isinstance(head, HarmlessLines):
            head.count += 1
        elif indented and isinstance(head, UnusualLine):
            head.more += head.count == 1
        elif _ODD.search(line) is None and (_ROUTINE.search(line) or read_figures(line)):
            self._heads[rank] = None
        else:
            self._heads[rank] = self._get_entry(line, rank)

    def _find_code(self, line: str) -> str | None:
        key = _VARIABLE.sub("#", line)
        if key not in self._codes:
            if len(self._codes) >= MOST:
                self._codes.clear()
            self._codes[key] = find_harmless(line)
        return self._codes[key]

    def _count_harmless(self, code: str, rank: int) -> HarmlessLines:
        entry = self.harmless.setdefault(code, HarmlessLines())
        entry.ranks.add(rank)
        entry.count += 1
        return entry

    def _get_entry(self, line: str, rank: int) -> UnusualLine:
        key = _VARIABLE.sub("#", line).strip()
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = UnusualLine(line.strip())
            if len(self.entries) > MOST:
                self.entries.popitem(last=False)
        entry.text = line.strip()
        entry.ranks.add(rank)
        entry.count += 1
        return entry


def _find_unusual_lines(data: bytes) -> list[bytes]:
    """The lines of these bytes that hold an odd word, the last 50 of them."""
    lines: list[bytes] = []
    end = -1
    for match in _ODD_OR_KNOWN.finditer(data):
        if match.start() < end:
            continue  # a line that is known already
        start = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.end())
        end = len(data) if end < 0 else end
        lines.append(data[start:end])
    return lines[-50:]
