"""Which failed rank is the cause of a run's failure, and what that is known as in ``ipexctl/data/errors.toml``.

What there is to tell has one order. The first of these that there is decides, known or not:

1. the exception that nobody caught, and those that it names as its cause;
2. the signal that ended the rank;
3. what MPI, OpenMP or another runtime wrote last.

An exception that was handled, a warning and a message that is known to be harmless are no evidence."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ipexctl.model.errors import Hint, advise
from ipexctl.model.harmless import find_harmless
from ipexctl.model.json_values import Record, field
from ipexctl.model.reports import Diagnosis, RankOutcome
from ipexctl.model.text import join_names
from ipexctl.model.toml import Table
from ipexctl.protocol.mpi_abort import find_aborts

_FRAME = re.compile(r'\s*File "(?P<file>.*)", line \d+(?:, in .*|(?P<crash> in .*))?$')  # faulthandler has no comma
_HEADER = re.compile(r"\s*(?:\w+ )*Traceback \(most recent call last\):$|(?:Current t|T)hread 0x")
_NEXT = re.compile(r"^.*(?:(direct cause of the following exception)|another exception occurred):$", re.MULTILINE)
_GROUP = re.compile(r"^ +(?:\| ?|\+[-+].*)", re.MULTILINE)  # what an ExceptionGroup draws before each line
_TYPE = re.compile(r"[\w.]+(?:: |$)")  # of an exception, below its stack
_EXCEPTION = re.compile(r"(?!\S*python[\d.]*: ).*\b[A-Z]\w*(?:Error|Exception|Exit|Interrupt)(?:: |$)")  # in a text
_OF_RANK = re.compile(r"^\[rank\d+\]: ?")  # torch.distributed writes it before each line of a traceback
_WARNING = re.compile(r"\b\w*Warning: |\bWARN(?:ING)?\b|_WARN\||<warn>|^\[?W(?:\d{3,4} |\s?\w+\.cpp:)")
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
    signal: int = 0
    output: str = ""

    @property
    def own(self) -> bool:
        """Whether the rank shows more than that it ended."""
        return bool(self.exceptions) or self.signal in _CRASHES


def collect_evidence(rank: RankOutcome) -> Evidence:
    """Returns what this rank shows of its end."""
    lines = [_OF_RANK.sub("", line) for line in rank.tail.splitlines()]
    crash = rank.traceback.splitlines() if rank.traceback.startswith(_FATAL) else []
    exceptions = () if crash else _parse_traceback(rank.traceback)
    for error in _parse_traceback(rank.error)[:1]:  # it may hold the traceback of a worker
        exceptions = exceptions if exceptions and error.text in exceptions[0].text else (error, *exceptions)
    shell = (rank.status or 0) - _SHELL
    signal = rank.signal or (shell if shell in _CRASHES else 0)
    return Evidence(exceptions or _find_last_exception(lines), signal, read_runtime_output([*crash, *lines]))


def read_runtime_output(lines: Iterable[str]) -> str:
    """Returns what the runtime wrote among these lines: without warnings, and without words on exceptions, which
    somebody has handled who went on to write."""
    others = [line for part, line in _label_lines(lines) if part == "other"]
    return "\n".join(line for line in others if not _EXCEPTION.match(line) and not _is_warning(line))


def _is_warning(line: str) -> bool:
    return _WARNING.search(line) is not None or find_harmless(line) is not None


def _parse_traceback(text: str) -> tuple[RaisedException, ...]:
    text = _GROUP.sub("", text) if "Exception Group Traceback" in text else text
    *earlier, last = _NEXT.split(text)
    exceptions = [_parse_exception(last.splitlines())]
    for cause, block in zip(earlier[1::2][::-1], earlier[::2][::-1], strict=True):
        if not cause:
            break  # it was handled when the next one was raised
        exceptions.append(_parse_exception(block.splitlines()))
    return tuple(raised for raised in exceptions if raised.text)


def _parse_exception(lines: Iterable[str]) -> RaisedException:
    parts = [*_label_lines(lines)]
    message = [text for part, text in parts if part in ("exception", "other")]
    stack = [text for part, text in parts if part in ("frame", "source")]
    return RaisedException("\n".join(message).strip(), "\n".join(stack))


def _find_last_exception(lines: list[str]) -> tuple[RaisedException, ...]:
    """Returns the exception of a traceback with which the output ends: that of a process without our hook. The
    beginning of the traceback may be missing. What was written after it, but a warning, shows that it was handled."""
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


_PATTERNS = ("pattern", "raised_in")
_SEARCHED_LENGTH = 1 << 16  # letters of each text
_LINE_LIMIT = 1000  # letters of a line: no pattern may take long over one that has no end


class KnownError(Record):
    """One entry: `pattern` is searched in what was written, `raised_in` in the files of the exception's stack, `signal`
    is the one that ended the rank (0: any way). A `symptom` is the consequence of what happened to another rank."""

    code: str
    pattern: re.Pattern[str]
    title: str
    why: str
    fix: str = ""  # else the command
    raised_in: re.Pattern[str] | None = None
    signal: int = 0
    command: str = ""
    symptom: bool = False
    names: Mapping[str, str] = field(default_factory=dict)  # words of the message → those to say instead


KnownErrors = Sequence[KnownError]


class ErrorMatch(Record):
    """An entry that fits: `words` of the groups of its pattern, `line` that shows it."""

    known: KnownError
    words: Mapping[str, str] = field(default_factory=dict)
    line: str = ""


def parse_known_errors(tables: Sequence[Table], packages: Mapping[str, str]) -> KnownErrors:
    """Of the program's own tables, the first of which win: a malformed one is a bug. ``packages`` maps modules to what
    is installed for them."""
    modules = "|".join(map(re.escape, packages))
    errors = []
    for code, item in (item for table in tables for item in table.items()):
        patterns = {key: re.compile(item[key].replace("{packages}", modules)) for key in _PATTERNS if key in item}
        names = packages if "{packages}" in item["pattern"] else {}
        errors.append(KnownError(code, **{**item, **patterns, "names": names}))
    return tuple(errors)


def match_evidence(errors: KnownErrors, evidence: Evidence) -> ErrorMatch | None:
    """Returns what the strongest of this evidence is known as; weaker evidence never decides instead of it."""
    if evidence.exceptions:
        return next(filter(None, (_search(errors, raised) for raised in evidence.exceptions)), None)
    for known in errors:
        if evidence.signal and known.signal == evidence.signal:
            return ErrorMatch(known)
    return _search(errors, RaisedException(evidence.output))


def make_diagnosis(match: ErrorMatch, host: str = "") -> Diagnosis:
    """Returns the match in words. ``host`` is one of the run, whose environment an advised install keeps."""
    known = match.known

    def fill(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda name: match.words.get(name[1], name[0]), text)

    command: Hint | str = advise(*map(fill, shlex.split(known.command)[1:])) if known.command else ""
    if isinstance(command, Hint) and host:
        command = command.keep_installed(host)
    return Diagnosis(known.code, fill(known.title), fill(known.why), fill(known.fix) or command, match.line, command)


def _search(errors: KnownErrors, raised: RaisedException) -> ErrorMatch | None:
    text = "\n".join(line[:_LINE_LIMIT] for line in raised.text[-_SEARCHED_LENGTH:].splitlines())
    for known in errors:
        if known.raised_in and not known.raised_in.search(raised.files):
            continue
        if match := known.pattern.search(text):
            words = {name: known.names.get(word, word) for name, word in match.groupdict("?").items()}
            line = text[: match.start()].rpartition("\n")[2] + text[match.start() :].partition("\n")[0]
            return ErrorMatch(known, words, line.strip()[:500])
    return None


_CANDIDATE_LIMIT = 64  # ranks that failed first: the cause is among them
_END_DELAY = 2.0  # seconds by which the end of a process may follow what its peers see of it
_CRASH_DELAY = 0.25  # the same for one that a signal ended: its sockets are closed before its parent hears of it
_ENDED_EARLY = "ended-early"  # the entry for ranks that ended well and were missed


class Cause(Record):
    """The ranks that failed: the one that is the cause, then the others in the order in which they did. What the cause
    is known as."""

    failed: tuple[RankOutcome, ...]
    diagnosis: Diagnosis | None


class _Judged(Record):
    rank: RankOutcome
    evidence: Evidence
    match: ErrorMatch | None

    @property
    def is_symptom(self) -> bool:
        return self.match is not None and self.match.known.symptom

    @property
    def is_own(self) -> bool:
        """Whether it shows that the rank failed by itself."""
        return not self.is_symptom and (self.evidence.own or self.rank.abort is not None)

    @property
    def abort_statuses(self) -> set[int]:
        """The exit codes that all ranks have when MPI aborts at an error of this one."""
        return {abort.code & 0xFF for abort in find_aborts(self.rank.tail.encode("utf-8", "replace"))}

    @property
    def is_silent(self) -> bool:
        """Whether it shows nothing but an exit code."""
        return self.match is None and not self.evidence.own and self.rank.abort is None


def find_cause(errors: KnownErrors, ranks: Sequence[RankOutcome], output: str) -> Cause:
    """Returns the cause among these ranks of a run that did not end well. A rank whose failure only shows that another
    rank was gone, or nothing at all, comes after one that failed by itself, or crashed at the same moment. ``output``
    is the launcher's, for ranks that show nothing."""
    failed = sorted((rank for rank in ranks if rank.state == "failed"), key=lambda rank: (rank.at, rank.rank))
    launcher = match_evidence(errors, Evidence(output=read_runtime_output(output.splitlines())))
    host = ranks[0].host if ranks else ""
    if not failed:
        return Cause((), make_diagnosis(launcher, host) if launcher else None)
    first, *others = [_judge(errors, rank) for rank in failed[:_CANDIDATE_LIMIT]]
    if first.is_symptom:
        named = first.match.words.get("who") if first.match else None  # by impi: it may have ended without a word
        missed = (each for each in others if f"rank {each.rank.rank}" == named and not each.is_symptom)
        first = next((each for each in others if each.is_own), next(missed, first))
    elif first.is_silent:
        soon = [each for each in others if each.rank.at - first.rank.at < _CRASH_DELAY]
        aborted = (each for each in others if first.rank.status in each.abort_statuses)
        first = next((each for each in soon if each.evidence.signal and not each.is_symptom), next(aborted, first))
    match = first.match
    if first.is_symptom:
        match = _match_early_ends(errors, first, ranks) or match
    elif match is None and not first.evidence.exceptions:
        known = (*(each.match for each in others if each is not first), launcher)
        match = next((other for other in known if other and not other.known.symptom), None)
    failed.remove(first.rank)
    return Cause((first.rank, *failed), make_diagnosis(match, host) if match else None)


def _judge(errors: KnownErrors, rank: RankOutcome) -> _Judged:
    evidence = collect_evidence(rank)
    return _Judged(rank, evidence, match_evidence(errors, evidence))


def _match_early_ends(errors: KnownErrors, first: _Judged, ranks: Sequence[RankOutcome]) -> ErrorMatch | None:
    """Returns the entry for ranks that had ended well when others still waited for them."""
    early = [rank for rank in ranks if rank.state == "ok" and rank.at <= first.rank.at + _END_DELAY]
    known = next((known for known in errors if known.code == _ENDED_EARLY), None)
    if not early or known is None or first.match is None:
        return None
    names = join_names([f"rank {rank.rank} on {rank.host}" for rank in early], 3)
    return replace(first.match, known=known, words={"who": names})
