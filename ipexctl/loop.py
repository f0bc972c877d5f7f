"""The one loop: a command's events go to every sink, and the report made of them gives the exit code."""

import errno
import logging
import os
import select
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from platformdirs import user_cache_path, user_state_path

from ipexctl.act.context import Context, RecordLocation
from ipexctl.act.interrupts import Interrupts
from ipexctl.act.ssh import Links
from ipexctl.decide.parsing.amounts import parse_clock
from ipexctl.decide.run.command_line import find_script
from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.run.report import complete_failure, make_report
from ipexctl.decide.run.slow_download import describe_slow_download
from ipexctl.model import events
from ipexctl.model.errors import Exit, Interrupted, LinkError, UnwatchedRunError, UsageError, choose_exit, complete_hint
from ipexctl.model.events import Event, Message, Stamped
from ipexctl.model.reports import CommandReport
from ipexctl.model.run_state import Slowdown, Stall
from ipexctl.model.text import printable
from ipexctl.show import sinks
from ipexctl.show.pipe import Pipe, choose_terminal_encoding, describe_full
from ipexctl.store.debug_log import NAME, DebugLog
from ipexctl.store.masking import SECRETS, EventMasker
from ipexctl.store.private_files import claim_private_directory
from ipexctl.store.record import RunRecord, make_name, prune_records, read_report
from ipexctl.verbs.common.known_errors import read_known_errors

if TYPE_CHECKING:
    from ipexctl.act.notify import Notifier

_log = logging.getLogger(__name__)

Workflow = events.Workflow[Any]
Output = Literal["auto", "live", "plain", "json"]
_SAME_LOSS_SECONDS = 1.0  # seconds in which ranks show the same loss
_LOOK_UPS = ("attach",)  # verbs that are saved from the run on that they find
_RUNNING = ("run", "attach", "play", "demo", "bench", "tune")  # verbs that start ranks, or watch them
_PATH_ERRORS = (errno.EACCES, errno.ENAMETOOLONG)  # of a path that the user gave, wherever it is looked at first
SAVED_RUNS_LIMIT = 200  # saved runs; the oldest finished ones make room


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a command connects to hosts and prints; the same for every command. Fields are called as the flags are."""

    output: Output = "auto"
    json_: bool = False
    raw: bool = False
    label_hosts: bool = False
    accept_new_host_keys: bool = False
    connect_timeout: float = 10.0
    forks: int = 32
    ask_pass: bool = False
    bare: bool = False  # the bytes of the ranks and nothing else on standard output
    notify: Sequence[str] | None = None  # commands that get notifications
    detachable: bool = False  # a key of the live view may detach from the run
    report: bool = True  # a run leaves its page in its record


def get_state_directory() -> Path:
    """The directory of the user's saved runs, labs and the shared debug.log."""
    return user_state_path("ipexctl", appauthor=False)


def get_cache_directory() -> Path:
    """The directory of wheels and locks, which can be downloaded again."""
    return user_cache_path("ipexctl", appauthor=False)


def run_command(make_workflow: Callable[[Context], Workflow], options: OutputOptions, *, acting: bool = False) -> Exit:
    """Executes one command: delivers the events of its workflow to the sinks, and returns the exit code.

    ``make_workflow`` may raise `UsageError`: it is printed, and nothing is recorded. Events of ``acting`` commands are
    saved. An exception that is none of ours to raise is a fault of ipexctl: `Exit.INTERNAL`."""

    def run(console: Console, log: DebugLog) -> Exit:
        ask = partial(ask_passphrase, interrupts=console.interrupts) if options.ask_pass else None
        links = Links(connect_timeout=options.connect_timeout, accept_new=options.accept_new_host_keys, ask=ask)
        context = Context(links, get_state_directory(), get_cache_directory(), options.forks)
        context = replace(context, interrupts=console.interrupts, masker=log.masker)
        try:
            notifier = None
            if options.notify:
                from ipexctl.act.notify import Notifier, parse_notify_command

                notifier = Notifier([*map(parse_notify_command, options.notify)], os.environ)
            with console.interrupts.raise_on_signal():
                if acting:
                    claim_private_directory(context.cache)
                workflow = make_workflow(context)
                first = next(workflow)
            # A live screen leaves no lines to the log.
            shown = replace(options, output="plain") if log.shown and options.output == "auto" else options
            state, notifier = (context.state, notifier) if acting else (None, None)
            return Delivery(shown, console, log, state, context.saved, notifier).deliver_events(first, workflow)
        except Interrupted:
            console.err.write("interrupted: nothing was done\n")
            raise
        except UsageError as error:
            if options.json_:
                sinks.write_json_refusal(describe_exception(error, log), console.out)
            raise
        finally:
            links.close()

    return _run_with_debug_log(run)


def replay_run(word: str, options: OutputOptions, speed: float | None = None, start: str | None = None) -> Exit:
    """Shows a saved run in this output mode; the exit code is that of the run. With a ``speed`` it is shown so many
    times as fast as it went; up to ``start``, as ``00:12:30``, at once. Raises `UsageError`."""
    from ipexctl.verbs.run.replay import find_saved_run, pace_events, read_saved_run

    skip = parse_clock("--at", start) if start is not None else 0.0
    directory = find_saved_run(get_state_directory() / "runs", word)

    def replay(console: Console, log: DebugLog) -> Exit:
        fold, lock = RunFold(), threading.Lock()
        timed = bool(speed or start is not None)
        screen = make_screen_sink(options, console, lock, speed=speed or 1.0, keys=timed)
        saved, masker = read_saved_run(directory, log.masker), EventMasker(log.masker)
        try:
            with console.interrupts.raise_on_signal():
                if timed:
                    saved = pace_events(saved, speed or 1.0, skip, is_paused=lambda: getattr(screen, "paused", False))
                for stamped in masker.mask_events(saved):
                    with lock:
                        fold.handle_event(stamped)
                    screen.handle_event(stamped, fold.state)
        except Interrupted:
            screen.close()
            raise
        report = replace(make_report(fold.state, read_known_errors), saved=str(directory))
        ended = read_report(directory)
        refused = None
        if ended and ended.refused is not None:  # which is no event
            refused = UsageError(ended.refused, reasons=ended.reasons or (), hint=ended.hint, code="")
            report = _add_refusal(replace(report, exit=ended.exit, ok=ended.ok), refused)
        screen.close(report)
        if refused:
            sinks.print_refusal(refused, console.err)
        return report.exit

    return _run_with_debug_log(replay)


def end_with_error(error: Exception, *, json_: bool = False) -> Exit:
    """For what no command has caught: prints the sentence, with ``json_`` also as a document; of a fault of ipexctl,
    logs the traceback."""

    full = describe_full(error)

    def fail(console: Console, log: DebugLog) -> Exit:
        if json_ and not full:
            sinks.write_json_refusal(describe_exception(error, log), console.out)
        raise UsageError(f"the output cannot be written: {full.lower()}", exit=Exit.RECORD) if full else error

    return _run_with_debug_log(fail)


class Console:
    """The process's outputs and signals."""

    def __init__(self) -> None:
        encoding = choose_terminal_encoding(os.environ)
        self.out, self.err = Pipe(sys.stdout, encoding), Pipe(sys.stderr, encoding)
        self.interrupts = Interrupts()


def _run_with_debug_log(run: Callable[[Console, DebugLog], Exit]) -> Exit:
    """The exit code of ``run``, or of what ended it, which is printed. The traceback of a fault goes to the log."""
    console = Console()
    console.interrupts.install()

    def write(text: str) -> None:
        console.err.write(text)
        console.err.flush()

    with DebugLog(get_state_directory() / NAME, write=write, environ=os.environ) as log:
        try:
            exit = run(console, log)
        except Interrupted as interrupted:
            exit = interrupted.exit
        except Exception as error:
            described = describe_exception(error, log)
            sinks.print_refusal(described, console.err)
            exit = described.exit
        finally:
            console.out.flush()
        if console.out.loss:
            sinks.print_refusal(UsageError(f"the output cannot be written: {console.out.loss.lower()}"), console.err)
            exit = choose_exit([exit, Exit.RECORD])
        console.err.flush()
        return exit


def describe_exception(
    error: Exception, log: DebugLog, verb: str = "ipexctl", *, place: Sequence[str] = ()
) -> UsageError:
    """What to print of an exception that ended a command. The traceback of a fault of ours goes to the log."""
    if isinstance(error, LinkError):
        failure = error.failure
        error = UsageError(f"{failure.host}: {failure.what}", hint=failure.hint, exit=failure.kind.exit)
    if isinstance(error, OSError) and error.errno in _PATH_ERRORS and isinstance(error.filename, str):
        _log.debug("a path", exc_info=error)
        reason = os.strerror(error.errno).lower()
        error = UsageError(f"{printable(error.filename, 300)} cannot be used: {reason}")
    if isinstance(error, FileNotFoundError) and error.filename is None:  # getcwd's alone has no name
        error = UsageError("the current directory has been removed", hint="cd ~")
    if not isinstance(error, UsageError):
        error = log.log_internal_error(error, verb)
    hide = log.masker.mask_text
    error.sentence, error.reasons = hide(error.sentence), tuple(map(hide, error.reasons))
    error.hint = error.hint and hide(complete_hint(error.hint, place))
    return error


class Delivery:
    """The events of one workflow on their way to all sinks; they are saved below ``state``, if that is given."""

    def __init__(
        self,
        options: OutputOptions,
        console: Console,
        log: DebugLog,
        state: Path | None,
        saved: RecordLocation,
        notifier: "Notifier | None" = None,
    ) -> None:
        self._interrupts, self._err, self._log, self._state = console.interrupts, console.err, log, state
        self._saved = saved
        self._verb, self._options, self._closed = "ipexctl", options, False
        self._fold, self._lock = RunFold(), threading.Lock()
        self._screen = make_screen_sink(options, console, self._lock)
        self._slowdown: Slowdown | None = None  # the last one reported
        self._slow_steps = set[str]()  # those reported
        self._stall: Stall | None = None  # the last one whose exceptions were looked up
        self._stall_cause = ""  # reported of it
        self._masker, self._kept = EventMasker(log.masker), 0  # how many changes the record's hashes have
        self._record: RunRecord | None = None
        self._unsavable = False  # the record raised
        self._unsaved: list[Stamped] = []
        self._sinks: list[sinks.Sink] = [self._screen]
        if notifier is not None:
            from ipexctl.verbs.common.notifications import NotificationSink

            self._sinks.append(NotificationSink(notifier, self._warn, lambda: self._interrupts.has_pending_signal))
        self._broken: list[sinks.Sink] = []  # sinks that raised: they get no more events

    def deliver_events(self, first: Event, workflow: Workflow) -> Exit:
        """Takes all events, closes the sinks, prints what ended the workflow before its end; the exit code.

        Signals, and what a sink raises, are thrown into the workflow, so that it ends its work in an orderly way."""
        self._verb = getattr(first, "verb", "run")
        if self._state is not None and self._verb not in _LOOK_UPS:
            self._open_record(self._state / "runs", make_name(time.time()))
        failure: Exception | Interrupted | None = self._send_to_sinks(first)
        thrown = failure
        while True:
            try:
                thrown = thrown or (self._interrupts.pop_pending() if self._interrupts.has_pending_signal else None)
                with self._interrupts.raise_on_signal():
                    event = workflow.throw(thrown) if thrown else next(workflow)
            except StopIteration:
                break
            except (Exception, Interrupted) as error:
                failure = error if failure is None or isinstance(error, UnwatchedRunError) else failure
                break
            thrown = self._send_to_sinks(event) or self._report_news(event)
            failure = failure or thrown
        return self._close_sinks(failure)

    def _report_news(self, event: Event) -> Exception | None:
        """Reports what the state shows with this event and did not before; what a sink raised."""
        news = {
            "lost-loss": self._find_lost_loss(),
            "slow-host": self._find_slow_host(),
            "slow-download": self._find_slow_download(event),
            "known-stall": self._find_stall_cause(event),
        }
        raised = [self._send_to_sinks(Message(text, "warning", code=code)) for code, text in news.items() if text]
        return next(filter(None, raised), None)

    def _find_lost_loss(self) -> str:
        """Of a start of a run: that its loss is no number, once all ranks that show it at that moment have."""
        state, before = self._fold.state, self._interrupts.lost_loss
        attempt = state.attempt
        lost = attempt.lost_loss if attempt else None
        if attempt and lost and len(lost.ranks) < len(attempt.ranks) and not attempt.over:
            since = min(state.run.not_finite[rank][0] for rank in lost.ranks)
            lost = lost if state.at >= since + _SAME_LOSS_SECONDS else None
        self._interrupts.lost_loss = lost.text if lost else ""
        return "" if before else self._interrupts.lost_loss

    def _find_slow_host(self) -> str:
        """Which host makes a run slow, once for each time that it does."""
        attempt = self._fold.state.attempt
        slowdown = attempt.slowdown if attempt else None
        self._interrupts.slow = slowdown is not None
        if slowdown is None or slowdown.verdict is None or slowdown is self._slowdown:
            return ""
        self._slowdown = slowdown
        return "\n".join(slowdown.verdict.lines)

    def _find_stall_cause(self, event: Event) -> str:
        """What an exception of the ranks of a stall is known as, unless the last one was of the same."""
        attempt = self._fold.state.attempt if isinstance(event, Message) else None  # which says where they stand
        stall = attempt.stalls[-1] if attempt and attempt.stalls else None
        if attempt is None or stall is None or not stall.compared or stall is self._stall:
            return ""
        from ipexctl.decide.diagnosis.stack_traces import describe_stall_cause  # most commands have no stall

        self._stall, before, script = stall, self._stall_cause, find_script(self._fold.state)
        self._stall_cause = describe_stall_cause(read_known_errors, stall.stacks, attempt.started.run, script)
        return "" if self._stall_cause == before else self._stall_cause

    def _find_slow_download(self, event: Event) -> str:
        """Of a step: that its files come slowly, and to whom."""
        if not isinstance(event, events.Progress) or event.step in self._slow_steps:
            return ""
        text = describe_slow_download(self._fold.state, event)
        self._slow_steps |= {event.step} if text else set()
        return text or ""

    def _warn(self, text: str) -> None:
        if self._closed:
            self._err.write(f"warning: {text}\n")
        else:
            state = replace(self._fold.state, lines=(), values=())  # those of the last event were shown with it
            self._screen.handle_event(Stamped(time.time(), Message(text, "warning")), state)

    def _open_record(self, runs: Path, name: str) -> None:
        self._record = record = RunRecord(runs, name, trouble=self._warn)
        self._log.set_directory(record.directory)
        self._saved.directory = record.directory
        prune_records(runs, SAVED_RUNS_LIMIT, spare=[record.directory])
        if self._options.report and self._verb in _RUNNING:
            from ipexctl.verbs.run.page_sink import PageSink

            # After the screen: nobody waits for a page.
            self._sinks.append(PageSink(record.directory, runs.parent, self._warn, read_known_errors))

    def _send_to_sinks(self, event: Event) -> Exception | None:
        """Folds the event and gives it to all sinks; what one of them raised."""
        now, state = events.get_event_time(event, time.time()), self._fold.state
        if isinstance(event, events.HostFailed):  # what helps has the user's own options, wherever it is shown
            event = replace(event, failure=complete_failure(state, event.failure))
        elif isinstance(event, Message):
            event = replace(event, text=complete_hint(event.text, state.selection_flags))
        log_event(event)
        masked = [Stamped(now, each) for each in self._masker.mask_event(event)]
        saved = [Stamped(now, event)] if isinstance(event, events.Output) else masked  # its file has what a rank wrote
        failure = self._save_events(event, saved)
        for stamped in masked:
            try:
                with self._lock:
                    self._fold.handle_event(stamped)
            except Exception as error:
                failure = failure or error
            for sink in tuple(self._sinks):
                try:
                    sink.handle_event(stamped, state)
                except Exception as error:
                    self._sinks.remove(sink)
                    self._broken.append(sink)
                    failure = failure or error
        return failure

    def _save_events(self, event: Event, saved: Sequence[Stamped]) -> Exception | None:
        """Gives events to the record: a look-up has one once its run is known, one that raised gets no more."""
        if self._state is None or self._unsavable:
            return None
        self._unsaved += saved
        try:
            if self._record is None and isinstance(event, events.RunStarted):
                self._open_record(self._state / "runs", event.run)
            if self._record is not None and self._kept != self._log.masker.changes:
                self._kept = self._log.masker.changes
                self._record.write_document(SECRETS, self._log.masker.dump_kept())
            while self._record is not None and self._unsaved:
                self._record.handle_event(self._unsaved.pop(0))
        except Exception as error:
            self._unsavable = True
            return error
        return None

    def _close_sinks(self, failure: Exception | Interrupted | None) -> Exit:
        report: CommandReport | None = None
        try:
            lost = self._record.count_lost_output() if self._record else None
            report = make_report(self._fold.state, read_known_errors, lost=lost)
        except Exception as error:
            failure = failure or error
        place, described = self._fold.state.selection_flags, None
        if isinstance(failure, Exception):
            described = describe_exception(failure, self._log, self._verb, place=place)
        exit = _choose_exit_code(report, failure, described)
        closing = replace(
            report or CommandReport(self._verb, "", exit, False, (), 0.0, 0.0, False, (), (), (), (), None, None),
            exit=exit,
            ok=exit is Exit.OK,
            saved=str(self._record.directory) if self._record else None,
        )
        if described:
            closing = _add_refusal(closing, described)
        record = (self._record,) if self._record else ()
        for sink in (*record, *self._sinks, *self._broken):
            try:
                sink.close(closing)
                self._closed = self._closed or sink is self._screen
            except Exception as error:
                described = described or describe_exception(error, self._log, self._verb)
                exit = choose_exit([exit, Exit.INTERNAL])
        if described:
            sinks.print_refusal(described, self._err)
        if isinstance(failure, Interrupted):
            self._err.write(_describe_interruption(report) if report and self._record else "interrupted\n")
        return exit


def _add_refusal(report: CommandReport, error: UsageError) -> CommandReport:
    """The report of a command that this error ended in the middle."""
    refused = replace(report, refused=error.sentence, reasons=error.reasons, hint=error.hint)
    return replace(refused, refusal_code=error.code)


def _choose_exit_code(
    report: CommandReport | None, failure: Exception | Interrupted | None, described: UsageError | None
) -> Exit:
    """The exit code of what ended a workflow before its end, or that of the report."""
    causes = report.causes if report else ()
    if described and described.exit is not Exit.INTERNAL:  # as hosts that cannot hold what is asked
        return choose_exit([described.exit, *(cause for cause in causes if cause != Exit.LOST)])
    ended = described or failure
    if isinstance(ended, UsageError | Interrupted):
        return choose_exit([ended.exit, *(cause for cause in causes if cause == Exit.RESIDUE)])
    return report.exit if report else Exit.INTERNAL


_OF_RANKS = (events.Output, events.RankStage, events.LauncherOutput, events.HostSample)
_NOT_LOGGED = (events.Answer, events.Progress, *_OF_RANKS)
_FACTS = ("model_name", "isa_level", "physical_cores", "mem_total_kb", "distribution", "kernel", "glibc", "interfaces",
          "pythons", "installed", "mpi", "unread")  # fmt: skip


def log_event(event: Event) -> None:
    """Logs what decisions are made of and what comes of them: of facts a summary, of ranks' output nothing."""
    if isinstance(event, events.FactsRead):
        _log.debug("facts of %s: %s", event.host, {name: getattr(event.facts, name) for name in _FACTS})
    elif not isinstance(event, _NOT_LOGGED) and getattr(event, "code", "") != "serving":  # an address with its token
        _log.debug("%r", event)


def _describe_interruption(report: CommandReport) -> str:
    """The last line of an interrupted command that does what is left when it is typed again."""
    done = [host.host for host in report.hosts if host.steps and host.good]
    progress = f": {', '.join(done)} partly done" if done else ""
    return f"interrupted{progress}; type the same command again to go on\n"


def make_screen_sink(
    options: OutputOptions, console: Console, lock: threading.Lock, speed: float = 1.0, *, keys: bool = True
) -> sinks.Sink:
    """The sink that prints: live on a terminal, plain elsewhere, JSON on request. ``keys``: the live one reads keys;
    ``lock`` is held while the state changes, and by the live one while it draws."""
    out, err = console.out, console.err
    if options.bare:
        return sinks.RawOutput(out, err)
    if options.output == "json":
        return sinks.JsonLines(out)
    if options.json_:
        return sinks.JsonAnswer(out, err)
    if options.output == "live" or (options.output == "auto" and out.isatty() and os.environ.get("TERM") != "dumb"):
        from ipexctl.show.live import Live

        detach = console.interrupts.detach.set if options.detachable else None
        return Live(out, err, on_detach=detach, speed=speed, keys=keys, lock=lock, held=console.interrupts.asking)
    return sinks.Plain(out, err, raw=options.raw, label="host" if options.label_hosts else "rank")


_ERASE_SECONDS = 0.3  # in which a live screen takes itself away


def ask_passphrase(question: str, interrupts: Interrupts) -> str | None:
    """The answer to ``question``, typed without an echo; None where there is no terminal, and after a signal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    interrupts.asking.set()
    time.sleep(_ERASE_SECONDS)
    before = termios.tcgetattr(sys.stdin)
    termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, [*before[:3], before[3] & ~termios.ECHO, *before[4:]])
    print(question, end="", file=sys.stderr, flush=True)
    try:
        while not (interrupts.arrived or select.select([sys.stdin], [], [], 0.1)[0]):
            pass
        return None if interrupts.arrived else sys.stdin.readline().rstrip("\n")
    finally:
        print(file=sys.stderr, flush=True)  # nothing of the answer is echoed, its end neither
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)
        interrupts.asking.clear()
