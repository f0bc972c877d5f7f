"""The sink behind ``--notify``: which events of a command are reported, and in which words."""

from collections.abc import Callable

from ipexctl.act.notify import Notifier
from ipexctl.decide.saved_runs import classify_result
from ipexctl.model import events as e
from ipexctl.model.errors import Kind
from ipexctl.model.events import Stamped
from ipexctl.model.json_values import to_json
from ipexctl.model.notifications import Notification, NotificationEvent
from ipexctl.model.reports import CommandReport
from ipexctl.model.text import pluralize, printable
from ipexctl.show import event_json, phrases
from ipexctl.verbs.run.saved_runs import describe_cause

_VERDICT = 60.0  # seconds a stall waits for the comparison of its stacks
_OVER = 5.0  # seconds in which a watcher that came later reads that a stall of before was over


class NotificationSink:
    """``warn`` shows a line to the user; ``is_interrupted`` ends the wait for the last deliveries."""

    def __init__(
        self,
        notifier: Notifier,
        warn: Callable[[str], object],
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._notifier, self._warn, self._is_interrupted = notifier, warn, is_interrupted
        self._verb = self._title = ""
        self._run: e.RunStarted | None = None
        self._stall: Stamped | None = None  # that is not reported yet
        self._verdict = ""  # of its stacks
        self._failed = self._closed = False

    def handle_event(self, stamped: Stamped) -> None:
        event, at = stamped.event, stamped.at
        if self._stall is not None and at - self._stall.at > (_OVER if self._verdict else _VERDICT):
            self._report_stall()
        match event:
            case e.Started() if not self._verb:
                self._verb, self._title = event.verb, event.title
                if event.verb == "play":
                    self._send("start", at, "started", event.hosts)
            case e.RunStarted():
                self._run, self._failed = event, False
                if self._verb != "play":
                    hosts = tuple(dict.fromkeys(event.ranks))
                    many = f"{pluralize(len(event.ranks), 'rank')} on {pluralize(len(hosts), 'host')}"
                    begun = "watched" if self._verb == "attach" else "started"
                    self._title = event.title or self._title  # the command only knows a run's id
                    self._send("start", at, f"{begun}, {many}", hosts, tuple(range(len(event.ranks))))
            case e.Stalled():
                self._report_stall()
                self._stall = stamped
            case e.StallCompared(text=text):
                self._verdict = text.partition("\n")[0].strip()
                if self._verb != "attach":
                    self._report_stall()
            case e.Message(code="resumed") if self._verb == "attach":
                self._stall, self._verdict = None, ""
            case e.RankEnded(cause="") if event.status != 0:
                how = phrases.format_signal(event.signal) if event.signal else f"exit code {event.status}"
                why = f": {event.error}" if event.error else ""
                text = f"rank {event.rank} on {event.host} failed ({how}){why}"
                self._report_failure(at, text, event.host, (event.rank,))
            case e.HostFailed(failure=failure) if failure.kind is Kind.LOST:
                self._report_failure(at, f"{failure.host}: {failure.what}", failure.host)
        for warning in self._notifier.pop_warnings():
            self._warn(warning)

    def close(self, report: CommandReport | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._report_stall()
        if report is not None:
            self._report_end(report)
        self._notifier.close(self._is_interrupted)
        for warning in self._notifier.pop_warnings():
            self._warn(warning)

    def _report_stall(self) -> None:
        """Reports the pending stall, with the verdict of its stacks if it has one."""
        stamped, verdict = self._stall, self._verdict
        self._stall, self._verdict = None, ""
        if stamped is None or not isinstance(stall := stamped.event, e.Stalled):
            return
        placed = self._run.ranks if self._run else ()
        hosts = tuple(dict.fromkeys(placed[rank] for rank in stall.ranks if rank < len(placed)))
        silent = f"no progress for {stall.seconds:.0f} s: {phrases.format_ranks(stall.ranks)}"
        if stall.kind == "stragglers":
            silent = f"stragglers for {stall.seconds:.0f} s: {phrases.format_ranks(stall.ranks)}"
        self._send("stall", stamped.at, f"{silent}; {verdict}" if verdict else silent, hosts, stall.ranks)

    def _report_failure(self, at: float, text: str, host: str, ranks: tuple[int, ...] = ()) -> None:
        """The first failure of a run: others mostly follow from it."""
        if not self._failed:
            self._failed = True
            self._send("failure", at, text, (host,), ranks)

    def _report_end(self, report: CommandReport) -> None:
        result, run = classify_result(report), report.run
        took = phrases.format_duration(report.ended - report.started)
        cause = describe_cause(report)
        words = {"ok": "ended well", "detached": "goes on without us"}.get(result, result)
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
        run = self._run.run if self._run else None
        text = printable(f"{title or self._verb}: {' '.join(text.split())}", 600)
        value = Notification(event, text, at, self._verb, title, hosts, ranks, run)
        if report is not None:
            ended = (classify_result(report), int(report.exit), report.ended - report.started, report.saved)
            value = Notification(event, text, at, self._verb, title, hosts, ranks, run, *ended)
        self._notifier.send(event, event_json.dump_ascii_json(to_json(value)).encode() + b"\n")
