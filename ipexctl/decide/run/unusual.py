"""Which of the ranks' lines are unusual, and how many are known to be harmless.

Equal lines are one, whatever their time stamps and addresses; a continuation line belongs to the line before it."""

import re

from ipexctl.model.harmless import find_harmless
from ipexctl.model.run_state import HarmlessLines, RunState, UnusualLine
from ipexctl.model.text import printable

UNUSUAL_LIMIT = 200  # unusual lines held; the oldest make room
_LINE = 400  # characters of a line

# Words that make a line of standard output unusual, or a known harmless one. Each begins with a letter: anything else,
# as a repetition or \b, would look at each byte many times.
_WORDS = r"Warning|WARN|Error|ERROR|Exception|Traceback|FATAL|Killed|nan\b(?<!\wnan)|NaN\b(?<!\wNaN)"
_UNUSUAL_WORDS = re.compile(_WORDS)
_ODD_OR_KNOWN = re.compile(_WORDS + r"|\[Gloo\]|My guessed rank")
_ROUTINE = re.compile(r"%\||\b(?:INFO|DEBUG)\b|^\[?I\d{4} ")  # bars and reports on standard error

# What Python writes of an exception that ends no script, which may end with 0.
_BESIDE = {
    "in a thread": re.compile(r"Exception in thread "),
    "at its exit": re.compile(r"Exception ignored in atexit|Error in atexit\._run_exitfuncs"),
    "in a task": re.compile(r"Task exception was never retrieved$"),
    "in a process that it started": re.compile(r"Process \S.{0,100}:$"),  # of multiprocessing
    "": re.compile(r"Exception ignored (?:in|while)"),  # by a finalizer, mostly while Python ends
}
_TYPE = re.compile(
    r"(?!asyncio\.exceptions\.Cancelled|KeyboardInterrupt)[\w.]+(?:: |$)"
)  # of an exception, below its stack

# What differs between lines that mean the same: time stamps, addresses, process and rank numbers of loggers.
_VARIABLE = re.compile(
    r"\b[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} {1,4}\d{1,9}(?= )"  # glog, with the number of a thread
    r"|\b\d{4}[-/:]\d\d[-/:]\d\d[-T: ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?|\b\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"|\b[IWEF]\d{3,4}(?= )|\b0x[0-9a-fA-F]{1,16}\b|\[rank\d{1,6}\]|\(\d{2,9}\)|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?"
)


class UnusualReader:
    """Takes lines, notes in the state what is unusual in them. Memory is bounded whatever ranks print."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._heads: dict[int, UnusualLine | HarmlessLines | None] = {}  # of each rank's error output
        self._tracebacks: dict[int, int] = {}  # lines of a traceback whose last line is still to come
        self._beside: dict[int, str] = {}  # where the exception of the next traceback of a rank was raised

    def read_line(self, rank: int, stream: str, line: str, at: float, *, routine: bool) -> None:
        """Looks at one line; ``routine``: it has figures."""
        line = line[:_LINE]
        words = self._state.last_words
        if rank in words and line.strip() and line[0] not in " \t" and find_harmless(line) is None:
            del words[rank]
        if stream == "err":
            if line.strip():
                self._read_error_line(rank, line, at, routine)
        elif _ODD_OR_KNOWN.search(line):
            if (code := find_harmless(line)) is not None:
                self._count_harmless(code, rank)
            elif _UNUSUAL_WORDS.search(line):
                self._get_entry(line, rank)

    def _read_error_line(self, rank: int, line: str, at: float, routine: bool) -> None:
        if line.rstrip().endswith("Traceback (most recent call last):"):  # a bar may stand before it
            self._tracebacks[rank] = 1
            return
        indented = line[:1] in " \t"
        if rank in self._tracebacks:
            if indented or line.startswith("> File "):  # loguru's mark
                self._tracebacks[rank] += 1
                return
            entry = self._get_entry(line, rank)
            entry.more = max(entry.more, self._tracebacks.pop(rank))
            where = self._beside.pop(rank, None)
            if raised := printable(line.strip(), 120) if _TYPE.match(line) else "":
                if where is None:
                    self._state.last_words[rank] = at, raised
                elif where and not self._state.uncaught:
                    self._state.uncaught = rank, f"{where}: {raised}"
            self._heads[rank] = None
            return
        if beside := [where for where, pattern in _BESIDE.items() if pattern.match(line)]:
            self._beside[rank] = beside[0]
        elif not line.startswith("future: <Task"):
            self._beside.pop(rank, "")
        head = self._heads.get(rank)
        code = find_harmless(line)
        if code is not None:
            self._heads[rank] = self._count_harmless(code, rank)
        elif indented and isinstance(head, HarmlessLines):
            head.count += 1
        elif indented and isinstance(head, UnusualLine):
            head.more += head.count == 1
        elif _UNUSUAL_WORDS.search(line) is None and (routine or _ROUTINE.search(line)):
            self._heads[rank] = None
        else:
            self._heads[rank] = self._get_entry(line, rank)

    def _count_harmless(self, code: str, rank: int) -> HarmlessLines:
        entry = self._state.harmless.setdefault(code, HarmlessLines())
        entry.ranks.add(rank)
        entry.count += 1
        return entry

    def _get_entry(self, line: str, rank: int) -> UnusualLine:
        entries = self._state.unusual
        key = _VARIABLE.sub("#", line).strip()
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = UnusualLine(line.strip())
            if len(entries) > UNUSUAL_LIMIT:
                entries.popitem(last=False)
        entry.text = line.strip()
        entry.ranks.add(rank)
        entry.count += 1
        return entry
