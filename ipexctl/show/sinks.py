"""Where events go. Every sink takes each event once, in order, and is closed once, with the report of the whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from ipexctl.model import events as e
from ipexctl.model.answers import AnyAnswer, is_dry
from ipexctl.model.errors import UsageError
from ipexctl.model.events import Stamped
from ipexctl.model.json_values import to_json, to_json_items
from ipexctl.model.reports import CommandReport
from ipexctl.model.run_state import LineKey, NewLines, OpenLine, RunState
from ipexctl.model.text import pluralize, strip_colours
from ipexctl.show import phrases, screens
from ipexctl.show.pending_failures import PendingFailures
from ipexctl.show.pipe import Pipe
from ipexctl.show.sanitise import decode_utf8, escape, escape_lines, is_printable_ascii, is_safe_to_print
from ipexctl.show.screens import list_codes, list_next_commands, split_commands
from ipexctl.store import event_json

if TYPE_CHECKING:
    from rich.console import RenderableType


class Sink(Protocol):
    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        """One event, and what is known after it. Never raises because a reader, a terminal or a disk failed."""

    def close(self, report: CommandReport | None = None) -> None:
        """The end. ``report`` is for sinks that show or save it."""


def print_refusal(refused: UsageError, err: Pipe) -> None:
    """Prints why nothing was done; on a terminal, broken between words."""
    err.write("".join(f"{line}\n" for line in phrases.format_refusal_lines(refused, err.columns())))
    err.flush()


class Plain:
    """For pipes and CI: ``rank│line``, or ``[rank host] line`` with ``label="host"``; one line per step, with
    the hosts that ended it alike.

    Ranks' standard output and the result go to ``out``, their standard error and our own talk to ``err``. With ``raw``,
    ranks' lines pass unescaped. A bar that redraws itself is shown every ten seconds and at its end."""

    BAR = 10.0  # seconds between two states of a bar, or two lines of progress of one host

    def __init__(
        self, out: Pipe, err: Pipe, *, label: Literal["rank", "host"] = "rank", raw: bool = False, results: bool = True
    ) -> None:
        self._out, self._err = out, err
        self._label, self._raw, self._results = label, raw, results
        self._width = 1
        self._begun: dict[LineKey, OpenLine] = {}  # what is shown already of lines that have not ended
        self._unfinished: dict[LineKey, bytes] = {}  # raw bytes of such lines
        self._prefixes: dict[int, str] = {}
        self._shown_at: dict[object, float] = {}
        self._failures = PendingFailures()
        self._steps = StepLines()
        self._answer: AnyAnswer | None = None
        self._state: RunState | None = None

    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        event, at, self._state = stamped.event, stamped.at, state
        if not isinstance(event, _PASSING) or at - self._steps.since >= self.BAR:
            self._show_steps()
        if self._raw and isinstance(event, e.Output):
            self._print_raw(event)
            return
        for lines in state.lines:
            self._print_new_lines(lines, at)
        if isinstance(event, e.Output):
            self._show_open_line(event, state, at)
            return
        if self._failures.is_due(at if isinstance(event, _PASSING) else math.inf):
            self._show_failures()
        self._failures.update(state, at)
        match event:
            case e.Started(title=title):
                if title:
                    self._print(*escape_lines(title))
            case e.Message(text=text, level=level, host=host):
                first, *more = escape_lines(text)  # a command to paste is a line of its own
                mark = "warning: " if level == "warning" else ""
                self._print(format_host_mark(host) + mark + first, *more)
            case e.Progress(host=host, step=step, done=done, total=total, unit=unit, detail=detail):
                key = host if len(state.working) <= LISTED_LIMIT else step
                if at - self._shown_at.setdefault(key, at) >= self.BAR:
                    self._shown_at[key] = at
                    self._show_steps()
                    pace = ", ".join(phrases.format_pace(state.hosts[host].at, at))
                    parts = (f"{escape(step)}:", phrases.format_amount(done, total, unit), pace, escape(detail))
                    self._print(format_host_mark(host) + " ".join(filter(None, parts)))
            case e.PhaseStarted():
                self._print(phrases.format_phase(event))
            case e.StepStarted(host=host):
                self._shown_at[host] = at
            case e.StepEnded(step=step):
                self._steps.add(event, at)
                self._show_steps(step)
            case e.Answer(value=value):
                self._answer = value
                self._show_failures()
                self._print_answer(value)
            case e.RunStarted(run=run, head=head, ranks=ranks):
                self._width = len(str(max(len(ranks) - 1, 0)))
                self._prefixes.clear()
                start = f"run {run}: {pluralize(len(ranks), 'rank')}, started from {head}"
                self._print(*map(escape, (start, *phrases.format_restart(state))))
            case e.RankEnded(rank=rank):
                self._show_open_lines(state, rank)
            case e.CandidateTried():
                from ipexctl.show.answers.tune import describe_candidate

                self._print(escape(describe_candidate(event, state)))
            case _:  # plans, stages, samples, facts, findings and cleanup checks are shown by the result
                pass

    def close(self, report: CommandReport | None = None) -> None:
        self._show_steps()
        if self._state is not None:
            self._show_open_lines(self._state)
        for key, data in self._unfinished.items():
            self._send_raw(key, data + b"\n")
        self._show_failures()
        if report:
            dry = self._answer is not None and is_dry(self._answer)
            self._print_items(screens.format_ending(report, dry=dry))
            if report.saved:
                self._print(f"saved in {escape(report.saved)}")
        self._print(*(line for hint in self._failures.pop_hints() for line in phrases.format_hint_lines(hint)))
        if report:
            self._print_items(screens.format_next_steps(report, self._answer))
        self._out.flush()
        self._err.flush()

    def _print_answer(self, value: AnyAnswer) -> None:
        text = screens.get_whole_text(value)
        if text is None:
            self._print_items(screens.format_answer(value))
        elif self._results:  # without Rich, which takes longer to import than such a command
            self._err.flush()
            self._out.write("".join(f"{line.rstrip()}\n" for line in escape_lines(text.rstrip("\n"))))
            self._out.flush()

    def _print_items(self, items: Sequence[RenderableType]) -> None:
        if self._results and items:
            from ipexctl.show import typeset

            self._err.flush()
            typeset.print_items(typeset.make_console(self._out), self._out, items)

    def _print_new_lines(self, new: NewLines, at: float) -> None:
        if self._raw and new.rank is not None:
            return
        key = (-1 if new.rank is None else new.rank, new.stream)
        begun = self._begun.pop(key, None)
        self._shown_at[key] = at
        if new.rank is not None and begun is None and is_printable_ascii(new.data):
            self._get_prefix(new.rank, new.host)
            self._send_raw(key, new.data)  # without one object a line
            return
        text = strip_colours(decode_utf8(new.data[:-1]))
        lines = text.split("\n") if is_safe_to_print(text) else escape_lines(text)
        if new.rank is None:
            self._print(*("mpirun│" + line for line in lines))
            return
        if begun is not None:
            first = new.data[: new.data.find(b"\n")]
            if first == begun.data:
                del lines[0]
            elif first.startswith(begun.data) and not begun.redraws:
                lines[0] = _MORE + escape(strip_colours(decode_utf8(first[len(begun.data) :])))
        self._print_rank_lines(key, new.host, lines)

    def _show_open_line(self, event: e.Output, state: RunState, at: float) -> None:
        """The beginning of a line whose end may take long, as that of a question; the state of a bar now and then."""
        key = (event.rank, event.stream)
        line = state.open.get(key)
        if line is None:
            return
        bar = line.redraws and at - self._shown_at.setdefault(key, at) >= self.BAR
        if bar or not line.redraws:
            self._shown_at[key] = at
            self._show_rest(key, line)

    def _show_open_lines(self, state: RunState, rank: int | None = None) -> None:
        """Shows the lines without an end of one rank, whose last output may still be on its way, or of all."""
        keys: Iterable[LineKey] = state.open if rank is None else ((rank, "out"), (rank, "err"))
        for key in keys:
            if key in state.open and not self._raw:
                self._show_rest(key, state.open[key])

    def _show_rest(self, key: LineKey, line: OpenLine) -> None:
        """What has not been shown yet of a line that has not ended."""
        begun, data = self._begun.get(key), line.data
        colour = data.rfind(b"\x1b", max(len(data) - _COLOUR_LIMIT, 0))
        data = data[:colour] if colour >= 0 and b"m" not in data[colour:] else data  # it is not complete yet
        if not data or (begun is not None and data == begun.data):
            return
        more = begun is not None and not line.redraws and data.startswith(begun.data)
        words = escape(strip_colours(decode_utf8(data[len(begun.data) :] if begun and more else data)))
        self._begun[key] = line._replace(data=data)
        self._print_rank_lines(key, line.host, [_MORE + words if more else words])

    def _print_rank_lines(self, key: LineKey, host: str, lines: list[str]) -> None:
        pipe, prefix = self._out if key[1] == "out" else self._err, self._get_prefix(key[0], host)
        pipe.write("".join(f"{prefix}{line}\n" for line in lines))
        pipe.flush()

    def _print_raw(self, event: e.Output) -> None:
        """The rank's bytes as they are, labelled at the beginning of each line."""
        key = (event.rank, event.stream)
        self._get_prefix(event.rank, event.host)
        data = self._unfinished.pop(key, b"") + event.data
        end = data.rfind(b"\n") + 1 if event.partial and len(data) < _RAW_LINE_LIMIT else len(data)
        if end < len(data):
            self._unfinished[key] = data[end:]
        if end:
            self._send_raw(key, data[:end])

    def _send_raw(self, key: LineKey, data: bytes) -> None:
        pipe = self._out if key[1] == "out" else self._err
        start = pipe.encode(self._get_prefix(key[0], ""))
        pipe.send(start + data.removesuffix(b"\n").replace(b"\n", b"\n" + start) + b"\n")
        pipe.flush()

    def _get_prefix(self, rank: int, host: str) -> str:
        prefix = self._prefixes.get(rank)
        if prefix is None:
            prefix = f"{rank:>{self._width}}│" if self._label == "rank" else f"[{rank} {escape(host)}] "
            self._prefixes[rank] = prefix
        return prefix

    def _print(self, *lines: str) -> None:
        self._out.flush()
        self._err.write("".join(f"{line}\n" for line in lines))
        self._err.flush()

    def _show_steps(self, step: str | None = None) -> None:
        state = self._state
        hosts = 0
        if state:
            hosts = max(len(state.working), len(state.verb.hosts) if state.verb else 0)
        if lines := self._steps.pop(hosts, step):
            self._print(*lines)

    def _show_failures(self) -> None:
        if failures := self._failures.pop_failures():
            self._show_steps()
            self._print(*phrases.format_failure_lines(failures))


_OF_RANKS = (e.RankStage, e.Stalled, e.StallCompared, e.RankStack, e.HostSample)
_PASSING = (e.HostFailed, e.StepStarted, e.StepEnded, e.Progress, e.FactsRead, e.FindingReported, *_OF_RANKS)


_MORE = "…"  # before the rest of a line whose beginning was shown
_COLOUR_LIMIT = 24  # bytes of the sequence of a colour
_RAW_LINE_LIMIT = 1 << 16  # bytes held of a line that has not ended


class JsonLines:
    """``--output json``: one JSON object per event (`wire.encode`), the report as the last, ``{"event": "report"}``."""

    def __init__(self, out: Pipe) -> None:
        self._out = out

    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        self._out.send(event_json.dump_ascii_json(event_json.encode_event(stamped)).encode() + b"\n")
        self._out.flush()

    def close(self, report: CommandReport | None = None) -> None:
        if report is not None:
            self._out.send(event_json.dump_ascii_json({"event": "report", **to_json(report)}).encode() + b"\n")
        self._out.flush()


class _Quiet:
    """Warnings and failures go to ``err``; steps are not shown, nor is ranks' output."""

    def __init__(self, out: Pipe, err: Pipe) -> None:
        self._out, self._err = out, err
        self._messages = Plain(err, err, results=False)

    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        event = stamped.event
        notable = isinstance(event, e.Message) and (event.level == "warning" or event.code == "goes-on")
        if notable or isinstance(event, e.HostFailed):
            self._messages.handle_event(stamped, state)

    def close(self, report: CommandReport | None = None) -> None:
        self._messages.close()
        self._out.flush()


class JsonAnswer(_Quiet):
    """``--json``: the answer as one JSON document on ``out`` at the end, and nothing else there.

    An answer without ``hosts`` of its own, and a command that came to no answer, are completed from the report, so that
    a program always reads one document with every host's and every rank's outcome."""

    def __init__(self, out: Pipe, err: Pipe) -> None:
        super().__init__(out, err)
        self._answer: AnyAnswer | None = None

    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        super().handle_event(stamped, state)
        if isinstance(stamped.event, e.Answer):
            self._answer = stamped.event.value

    def close(self, report: CommandReport | None = None) -> None:
        value: dict[str, object] = dict(to_json_items(self._answer)) if self._answer else {}
        if report is not None and "hosts" not in value:
            value = {**to_json_items(report), **(to_json_items(report.run) if report.run else {}), **value}
        if report is not None:
            value |= {"next": list_next_commands(self._answer, report), "codes": list_codes(report)}
            value.setdefault("exit", report.exit)
        if value:
            for piece in event_json.format_document(value):
                self._out.send(piece.encode())
            self._out.send(b"\n")
        super().close(report)


def write_json_refusal(refused: UsageError, out: Pipe) -> None:
    """``--json`` of a command that was refused before it began."""
    value = {"exit": refused.exit, "ok": False, "refused": refused.sentence, "reasons": list(refused.reasons)}
    value |= {"hint": refused.hint, "next": split_commands([refused.hint]), "codes": [refused.code]}
    for piece in event_json.format_document(value):
        out.send(piece.encode())
    out.send(b"\n")


class RawOutput(_Quiet):
    """A rank's bytes as it wrote them, nothing added: its output to ``out``, its errors to ``err``, where we talk."""

    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        super().handle_event(stamped, state)
        if isinstance(event := stamped.event, e.Output):
            (self._out if event.stream == "out" else self._err).send(event.data)


LISTED_LIMIT = 8  # hosts, or outcomes of one step, that have a line each


class StepLines:
    """Holds the ends of steps back, until all hosts have come to them or something else is to be printed."""

    def __init__(self) -> None:
        self._ended: dict[str, dict[str, dict[str, list[str]]]] = {}  # step → outcome → detail → hosts
        self._came = Counter[str]()  # how many hosts have come to each
        self.since = 0.0  # when the first of them came

    def add(self, event: e.StepEnded, at: float) -> None:
        if not self._ended:
            self.since = at
        details = self._ended.setdefault(event.step, {}).setdefault(event.outcome, {})
        self._came[event.step] += 1
        key = event.detail if event.detail in details or len(details) < LISTED_LIMIT else ""
        details.setdefault(key, []).append(event.host)

    def pop(self, hosts: int, step: str | None = None) -> list[str]:
        """The lines of a command with so many hosts; of one ``step`` only if all have come to it."""
        lines = []
        ended: list[str] = []
        if step is None:
            ended = [*self._ended]
        elif self._came[step] >= hosts:
            ended = [step]
        for name in ended:
            del self._came[name]
            for outcome, details in self._ended.pop(name).items():
                for detail, names in details.items():
                    words = "\n  ".join(escape_lines(f": {detail}" if detail else ""))
                    lines.append(f"{_format_hosts_mark(names, hosts)}{escape(name)}: {outcome}{words}")
        return lines


def format_host_mark(host: str) -> str:
    """What stands before a line about one host."""
    return f"[{escape(host)}] " if host else ""


def _format_hosts_mark(names: list[str], hosts: int) -> str:
    if len(names) == 1:
        return format_host_mark(names[0])
    return f"[{pluralize(len(names), 'host') if len(names) == hosts else phrases.format_hosts(names)}] "
