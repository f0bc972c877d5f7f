"""Events → `CommandReport` → exit code: the one place where a command's outcome is judged.

`Folding` takes events one by one (it has the shape of a sink). 0 only when all of it worked; what is not known counts
as failed; the order in which events of several hosts arrive does not change the exit code."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ipexctl.decide.diagnosis.known_errors import KnownErrors, diagnose
from ipexctl.model import events as e
from ipexctl.model.errors import Exit, Failure, Kind, choose_exit
from ipexctl.model.events import Stamped
from ipexctl.model.findings import Diagnosis, Finding
from ipexctl.model.hints import Hint, advise, complete_hint
from ipexctl.model.json_values import select_attributes
from ipexctl.model.reports import CommandReport, HostOutcome, HostStep, LostOutput, RankOutcome, RankState, RunOutcome

_TAIL = 1 << 12  # bytes of output of each rank that are kept for its last words
_TAIL_LINES = 20
_SAME_CLOCK = 2.0  # seconds: hosts whose clocks differ by less are compared by their own clocks


class Folding:
    """The report while it grows. Memory grows with hosts, ranks and steps, not with output.

    ``known`` gives the catalogue of errors that failures are compared with, once there is one."""

    def __init__(self, known: Callable[[], KnownErrors] = tuple) -> None:
        self._known = known
        self.place: tuple[str, ...] = ()  # of `Started`
        self._launcher = b""  # mpirun's own last words
        self._verb = self._title = ""
        self._started: float | None = None
        self._exit, self._finished = Exit.OK, False
        self._hosts: dict[str, list[tuple[str, str, str]]] = {}
        self._failures: list[Failure] = []
        self._findings: dict[Finding, None] = {}
        self._warnings: dict[str, None] = {}
        self._run: e.RunStarted | None = None
        self._at = self._run_started = self._run_ended = 0.0
        self._over: e.RunEnded | None = None
        self._proofs: dict[str, e.CleanupChecked] = {}  # the last of each run
        self._mark: tuple[int, dict[str, int], int] = (0, {}, 0)  # failures, steps and findings before the last Started
        self._excused = ""  # the run that failed and may
        self._stall: list[str] = []
        self._suspects: tuple[int, ...] = ()  # the ranks that the others wait for
        self._stages: dict[int, str] = {}
        self._bytes: dict[tuple[int, str], int] = {}
        self._tails: dict[int, bytes] = {}
        self._ends: dict[int, tuple[float, e.RankEnded]] = {}
        self._delays: dict[str, float] = {}  # host → least of (stamp − the host's own time) seen

    def handle_event(self, stamped: Stamped) -> None:
        event, self._at = stamped.event, stamped.at
        match event:
            case e.Output(rank=rank, stream=stream, data=data):
                self._bytes[rank, stream] = self._bytes.get((rank, stream), 0) + len(data)
                tail = data[-_TAIL:]
                tail = tail if len(tail) == _TAIL else (self._tails.get(rank, b"") + tail)[-_TAIL:]
                self._tails[rank] = tail.lstrip(bytes(range(0x80, 0xC0))) if len(tail) == _TAIL else tail
            case e.Started():
                if self._started is None:
                    self._verb, self._title, self._started = event.verb, event.title, stamped.at
                self._finished, self.place = False, event.place or self.place
                done = {host: len(steps) for host, steps in self._hosts.items()}
                self._mark = (len(self._failures), done, len(self._findings))
                for host in event.hosts:
                    self._hosts.setdefault(host, [])
            case e.Message(code="resumed"):
                self._stall, self._suspects = [], ()
            case e.StallCompared(text=text, ranks=ranks):
                self._suspects = ranks
                self._stall = [*self._stall[:1], *text.splitlines()]
            case e.Message(level="warning", text=text, host=host):
                self._stall = [text] if event.code == "stalled" else self._stall
                self._warnings[f"{host}: {text}" if host else text] = None
            case e.StepEnded(host=host, step=step, outcome=outcome, detail=detail):
                self._hosts.setdefault(host, []).append((step, outcome, detail))
            case e.HostFailed(failure=failure):
                self._failures.append(failure)
                if failure.host:
                    self._hosts.setdefault(failure.host, [])
            case e.FindingReported(finding=finding):
                self._findings[finding] = None
            case e.RunStarted():  # once more: --restarts
                # A restart begins anew: what the ranks of the earlier attempt did is not this attempt's outcome.
                # What it left running stays, and so does a host that is no longer there.
                if self._run is not None:
                    back = set(event.ranks)
                    self._failures = [f for f in self._failures if f.kind is not Kind.LOST or f.host not in back]
                self._run, self._over, self._run_started = event, None, stamped.at
                self._title = event.title or self._title
                self._stall, self._suspects = [], ()
                self._stages, self._ends, self._tails, self._bytes, self._launcher = {}, {}, {}, {}, b""
            case e.LauncherOutput(data=data):
                self._launcher = (self._launcher + data)[-_TAIL:]
            case e.RankStage(rank=rank, host=host, stage=stage, at=at):
                self._stages[rank] = stage
                self._record_delay(host, stamped.at, at)
            case e.RankEnded(rank=rank, host=host, at=at):
                # What is seen first is kept, but for "nobody saw its end", which any better knowledge replaces.
                known = self._ends.get(rank)
                if known is None or (known[1].cause == "lost" and event.cause != "lost"):
                    self._ends[rank] = (stamped.at, event)
                self._record_delay(host, stamped.at, at)
            case e.RunEnded():
                self._over, self._run_ended = event, stamped.at
            case e.CleanupChecked():
                self._proofs[event.run] = event
            case e.FailuresIgnored():
                self._ignore_failures()
            case e.Ended(exit=code):
                self._exit, self._finished = code, True  # of a story inside a story, the outer one is the last

    def _ignore_failures(self) -> None:
        """What failed since the last `Started` becomes something that was done; as Ansible counts what it ignores."""
        failures, steps, findings = self._mark
        late = self._failures[failures:]
        forgiven = [failure for failure in late if failure.kind not in _NEVER_EXCUSED]
        self._failures[failures:] = [failure for failure in late if failure not in forgiven]
        for failure in forgiven:
            if failure.host:
                self._hosts[failure.host].append((failure.kind.value, "ok", f"ignored: {failure.what}"))
        for host, done in self._hosts.items():
            for index, (step, outcome, detail) in enumerate(done):
                if index >= steps.get(host, 0) and outcome == "failed":
                    done[index] = (step, "ok", f"ignored: {detail}")
        for finding in list(self._findings)[findings:]:
            if finding.level == "error":
                del self._findings[finding]
                self._findings[replace(finding, level="warning")] = None
        self._excused = self._run.run if self._run else ""

    def complete_failure(self, failure: Failure) -> Failure:
        """With a hint that has the user's own options. What else keeps a host from being reached, doctor finds out."""
        hint = failure.hint
        if hint is None and failure.kind is Kind.UNREACHABLE and self._run is None and self._verb != "doctor":
            hint = advise("doctor")
        return replace(failure, hint=complete_hint(hint, self.place))

    def close(self, report: CommandReport | None = None) -> None:
        """Nothing to do; with it a Folding can stand among the sinks."""

    def report(self, *, lost: LostOutput | None = None) -> CommandReport:
        """``lost`` is what the record could not store. Hosts' clocks are judged from the delays of their messages."""
        run = self._judge_run()
        causes = self._list_causes(run, lost)
        return CommandReport(
            verb=self._verb,
            title=self._title,
            exit=choose_exit(causes),
            ok=choose_exit(causes) is Exit.OK,
            causes=tuple(sorted(set(causes) - {Exit.OK})),
            started=self._started or 0.0,
            ended=self._at,
            finished=self._finished,
            hosts=tuple(self._judge_host(host) for host in self._hosts if host),
            failures=tuple(self._failures),
            findings=tuple(self._findings),
            warnings=tuple(self._warnings),
            run=run if self._run or self._over else None,
            lost=lost,
            place=self.place,
        )

    def _judge_run(self) -> RunOutcome:
        run, over, proofs, shifts = self._run, self._over, self._proofs.values(), self._estimate_clock_shifts()
        hosts = {rank: end.host for rank, (_, end) in self._ends.items()} | dict(enumerate(run.ranks if run else ()))
        ranks = tuple(self._judge_rank(rank, hosts[rank], shifts) for rank in sorted(hosts))
        failed = sorted((rank for rank in ranks if rank.state == "failed"), key=lambda rank: (rank.at, rank.rank))
        orphans: dict[str, tuple[int, ...]] = {}
        for host, pids in (item for proof in proofs for item in proof.orphans.items() if item[1]):
            orphans[host] = (*orphans.get(host, ()), *pids)
        unchecked = tuple(dict.fromkeys(host for proof in proofs for host in proof.unchecked))
        checked = dict.fromkeys(host for proof in proofs for host in proof.hosts)
        started, ended = self._find_run_times(shifts)
        return RunOutcome(
            run=run.run if run else over.run if over else "",
            head=run.head if run else "",
            reason=over.reason if over else "",
            detail=over.detail if over else "",
            started=started,
            ended=ended,
            ranks=ranks,
            first=failed[0].rank if failed else None,
            diagnosis=self._diagnose(failed),
            followers=tuple(rank.rank for rank in failed[1:]),
            stopped=tuple(rank.rank for rank in ranks if rank.state == "stopped"),
            clean=tuple(host for host in checked if host not in orphans and host not in unchecked),
            orphans=orphans,
            unchecked=unchecked,
            stall=tuple(self._stall) or None,
            suspects=self._suspects if self._stall else (),
        )

    def _find_run_times(self, shifts: Mapping[str, float]) -> tuple[float, float]:
        """The run's beginning and end: as we saw them, or, when we came later, as they were noted on the head."""
        run, over = self._run, self._over
        started, ended = self._run_started, self._run_ended if over else self._at
        if run is None or not (run.title and run.at):
            return started, ended
        shift = shifts.get(run.head, 0.0)
        return run.at + shift, over.at + shift if over and over.at else ended

    def _diagnose(self, failed: list[RankOutcome]) -> Diagnosis | None:
        """Of the first failed rank, then of the others, then of mpirun's output."""
        over = self._over
        if not failed and (over is None or over.reason in ("done", "stopped")):
            return None
        texts = [text for rank in failed[:8] for text in (rank.error, rank.traceback, rank.tail)]
        texts += [*([over.detail] if over else []), self._launcher.decode("utf-8", "replace")]
        known = diagnose(self._known(), texts, failed[0].signal if failed else 0)
        if known is None:
            return None
        run = self._run.run if self._run else over.run if over else ""
        texts = [text.fill(run=run) if isinstance(text, Hint) else text for text in (known.fix, known.command)]
        fix, command = (complete_hint(text, self.place) for text in texts)
        return replace(known, fix=fix, command=command)

    def _list_causes(self, run: RunOutcome, lost: LostOutput | None) -> list[Exit]:
        states = {rank.state for rank in run.ranks}
        excused = bool(self._run and self._run.run == self._excused)
        reason = self._over.reason if self._over and not excused else ""
        # Not its own end is not done, whoever stopped it. (Our own signal's code wins; `stop` says no `RunStarted`.)
        own = self._run or self._verb == "run"
        cut_short = own and (reason == "stopped" or (reason == "done" and "stopped" in states))
        # Out of reach: their guards end their part by themselves. Who has stopped a run wants to know.
        unchecked = Exit.RESIDUE if self._exit in (Exit.HUP, Exit.INT, Exit.TERM) else Exit.LOST
        conditions = (
            (Exit.LOST, not self._finished),
            (Exit.STEP, any(finding.level == "error" for finding in self._findings)),
            (Exit.STEP, any(outcome == "failed" for steps in self._hosts.values() for _, outcome, _ in steps)),
            (Exit.RANK, "failed" in states and not excused),
            (_REASONS.get(reason, Exit.OK), True),
            (Exit.LOST, reason and states & {"lost", "running"}),
            (Exit.LOST, cut_short),
            (Exit.RESIDUE, run.orphans),
            (unchecked, run.unchecked),
            (Exit.RECORD, lost),
        )
        failures = [failure.kind.exit for failure in self._failures]
        return [self._exit, *failures, *(exit for exit, holds in conditions if holds)]

    def _judge_host(self, host: str) -> HostOutcome:
        steps = self._hosts[host]
        failures = tuple(failure for failure in self._failures if failure.host == host)
        unreachable = sum(failure.kind is Kind.UNREACHABLE for failure in failures)
        failed = sum(outcome == "failed" for _, outcome, _ in steps)
        # A failure with a failed step of its own is one failure, not two.
        others = sum(failure.kind is not Kind.UNREACHABLE for failure in failures)
        return HostOutcome(
            host,
            ok=sum(outcome in ("ok", "changed") for _, outcome, _ in steps),
            changed=sum(outcome == "changed" for _, outcome, _ in steps),
            unreachable=unreachable,
            failed=max(failed - unreachable, others),
            skipped=sum(outcome == "skipped" for _, outcome, _ in steps),
            steps=tuple(HostStep(*step) for step in steps),
            failures=failures,
        )

    def _judge_rank(self, rank: int, host: str, shifts: Mapping[str, float]) -> RankOutcome:
        out, err = self._bytes.get((rank, "out"), 0), self._bytes.get((rank, "err"), 0)
        stage = self._stages.get(rank, "")
        running = RankOutcome(rank, host, "running", stage, out_bytes=out, err_bytes=err)
        if rank not in self._ends:
            return running
        seen, end = self._ends[rank]
        state: RankState = "ok" if end.status == 0 and not end.signal else "failed"
        if end.cause:
            state = "stopped" if end.cause == "stopped" else "lost"
        return replace(
            running,
            **select_attributes(end, "status", "signal", "error", "traceback", "kernel", "oom", "libraries", "where"),
            host=end.host or host,
            state=state,
            at=end.at + shifts.get(end.host, 0.0) if end.at else seen,
            tail=self._read_tail(rank, end, 1 if state == "ok" else _TAIL_LINES),
        )

    def _read_tail(self, rank: int, end: e.RankEnded, most: int) -> str:
        """The rank's last lines, both streams as they were seen; of a bar that redraws itself, its last state."""
        output = end.tail or self._tails.get(rank, b"")
        lines = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in output.split(b"\n")]
        return b"\n".join([line for line in lines if line.strip()][-most:]).decode("utf-8", "replace")

    def _record_delay(self, host: str, seen: float, at: float) -> None:
        if at:
            self._delays[host] = min(self._delays.get(host, seen - at), seen - at)

    def _estimate_clock_shifts(self) -> dict[str, float]:
        """Host → seconds to add to its own time to get the controller's.

        The least delay of a host's messages is its clock's difference plus the shortest way. Hosts whose least delays
        agree within `_SAME_CLOCK` share one shift: their own clocks order close events better than delays do."""
        if self._run and self._run.title:
            # Messages that waited for us tell nothing of clocks, but that none is from the future.
            return dict.fromkeys([*self._delays, self._run.head], min([0.0, *self._delays.values()]))
        if not self._delays:
            return {}
        from statistics import median  # with all that it imports, not before the end of a command

        middle = median(self._delays.values())
        return {host: middle if abs(delay - middle) < _SAME_CLOCK else delay for host, delay in self._delays.items()}


_NEVER_EXCUSED = (Kind.UNREACHABLE, Kind.RESIDUE, Kind.RECORD)
_REASONS: Mapping[str, Exit] = {"rank": Exit.RANK, "lost": Exit.LOST, "limit": Exit.LOST, "launch": Exit.STEP}
