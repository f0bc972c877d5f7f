"""The sink behind ``--notify``: which events of a command are reported, and in which words."""

from collections.abc import Callable

from ipexctl.act.notify import Notifier
from ipexctl.decide.saved_runs import classify_result
from ipexctl.model.events import Stamped
from ipexctl.model.json_values import to_json
from ipexctl.model.notifications import Notification, NotificationEvent
from ipexctl.model.reports import CommandReport
from ipexctl.model.run_state import Attempt, RunState, Stall
from ipexctl.model.text import format_ranks, pluralize, printable
from ipexctl.show import phrases
from ipexctl.store import event_json
from ipexctl.verbs.run.saved_runs import describe_cause

_VERDICT_TIMEOUT = 60.0  # seconds a stall waits for the comparison of its stacks
_OLD_STALL_SECONDS = 5.0  # seconds in which a watcher that came later reads that a stall of before was over


class NotificationSink:
    """``warn`` shows a line to the user; ``is_interrupted`` ends the wait for the last deliveries."""

    def __init__(
        self, notifier: Notifier, warn: Callable[[str], object], is_interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        self._notifier, self._warn, self._is_interrupted = notifier, warn, is_interrupted
        self._verb = self._title = ""
        self._attempt: Attempt | None = None
        self._stalls = 0  # of the attempt, that were reported
        self._failed = self._closed = False

    def handle_event(self, stamped: Stamped, state: RunState) -> None:
        attempt = state.attempt
        if not self._verb and state.command is not None:
            self._verb, self._title = state.command.verb, state.command.title
            if self._verb == "play":
                self._send("start", state.command_at, "started", state.command.hosts)
        if attempt is not None and attempt is not self._attempt:
            self._report_stalls(state.at, closing=True)
            self._attempt, self._stalls, self._failed = attempt, 0, False
            self._report_start(attempt, len(state.run.attempts) - 1)
        self._report_stalls(state.at)
        if self._attempt is not None and not self._failed and (self._attempt.failed or self._attempt.lost):
            self._failed = True  # others mostly follow from it
            self._report_failure(self._attempt)
        for warning in self._notifier.pop_warnings():
            self._warn(warning)

    def close(self, report: CommandReport | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._report_stalls(0.0, closing=True)
        if report is not None:
            self._report_end(report)
        self._notifier.close(self._is_interrupted)
        for warning in self._notifier.pop_warnings():
            self._warn(warning)

    def _report_start(self, attempt: Attempt, restarts: int) -> None:
        if self._verb != "play":
            ranks = attempt.started.ranks
            hosts = tuple(dict.fromkeys(ranks))
            many = f"{pluralize(len(ranks), 'rank')} on {pluralize(len(hosts), 'host')}"
            begun = "watched" if self._verb == "attach" else "started"
            begun = f"started again (restart {restarts})" if restarts else begun
            self._title = attempt.started.title or self._title  # the command only knows a run's id
            self._send("start", attempt.at, f"{begun}, {many}", hosts, tuple(range(len(ranks))))

    def _report_stalls(self, now: float, *, closing: bool = False) -> None:
        """Reports the stalls that are new, each with the verdict of its stacks, for which it waits. A watcher that
        came later does not report a stall that was over."""
        for stall in self._attempt.stalls[self._stalls :] if self._attempt else ():
            last = self._attempt is not None and stall is self._attempt.stalls[-1]
            late = self._verb == "attach"
            known = bool(stall.compared) and not late
            if not (
                known
                or closing
                or not last
                or now - stall.at > (_OLD_STALL_SECONDS if stall.compared else _VERDICT_TIMEOUT)
            ):
                return
            self._stalls += 1
            if not (late and stall.resumed):
                self._report_stall(stall)

    def _report_stall(self, stall: Stall) -> None:
        event, ranks = stall.event, self._attempt.started.ranks if self._attempt else ()
        hosts = tuple(dict.fromkeys(ranks[rank] for rank in event.ranks if rank < len(ranks)))
        what = "stragglers" if event.kind == "stragglers" else "no progress"
        text = f"{what} for {event.seconds:.0f} s: {format_ranks(event.ranks)}"
        verdict = stall.comparison[0].strip() if stall.comparison else ""
        self._send("stall", stall.at, f"{text}; {verdict}" if verdict else text, hosts, event.ranks)

    def _report_failure(self, attempt: Attempt) -> None:
        """Reports the first failure of a run."""
        rank, end = attempt.failed, attempt.failed and attempt.failed.ended
        if rank and end:
            how = phrases.format_signal(end.signal) if end.signal else f"exit code {end.status}"
            how = how if end.abort is None else f"MPI_Abort({end.abort})"
            text = f"rank {rank.rank} on {rank.host} failed ({how})" + (f": {end.error}" if end.error else "")
            self._send("failure", rank.ended_at, text, (rank.host,), (rank.rank,))
        else:
            host, (at, what) = next(iter(attempt.lost.items()))
            self._send("failure", at, f"{host}: {what}", (host,))

    def _report_end(self, report: CommandReport) -> None:
        result, run = classify_result(report), report.run
        took = phrases.format_duration(report.ended - report.started)
        cause = describe_cause(report)
        words = {"ok": "ended well", "detached": "detached"}.get(result, result)
        text = f"{words} after {took}" + (f": {cause}" if cause else "")
        hosts = tuple(dict.fromkeys(rank.host for rank in run.ranks)) if run else ()
        hosts = hosts or tuple(host.host for host in report.hosts)
        ranks = tuple(rank.rank for rank in run.ranks) if run else ()
        self._send("end", report.ended, text, hosts, ranks, report)

    def _send(
        self,
        event: NotificationEvent,
        at: float,
        text: str,
        hosts: tuple[str, ...],
        ranks: tuple[int, ...] = (),
        report: CommandReport | None = None,
    ) -> None:
        title = printable(self._title, 200)
        run = self._attempt.started.run if self._attempt else None
        text = printable(f"{title or self._verb}: {' '.join(text.split())}", 600)
        value = Notification(event, text, at, self._verb, title, hosts, ranks, run)
        if report is not None:
            ended = (classify_result(report), int(report.exit), report.ended - report.started, report.saved)
            value = Notification(event, text, at, self._verb, title, hosts, ranks, run, *ended)
        self._notifier.send(event, event_json.dump_ascii_json(to_json(value)).encode() + b"\n")
