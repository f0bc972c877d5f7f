"""Small phrases that several screens share, and how long ones are broken into lines. Pure text, no Rich."""

import re
import signal
from bisect import bisect
from collections.abc import Iterable

from ipexctl.model.errors import Failure, Kind, UsageError
from ipexctl.model.events import PhaseStarted
from ipexctl.model.restarts import describe_restart
from ipexctl.model.run_state import RunState, StepState
from ipexctl.model.text import fold_names, format_size, group_pairs
from ipexctl.show.sanitise import escape, escape_lines


def format_amount(done: int, total: int, unit: str) -> str:
    """``40 % (480 MiB of 1.2 GiB)``, ``12 files``."""
    if done < total:
        begun = format_size(done) if unit == "B" else done
        return f"{format_share(done, total)} ({begun} of {_format_count(total, unit)})"
    return format_short_amount(done, total, unit)


def format_short_amount(done: int, total: int, unit: str) -> str:
    """The same for a narrow place: ``40 % of 1.2 GiB``, ``all of 1.2 GiB`` while the step goes on."""
    if total <= 0:
        return _format_count(done, unit.removesuffix("s") if done == 1 else unit)
    return f"{format_share(done, total)} of {_format_count(total, unit)}"


def _format_count(count: int, unit: str) -> str:
    return format_size(count) if unit == "B" else f"{count} {escape(unit)}"


def format_share(done: int, total: int) -> str:
    """``40 %``, ``all``."""
    return f"{100 * done // total} %" if done < total else "all"


def format_phase(phase: PhaseStarted) -> str:
    return escape(f"step {phase.number}{f' of {phase.of}' if phase.of else ''}: {phase.title}")


def format_pace(step: StepState, now: float) -> list[str]:
    """``12 MiB/s`` and ``1 m 20 s left``; nothing where that says nothing yet."""
    pace = step.measure_pace(now)
    if pace is None:
        return []
    rate, left = pace
    return [f"{format_size(int(rate))}/s", *([f"{format_duration(left)} left"] if left else [])]


def format_backend(used: str, planned: str) -> str:
    """``impi``, or ``gloo (planned: impi)``."""
    return f"{used} (planned: {planned})" if planned and used != planned else used


def format_duration(seconds: float) -> str:
    """``2.1 s``, ``2 m 14 s``, ``3 h 05 m``."""
    if seconds < 59.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def format_restart(state: RunState, now: float | None = None) -> list[str]:
    """Returns the line about the last restart of a run; none if it was started once."""
    attempts = state.run.attempts
    if len(attempts) < 2 or not attempts[-1].started.restart:
        return []
    before, last = attempts[-2:]
    number = f"restart {last.started.restart} of {last.started.restarts}"
    return [" · ".join((number, *describe_restart(before, last, now)))]


def format_hosts(names: Iterable[str], most: int = 6) -> str:
    """Host names as `fold_names` writes them, harmless."""
    return escape(fold_names(names, most))


def format_signal(number: int) -> str:
    """``SIGKILL`` of 9; ``signal 77`` of what has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_ADDRESS = re.compile(r" \([^()]*:\d+\)\Z")


def group_failures(every: Iterable[Failure]) -> list[tuple[str, list[str], str | None]]:
    """Failures grouped by cause, in order of first appearance: (``subject: what``, further lines, hint).

    Only an address at the end of ``what`` may differ inside a group; then it is left out."""
    groups = group_pairs(((one.kind, one.code, _ADDRESS.sub("", one.what), one.hint), one) for one in every)
    lines: list[tuple[str, list[str], str | None]] = []
    for (kind, _, bare, hint), members in groups.items():
        whats = {member.what for member in members}
        first, *more = escape_lines(whats.pop() if len(whats) == 1 else bare)
        names = [member.host for member in members if member.host]
        subject = f"{len(names)} hosts, " if len(set(names)) > 3 else ""
        if names:
            subject += f"{format_hosts(names)}: "
        if kind is Kind.UNREACHABLE:
            subject += "unreachable: "
        lines.append((subject + first, more, hint))
    return lines


def format_failure_lines(every: Iterable[Failure]) -> list[str]:
    """The sentences and reasons of `group_failures` as lines, without the hints."""
    return [line for sentence, more, _ in group_failures(every) for line in (sentence, *(f"  {each}" for each in more))]


def format_hint_lines(hint: str, width: int = 0) -> list[str]:
    first, *more = escape_lines(hint)
    lines = fold_line(f"  hint: {first}", width, 8, copied=True)
    return [*lines, *(part for line in more for part in fold_line(f"        {line}", width, 8, copied=True))]


def format_refusal_lines(refused: UsageError, width: int = 0) -> list[str]:
    """One sentence, the reasons one per line, at most one hint. With a ``width``, lines are broken as `folded` does."""
    first, *more = escape_lines(refused.sentence)
    lines = [part for line in (f"error: {first}", *more) for part in fold_line(line, width, 2)]
    for reason in refused.reasons:
        lines += [part for line in escape_lines(reason) for part in fold_line(f"  {line}", width, 4)]
    return [*lines, *format_hint_lines(refused.hint, width)] if refused.hint else lines


def fold_line(line: str, width: int, hang: int = 0, *, copied: bool = False) -> list[str]:
    """One line as the lines of a terminal: see `spans`. Without a ``width`` it stays one."""
    first, *more = split_line(line, width, hang, copied=copied)
    return [line[slice(*first)], *(" " * hang + line[slice(*span)] for span in more)]


def split_line(line: str, width: int, hang: int = 0, *, copied: bool = False) -> list[tuple[int, int]]:
    """Where a line is broken: between words, never inside one; lines after the first are to be indented by ``hang``.

    What is longer than a line is left to the terminal, whose own wrapping a copy does not contain: a path, ``K=V``, a
    command of ours, and of what is meant to be ``copied`` (a hint, a fix) every command; one that no line could hold
    stays beside its label."""
    if width <= 0 or count_cells(line) <= width:
        return [(0, len(line))]
    lines: list[tuple[int, int]] = []
    for start, end in _split_words(line, copied):
        room = width - (hang if len(lines) > 1 else 0)
        beside = copied and len(lines) == 1 and lines[0][1] <= hang and count_cells(line[start:end]) > width - hang
        if lines and (beside or count_cells(line[lines[-1][0] : end]) <= room):
            lines[-1] = (lines[-1][0], end)
        else:
            lines.append((start, end))
    return lines or [(0, 0)]  # of blanks, nothing


# Where a hint's sentence ends and a command begins or ends, as our texts write it: "on node0: sudo …   or: ipexctl …".
_JOINTS = re.compile(r"(?<=[:;]) +| {2,}|(?<=,) +(?=or |then )| +(?=\()|(?<=\)) +|(?<=\),) +")
_QUOTES = [re.compile(rf"(?<!\w){quote}|{quote}(?!\w)") for quote in "'\""]  # not the apostrophe inside a word
_OUR_COMMAND = re.compile(r"\(?(?:or |then )?(?:sudo|ipexctl) ")
_COMMAND = re.compile(_OUR_COMMAND.pattern + r"|(?:.*\s|\(?)(?:--?[A-Za-z]|[|<>&'\"/~$]|[A-Za-z_]\w*=)")


def _split_words(line: str, copied: bool) -> list[tuple[int, int]]:
    """What is never broken: words, and commands. The first has the blanks at the line's beginning."""
    atoms: list[tuple[int, int]] = []
    for start, end in _split_hint(line):
        if (_COMMAND if copied else _OUR_COMMAND).match(line[start:end].lstrip()):
            atoms.append((start, end))
        else:
            atoms += [(start + word.start(), start + word.end()) for word in re.finditer(r"\S+", line[start:end])]
    return [(0, atoms[0][1]), *atoms[1:]] if atoms else []


def _split_hint(line: str) -> list[tuple[int, int]]:
    """The parts of a hint, one after the other. Nothing ends between quotes."""
    begin = len(line) - len(line.lstrip())
    parts: list[tuple[int, int]] = []
    places = [[quote.start() for quote in quotes.finditer(line)] for quotes in _QUOTES]
    for joint in _JOINTS.finditer(line, begin):
        if all((bisect(quotes, joint.start()) - bisect(quotes, begin - 1)) % 2 == 0 for quotes in places):
            parts.append((begin, joint.start()))
            begin = joint.end()
    return [*parts, (begin, len(line))]


def count_cells(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # slow to import

    return cell_len(text)


def draw_bar(value: float, most: float, width: int) -> str:
    """Returns a bar with ``width`` cells for ``most``, and at least the thinnest one; none where nothing is above 0."""
    eighths = max(1, round(8 * width * min(max(value / most, 0.0), 1.0))) if most > 0 else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
