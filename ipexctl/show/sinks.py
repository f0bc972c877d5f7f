"""Where events go. Every sink takes each event once, in order, and is closed once, with the report of the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Literal, Protocol

from ipexctl.model import events as e
from ipexctl.model.answers import AnyAnswer, is_dry
from ipexctl.model.bench_lines import reword_output
from ipexctl.model.errors import UsageError
from ipexctl.model.events import Stamped
from ipexctl.model.json_values import to_json, to_json_items
from ipexctl.model.reports import CommandReport
from ipexctl.model.text import pluralize
from ipexctl.show import event_json, screens
from ipexctl.show.line_buffer import LIMIT, Lines
from ipexctl.show.pending_failures import PendingFailures
from ipexctl.show.phrases import (
    format_amount,
    format_failure_lines,
    format_hint_lines,
    format_pace,
    format_phase,
    format_refusal_lines,
)
from ipexctl.show.pipe import Pipe
from ipexctl.show.sanitise import decode_utf8, escape, escape_lines, is_printable_ascii, is_safe_to_print, strip_colours

if TYPE_CHECKING:
    from rich.console import RenderableType


class Sink(Protocol):
    def handle_event(self, stamped: Stamped) -> None:
        """One event. Never raises because a reader, a terminal or a disk failed."""

    def close(self, report: CommandReport | None = None) -> None:
        """The end. ``report`` is for sinks that show or save it. Safe to call twice."""


def print_refusal(refused: UsageError, err: Pipe) -> None:
    """Prints why nothing was done; on a terminal, broken between words."""
    err.write("".join(f"{line}\n" for line in format_refusal_lines(refused, err.columns())))
    err.flush()


class Plain:
    """For pipes and CI: ``rank│line``, or ``[rank host] line`` with ``label="host"``; one line per step of a host.

    Ranks' standard output and the result go to ``out``, their standard error and our own talk to ``err``. With ``raw``,
    ranks' lines pass unescaped. A bar that redraws itself is shown every ten seconds and at its end."""

    BAR = 10.0  # seconds between two states of a bar, or two lines of progress of one host

    def __init__(
        self, out: Pipe, err: Pipe, *, label: Literal["rank", "host"] = "rank", raw: bool = False, results: bool = True
    ) -> None:
        self._out, self._err = out, err
        self._label, self._raw, self._results = label, raw, results
        self._width = 1
        self._lines: dict[tuple[int, str], Lines] = {}
        self._unfinished: dict[tuple[int, str], bytes] = {}
        self._prefixes: dict[int, str] = {}
        self._shown_at: dict[object, float] = {}
        self._moved: dict[str, tuple[float, int]] = {}  # stamp and amount of a host's first progress in its step
        self._failures = PendingFailures()
        self._answer: AnyAnswer | None = None
        self._imports = self._closed = False

    def handle_event(self, stamped: Stamped) -> None:
        event, at = stamped.event, stamped.at
        if type(event) is e.Output:
            self._show_output(event if self._raw else reword_output(event), at)
            return
        if self._failures.is_due(at if isinstance(event, _PASSING) else math.inf):
            self._show_failures()
        self._failures.add_event(event, at)
        match event:
            case e.Started(title=title):
                if title:
                    self._print(*escape_lines(title))
            case e.Message(text=text, level=level, host=host):
                first, *more = escape_lines(text)  # a command to paste is a line of its own
                mark = "warning: " if level == "warning" else ""
                self._print(_format_host_mark(host) + mark + first, *more)
            case e.Progress(host=host, step=step, done=done, total=total, unit=unit, detail=detail):
                since, skipped = self._moved.setdefault(host, (at, done))
                if at - self._shown_at.setdefault(host, at) >= self.BAR:
                    self._shown_at[host] = at
                    pace = ", ".join(format_pace(done - skipped, total - skipped, unit, at - since))
                    now = "".join(f" {word}" for word in (pace, escape(detail)) if word)
                    self._print(f"{_format_host_mark(host)}{escape(step)}: {format_amount(done, total, unit)}{now}")
            case e.PhaseStarted():
                self._print(format_phase(event))
            case e.StepStarted(host=host):
                self._shown_at[host] = at
                self._moved.pop(host, None)
            case e.StepEnded(host=host, step=step, outcome=outcome, detail=detail):
                self._import_ahead()
                words = "\n  ".join(escape_lines(detail))
                self._print(f"{_format_host_mark(host)}{escape(step)}: {outcome}{f': {words}' if words else ''}")
            case e.Answer(value=value):
                self._answer = value
                self._show_failures()
                self._print_answer(value)
            case e.RunStarted(run=run, head=head, ranks=ranks):
                self._width = len(str(max(len(ranks) - 1, 0)))
                self._prefixes.clear()
                self._print(escape(f"run {run}: {pluralize(len(ranks), 'rank')}, started from {head}"))
            case e.LauncherOutput(data=data):
                lines = escape_lines(strip_colours(decode_utf8(data.rstrip(b"\n"))))
                self._print(*("mpirun│" + line for line in lines))
            case e.RankEnded(rank=rank):
                self._flush_rank(rank)
            case e.RunEnded():
                self._flush_rank(None)
            case _:  # plans, stages, samples, facts, findings and cleanup checks are shown by the result
                pass

    def close(self, report: CommandReport | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._flush_rank(None)
        self._show_failures()
        if report:
            dry = self._answer is not None and is_dry(self._answer)
            self._print_items(screens.format_ending(report, dry=dry))
            if report.saved:
                self._print(f"saved in {escape(report.saved)}")
        self._print(*(line for hint in self._failures.pop_hints() for line in format_hint_lines(hint)))
        if report:
            self._print_items(screens.format_next_steps(report, self._answer))
        self._out.flush()
        self._err.flush()

    def _import_ahead(self) -> None:
        """While hosts still work, what will print the result is imported."""
        if self._results and not self._imports:
            self._imports = True
            Thread(target=import_module, args=("ipexctl.show.tables",), name="import", daemon=True).start()

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

    def _show_output(self, event: e.Output, at: float) -> None:
        key, data = (event.rank, event.stream), event.data
        prefix = self._get_prefix(event.rank, event.host)
        lines = self._lines.get(key)
        whole = not event.partial and data.endswith(b"\n") and not lines
        # Whole lines with nothing to escape are labelled at once, without one object a line.
        if self._raw or (whole and is_printable_ascii(data)):
            self._print_raw(key, prefix, data, event.partial)
            return
        if whole and is_safe_to_print(text := strip_colours(decode_utf8(data))):
            self._print_rank_lines(key, prefix, text[:-1].split("\n"))
            return
        lines = self._lines.setdefault(key, Lines())
        done = lines.feed(data)
        if not event.partial and not data.endswith(b"\n"):
            done += lines.flush()
        elif event.partial and not lines.redraws:
            done += lines.release()
        if done:
            self._shown_at[key] = at
        elif lines.redraws and at - self._shown_at.setdefault(key, at) >= self.BAR:
            self._shown_at[key] = at
            done = [lines.current]
        self._print_rank_lines(key, prefix, done)

    def _print_rank_lines(self, key: tuple[int, str], prefix: str, lines: list[str]) -> None:
        pipe = self._out if key[1] == "out" else self._err
        pipe.write("".join(f"{prefix}{line}\n" for line in lines))
        pipe.flush()

    def _print_raw(self, key: tuple[int, str], prefix: str, data: bytes, partial: bool) -> None:
        """The rank's bytes as they are, labelled at the beginning of each line."""
        pipe = self._out if key[1] == "out" else self._err
        start = pipe.encode(prefix)
        data = self._unfinished.pop(key, b"") + data
        end = data.rfind(b"\n") + 1 if partial and len(data) < LIMIT else len(data)
        if end < len(data):
            self._unfinished[key] = data[end:]
        if end:
            pipe.send(start + data[:end].removesuffix(b"\n").replace(b"\n", b"\n" + start) + b"\n")
            pipe.flush()

    def _get_prefix(self, rank: int, host: str) -> str:
        prefix = self._prefixes.get(rank)
        if prefix is None:
            prefix = f"{rank:>{self._width}}│" if self._label == "rank" else f"[{rank} {escape(host)}] "
            self._prefixes[rank] = prefix
        return prefix

    def _flush_rank(self, rank: int | None) -> None:
        """Shows the unfinished lines of one rank, whose last output may still be on its way, or of all."""
        for key in [key for key in (*self._lines, *self._unfinished) if rank in (None, key[0])]:
            prefix, lines = self._get_prefix(key[0], ""), self._lines.setdefault(key, Lines())
            self._print_rank_lines(key, prefix, lines.flush() if rank is None or lines.redraws else lines.release())
            self._print_raw(key, prefix, b"", partial=False)

    def _print(self, *lines: str) -> None:
        self._out.flush()
        self._err.write("".join(f"{line}\n" for line in lines))
        self._err.flush()

    def _show_failures(self) -> None:
        if failures := self._failures.pop_failures():
            self._print(*format_failure_lines(failures))


_OF_RANKS = (e.RankStage, e.Stalled, e.StallCompared, e.RankStack)
_SAMPLED = (e.HostSample, e.FiguresRead)
_PASSING = (e.HostFailed, e.StepStarted, e.StepEnded, e.Progress, e.FactsRead, e.FindingReported, *_OF_RANKS, *_SAMPLED)


def _format_host_mark(host: str) -> str:
    return f"[{escape(host)}] " if host else ""


class JsonLines:
    """``--output json``: one JSON object per event (`wire.encode`), the report as the last, ``{"event": "report"}``."""

    def __init__(self, out: Pipe) -> None:
        self._out = out
        self._closed = False

    def handle_event(self, stamped: Stamped) -> None:
        self._out.send(event_json.dump_ascii_json(event_json.encode_event(stamped)).encode() + b"\n")
        self._out.flush()

    def close(self, report: CommandReport | None = None) -> None:
        if not self._closed and report is not None:
            self._out.send(event_json.dump_ascii_json({"event": "report", **to_json(report)}).encode() + b"\n")
        self._closed = True
        self._out.flush()


class _Quiet:
    """Warnings and failures go to ``err``; steps are not shown, nor is ranks' output."""

    def __init__(self, out: Pipe, err: Pipe) -> None:
        self._out, self._err = out, err
        self._messages = Plain(err, err, results=False)

    def handle_event(self, stamped: Stamped) -> None:
        event = stamped.event
        notable = isinstance(event, e.Message) and (event.level == "warning" or event.code == "goes-on")
        if notable or isinstance(event, e.HostFailed):
            self._messages.handle_event(stamped)

    def close(self, report: CommandReport | None = None) -> None:
        self._messages.close()
        self._out.flush()


class Answering(_Quiet):
    """``--json``: the answer as one JSON document on ``out`` at the end, and nothing else there.

    An answer without ``hosts`` of its own, and a command that came to no answer, are completed from the report, so that
    a program always reads one document with every host's and every rank's outcome. ``only`` names the one key of the
    answer that is printed."""

    def __init__(self, out: Pipe, err: Pipe, only: str = "") -> None:
        super().__init__(out, err)
        self._only = only
        self._answer: AnyAnswer | None = None
        self._closed = False

    def handle_event(self, stamped: Stamped) -> None:
        super().handle_event(stamped)
        if isinstance(stamped.event, e.Answer):
            self._answer = stamped.event.value

    def close(self, report: CommandReport | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        value: dict[str, object] = dict(to_json_items(self._answer)) if self._answer else {}
        if report is not None and "hosts" not in value:
            value = {**to_json_items(report), **(to_json_items(report.run) if report.run else {}), **value}
        if value:
            for piece in event_json.format_document(value.get(self._only, value)):
                self._out.send(piece.encode())
            self._out.send(b"\n")
        super().close(report)


class Bare(_Quiet):
    """A rank's bytes as it wrote them, nothing added: its output to ``out``, its errors to ``err``, where we talk."""

    def handle_event(self, stamped: Stamped) -> None:
        super().handle_event(stamped)
        if isinstance(event := stamped.event, e.Output):
            (self._out if event.stream == "out" else self._err).send(event.data)
