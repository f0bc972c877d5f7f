"""What there is to tell why a rank failed, in one order. The first of these that there is decides, known or not:

1. the exception that nobody caught, and those that it names as its cause;
2. the signal that ended the rank;
3. what MPI, OpenMP or another runtime wrote last.

An exception that was handled tells only whether another rank was gone by then; a warning and a message that is known to
be harmless are no evidence."""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from ipexctl.model.harmless import find_harmless
from ipexctl.model.json_values import Record
from ipexctl.model.reports import RankOutcome

_FRAME = re.compile(r'\s*File "(?P<file>.*)", line \d+(?:, in .*|(?P<crash> in .*))?$')  # faulthandler has no comma
_HEADER = re.compile(r"\s*(?:\w+ ){,100}Traceback \(most recent call last\):$|(?:Current t|T)hread 0x")
_NEXT = re.compile(r"^.*(?:(direct cause of the following exception)|another exception occurred):$", re.MULTILINE)
_GROUP = re.compile(r"^ +(?:\| ?|\+[-+].*)", re.MULTILINE)  # what an ExceptionGroup draws before each line
_TYPE = re.compile(r"[\w.]+(?:: |$)")  # of an exception, below its stack
_EXCEPTION = re.compile(r"(?!\S*python[\d.]*: ).*\b[A-Z]\w*(?:Error|Exception|Exit|Interrupt)(?:: |$)")  # in a text
_PREFIXED = re.compile(r'(?P<prefix>|\S.{,80}?)\s{1,8}File ".*", line \d+, in ')
_WARNING = re.compile(r"\b\w*Warning: |\bWARN(?:ING)?\b|_WARN\||<warn>|^(?:\[rank\d+\]:)?\[?W(?:\d{3,4} |\s?\w+\.cpp:)")
_IGNORED = re.compile(r"Exception ignored (?:in|while)\b|Error in atexit\.")  # above the traceback that ended nothing
_FATAL = "Fatal Python error"  # faulthandler's first words on a signal
_SHELL = 128  # a shell's exit status, without the number of the signal that ended its child
_CRASHES = (4, 6, 7, 8, 9, 11)  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV

_Part = Literal["header", "frame", "source", "exception", "other"]


class RaisedException(Record):
    """The message of an exception, with its type, and the files and source lines of its stack, the innermost last."""

    text: str
    files: str = ""


class Evidence(Record):
    """What tells why a rank failed; `exceptions` begins with the one that nobody caught."""

    exceptions: tuple[RaisedException, ...] = ()
    handled: tuple[RaisedException, ...] = ()  # when these were raised, as in an except or a finally
    signal: int = 0
    output: str = ""
    crash: str = ""  # the stack of the interpreter that a signal ended
    observed: tuple[str, str] | None = None  # `RankOutcome.observed`

    @property
    def own(self) -> bool:
        """Whether the rank shows more than that it ended."""
        return bool(self.exceptions) or self.signal in _CRASHES


def collect_evidence(rank: RankOutcome) -> Evidence:
    """Returns what this rank shows of its end."""
    lines = rank.tail.splitlines()
    prefix = _find_prefix(lines)
    own = [line for line in lines if line.startswith(prefix)]
    if prefix:
        lines, own = ([line.removeprefix(prefix).removeprefix(" ") for line in each] for each in (lines, own))
    crash = rank.traceback.splitlines() if rank.traceback.startswith(_FATAL) else []
    exceptions, handled = ((), ()) if crash else _parse_traceback(rank.traceback)
    for error in _parse_traceback(rank.error)[0][:1]:  # it may hold the traceback of a worker
        is_same = exceptions and (error.text in exceptions[0].text or exceptions[0].text in error.text)
        exceptions = exceptions if is_same else (error, *exceptions)
    shell = (rank.status or 0) - _SHELL
    signal = rank.signal or (shell if shell in _CRASHES else 0)
    output = read_runtime_output([*crash, *lines])
    return Evidence(exceptions or _find_last_exception(own), handled, signal, output, "\n".join(crash), rank.observed)


def read_runtime_output(lines: Iterable[str]) -> str:
    """Returns what the runtime wrote among these lines: without warnings, and without words on exceptions, which
    somebody has handled who went on to write."""
    others = [line for part, line in _label_lines(lines) if part == "other" and line.strip() and not _is_warning(line)]
    return "\n".join([*(line for line in others[:-1] if not _EXCEPTION.match(line)), *others[-1:]])


def holds_stack(message: str) -> bool:
    """Whether the message of an exception has the stack of another one: that of a worker, a task, another rank."""
    return any(map(_FRAME.match, message.splitlines()))


def _is_warning(line: str) -> bool:
    return _WARNING.search(line) is not None or find_harmless(line) is not None


def _parse_traceback(text: str) -> tuple[tuple[RaisedException, ...], tuple[RaisedException, ...]]:
    """Returns the last exception with its causes, and those that were handled when they were raised."""
    text = _GROUP.sub("", text) if "Exception Group Traceback" in text else text
    *earlier, last = _NEXT.split(text)
    exceptions, handled = [_parse_exception(last.splitlines())], list[RaisedException]()
    for cause, block in zip(earlier[1::2][::-1], earlier[::2][::-1], strict=True):
        (exceptions if cause and not handled else handled).append(_parse_exception(block.splitlines()))
    return tuple(raised for raised in exceptions if raised.text), tuple(handled)


def _parse_exception(lines: Iterable[str]) -> RaisedException:
    parts = [*_label_lines(lines)]
    message = [text for part, text in parts if part in ("exception", "other")]
    stack = [text for part, text in parts if part in ("frame", "source")]
    return RaisedException("\n".join(message).strip(), "\n".join(stack))


def _find_prefix(lines: Iterable[str]) -> str:
    """Returns what stands before each line of the last traceback: torch.distributed writes ``[rank1]:`` there, Ray
    ``(train pid=7, ip=10.0.0.2)``, and launchers the number of the process or the name of its host."""
    matches = [match for line in lines if (match := _PREFIXED.match(line))]
    return matches[-1]["prefix"] if matches else ""


def _find_last_exception(lines: list[str]) -> tuple[RaisedException, ...]:
    """Returns the exception of a traceback with which the output ends: that of a process without our hook. The
    beginning of the traceback may be missing. What was written after it, but a warning, shows that it was handled."""
    ignored = [number for number, line in enumerate(lines) if _IGNORED.match(line)]
    raised = max((n for n, line in enumerate(lines) if _HEADER.match(line) and n - 1 not in ignored), default=-1)
    lines = lines[: next((number for number in ignored if number > raised), len(lines))]
    parts = [*_label_lines(lines)]
    last = max((number for number, (part, _) in enumerate(parts) if part == "exception"), default=-1)
    below = [text for _, text in parts[last + 1 :]]
    if last < 0 or any(line.strip() and not line[:1].isspace() and not _is_warning(line) for line in below):
        return ()
    above = [number for number, (part, _) in enumerate(parts[:last]) if part not in ("frame", "source")]
    start = above[-1] + 1 if above else 0
    return (_parse_exception(line for line in lines[start:] if not _is_warning(line)),)


def _label_lines(lines: Iterable[str]) -> Iterator[tuple[_Part, str]]:
    in_stack = raised = False
    for line in lines:
        if frame := _FRAME.match(line):
            in_stack, raised = True, frame["crash"] is None
            yield "frame", frame["file"]
        elif in_stack and line.startswith("  "):
            yield "source", line
        elif _HEADER.match(line):
            yield "header", line
        else:
            yield "exception" if in_stack and raised and _TYPE.match(line) else "other", line
            in_stack = False
