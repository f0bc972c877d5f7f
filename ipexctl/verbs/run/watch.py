"""Watching a run to its proved end: as the one who started it, or as one who came later."""

import signal
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ipexctl.act import run_control
from ipexctl.act.context import Context, Emit, run_on_hosts
from ipexctl.act.run_control import BACK, GAVE_UP, LAST, LOST, REMOVED, SILENT, OutputFrame, RunFollower
from ipexctl.act.run_dir import RemoteRunDir
from ipexctl.decide.run.journal_events import JournalReader, make_run_started
from ipexctl.model import events as e
from ipexctl.model.answers.run import RunAnswer
from ipexctl.model.errors import Exit, Failure, Interrupted, IpexctlError, Kind, UnwatchedRunError, UsageError, advise
from ipexctl.model.hosts import Link, LinkError
from ipexctl.model.launch import Running
from ipexctl.model.profile import Profile
from ipexctl.model.text import format_time, join_names, printable
from ipexctl.protocol import frames
from ipexctl.protocol.journal import PACE
from ipexctl.protocol.messages import Inspect, KillRun, RequestStacks, StopRun, Vote
from ipexctl.protocol.timings import Timings
from ipexctl.store.record import read_report
from ipexctl.verbs.common.nested import run_nested
from ipexctl.verbs.run.replay import find_saved_run

_SWEEP_TRIES = 3  # tries to look for what is left on a host of a run that ended well
_RESAMPLE_INTERVAL = 60.0  # seconds until the ranks of a slow run are asked again where they stand; then twice as many
_READY_PATIENCE = 10.0  # seconds until processes that are not ready are named; then twice as many
_STACK_LIMIT = 512  # stacks that are asked for in all, within the next
_MIN_SAMPLES, _MAX_SAMPLES = 4, 12
_SUCCESSOR_POLL = 5.0  # seconds between two looks for a host that has taken the place of a head that does not answer
_REPEAT_WINDOW = 3.0  # seconds in which one Ctrl-C more is not another wish
_KILL_PATIENCE = 30.0  # seconds after a kill from which a Ctrl-C leaves a run that does not end


def describe_signal(number: int) -> str:
    """Returns what the user did."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


@contextmanager
def wrap_internal_errors(run: str) -> Iterator[None]:
    """A fault of ours that ends the watching of a run is reported with the run: it goes on without a watcher."""
    try:
        yield
    except IpexctlError:
        raise
    except Exception as error:
        raise UnwatchedRunError(run) from error


class _HeadLostError(Exception):
    """The head has not answered for long; its text says why."""


class RunRemovedError(UsageError, _HeadLostError):
    """The files of a run are gone from the head: another command has watched it to its end."""

    def __init__(self, run: str, *, saved: bool) -> None:
        what = f"run {run} is over: another command watched it to its end and removed its files from the hosts"
        others = advise("runs", text="runs that were watched from this machine are saved here:")
        hint = advise("replay", run, text="it is saved here:") if saved else others
        super().__init__(what, hint=hint, exit=Exit.STEP, code="no-run")
        self.saved = saved


def make_removed_error(run: str, runs: Path) -> RunRemovedError:
    """Returns the error for a run whose files are gone from its head, and which may be saved on this machine."""
    report = None
    with suppress(UsageError):
        report = read_report(find_saved_run(runs, run))
    return RunRemovedError(run, saved=bool(report and report.run and report.run.reason))


def _count_patience(timings: Timings) -> float:
    """Returns the seconds in which another host leads a run whose keeper has ended, if one will."""
    return 2 * timings.node_lease + timings.grace + timings.kill + timings.fence + timings.gather + timings.reply


@dataclass
class RunWatcher:
    """A watcher of one run.

    ``run_dirs`` are the run's directories on the hosts that can be reached, the head's among them; ``detach`` leaves
    the run as soon as mpirun was started, or with ``ready`` once all ranks are. Afterwards ``run_ended`` and
    ``interrupted`` say how it ended."""

    context: Context
    running: Running
    nonce: str
    run_dirs: Mapping[str, RemoteRunDir]
    detach: bool = False
    stop_on_nan: bool = False
    ready: str = ""  # the sign
    votes: bool = False  # for one host, whose half of a split run goes on
    elected: str = ""  # that host: no other one gets a vote, for nobody knows what has become of the first one
    run_ended: e.RunEnded | None = None
    interrupted: Interrupted | None = None
    lost_hosts: set[str] = field(default_factory=set)  # as the keeper reports them
    disconnected: bool = False  # no connection to the head
    lost_at: float = 0.0  # Unix seconds: when that was noticed last
    died: bool = False  # the run's keeper ended without a record of the run's end
    ending: bool = False  # it is watched in order to end it
    pending_order: StopRun | KillRun | None = None  # not delivered yet
    retry_at: float = 0.0  # monotonic: when to deliver it again
    released_at: float = 0.0  # monotonic: when lines without an end were shown
    killed_at: float = 0.0  # monotonic: when the user wanted that first
    refusals: int = 0  # of what is left of the output of a run that has ended, by Ctrl-C
    refused_at: float = -_REPEAT_WINDOW  # monotonic: when that was last
    stopped_on_nan: bool = False  # because of its loss
    sampled_at: float = 0.0  # monotonic: when the ranks of a slow run may be asked where they stand
    pause: float = _RESAMPLE_INTERVAL  # and how long it is then until they may be asked again
    timings: Timings = Timings()  # noqa: RUF009
    profile: str = ""  # the steps that are profiled, "3:7"
    profiled: Profile | None = None  # what came of it
    traces: str | None = None  # directory of the ranks' traces
    follower: RunFollower | None = None  # begun ahead of what reads its frames
    started: float = 0.0  # Unix seconds: when the run was, where another command did that
    awaited: float = 0.0  # monotonic: since when a run to detach from is to get ready
    patience: float = _READY_PATIENCE  # seconds until that is reported

    @property
    def head(self) -> RemoteRunDir:
        return self.run_dirs[self.running.head]

    @property
    def exit(self) -> Exit:
        """The code of the signal that ended the watching, if one did, or of a loss that is no number, where that was to
        end the run; everything else is judged from the events."""
        if self.interrupted:
            return self.interrupted.exit
        return Exit.LOST if self.stop_on_nan and self.context.interrupts.lost_loss else Exit.OK

    def begin(self) -> None:
        """Begins to read the run's files, ahead of `follow`: a session on the head and a program there take as long as
        the start of the keeper."""
        self.follower = RunFollower(self.context, self.head, timings=self.timings)

    def close(self) -> None:
        """Ends what was begun and not followed."""
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.close()

    def follow(self) -> e.Workflow[bool]:
        """Follows the run to its end, from host to host where others take the head's place; True when it goes on
        without us (detached, terminal closed, connection lost)."""
        with wrap_internal_errors(self.running.run), self.context.interrupts.defer_signals():
            followed, lost = True, None
            while followed:
                lost = None
                try:
                    detached = yield from self._follow_head()
                except _HeadLostError as error:
                    detached, lost = True, error
                ended = self.run_ended
                if detached and not lost:
                    return True
                if ended is not None and (ended.reason != "lost" or not self.successors):
                    return False
                if lost or ended:
                    removed = isinstance(lost, RunRemovedError)
                    patience = _count_patience(self.timings) if self.died or removed else 0.0
                    followed = yield from self._follow_successor(patience, removed=removed)
            if self._is_leaving:
                return True
            if ended is not None:
                yield ended
                return False
            if isinstance(lost, RunRemovedError):
                if lost.saved or not (self.lost_at or (yield from self._look_for_processes())):
                    raise lost
                yield self._end_unobserved()
                return False
            run = self.running.run
            since = f" since {format_time(self.lost_at, '%H:%M:%S')}" if self.lost_at else ""
            what = f"no answer{since} ({lost}); run {run} may still be running"
            hint = advise("attach", run, text="this looks again, and shows what the run did meanwhile:")
            yield e.HostFailed(Failure(self.head.host.name, Kind.LOST, what, hint, "watch"))
            return True

    def _look_for_processes(self) -> e.Workflow[bool]:
        """Returns whether processes of a run whose files are gone from its head are running on hosts that answer: then
        it was not watched to its end."""
        hosts, run = [each.host for each in self.run_dirs.values()], self.running.run

        def look(link: Link, _: Emit) -> tuple[int, ...]:
            return run_control.find_leftover_processes(link, self.run_dirs[link.host.name], run)

        looking = run_on_hosts(self.context, hosts, "look for processes", look)
        running, _ = yield from run_nested(looking, lambda event: not isinstance(event, e.HostFailed))
        return any(running.values())

    def _end_unobserved(self) -> e.RunEnded:
        """Ends a run whose files went from the head without its end."""
        head = self.head.host.name
        why = f"its files on {head} were removed while it went on"
        if self.lost_at:
            since = format_time(self.lost_at, "%H:%M:%S")
            gone = f"{head} has none of its files since the connection was lost at {since}"
            why = f"{gone}: the host started again with an empty disk, or another command watched the run to its end"
        self.run_ended = e.RunEnded(self.running.run, "lost", why)
        return self.run_ended

    @property
    def successors(self) -> tuple[str, ...]:
        """Hosts that may take the head's place, in their order, of those that can be reached."""
        order = self.running.leaders
        later = order[order.index(self.running.head) + 1 :] if self.running.head in order else ()
        return tuple(host for host in later if host in self.run_dirs)

    def _follow_successor(self, patience: float, *, removed: bool = False) -> e.Workflow[bool]:
        """Goes on with the host that leads the run in the head's place; False where there is none for so long, or where
        the run's files were ``removed`` from the head and no other host has any: a host that starts with an empty disk
        has lost them, and the others go on without it."""
        until = time.monotonic() + patience
        while True:
            host = next((host for host in self.successors if self._leads(host)), None)
            if host is not None:
                yield e.Message(f"leads the run in place of {self.running.head}", host=host, code="leads")
                self.running, self.run_ended = replace(self.running, head=host), None
                self.disconnected, self.retry_at = False, 0.0
                return True
            for successor in self.successors:
                yield from self._vote(self.run_dirs[successor])
            yield from self._handle_signal()
            if time.monotonic() >= until or isinstance(self.pending_order, KillRun) or self._is_leaving:
                return False
            if removed and not any(self._has_part(host) for host in self.successors):
                return False
            time.sleep(1.0)

    def _vote(self, run_dir: RemoteRunDir) -> e.Workflow[None]:
        """Lets a host go on with half of the hosts, where it has a keeper."""
        host = run_dir.host.name
        may = self.votes and self.elected in ("", host) and self.pending_order is None
        if not may or not self.send_order(Inspect(), run_dir):
            return
        if not self.elected:
            yield e.Message(
                "gets the vote of this command: it may go on with half of the hosts", host=host, code="vote"
            )
        self.elected = host
        self.send_order(Vote(), run_dir)

    def _leads(self, host: str) -> bool:
        """Returns whether this host can be reached, and leads the run."""
        return self._read_description_failure(host) is None

    def _has_part(self, host: str) -> bool:
        """Returns whether this host can be reached, and has files of the run."""
        failure = self._read_description_failure(host)
        return failure is None or (failure.kind is Kind.STEP and failure.code != REMOVED)

    def _read_description_failure(self, host: str) -> Failure | None:
        run_dir = self.run_dirs[host]
        try:
            run_control.read_run_description(self.context.links.open(run_dir.host), run_dir.directory)
        except LinkError as error:
            return error.failure
        return None

    @property
    def _is_leaving(self) -> bool:
        """The terminal was closed, the user detaches, or leaves the rest of the output where it is."""
        hung_up = self.interrupted is not None and self.interrupted.number == signal.SIGHUP
        return hung_up or self.refusals > 1 or self.context.interrupts.detach.is_set()

    def _follow_head(self) -> e.Workflow[bool]:
        """The same on one host, up to where another takes its place. Raises `_HeadLostError` if it is silent."""
        asked = time.monotonic()
        journal = JournalReader(self.nonce, self.running)
        with closing(self._read_frames()) as received:
            for frame in received:
                if frame is not None and frame.kind == GAVE_UP:
                    raise _HeadLostError(frame.data.decode())
                yield from self._read_frame(frame, journal)
                if self.run_ended is not None:
                    return False
                killed, before = self.killed_at, self.interrupted
                yield from self._handle_signal() if journal.over is None else self._handle_late_signal()
                since = time.monotonic() - killed
                if killed and self.interrupted is not before and since >= _KILL_PATIENCE:
                    raise _HeadLostError(f"the run goes on {since:.0f} s after it was to be killed")
                yield from self._send_pending_order()
                if journal.too_few and not self.disconnected and time.monotonic() >= asked + _SUCCESSOR_POLL:
                    asked = time.monotonic()
                    yield from self._vote(self.head)
                if self.disconnected and self.successors and time.monotonic() >= asked + _SUCCESSOR_POLL:
                    asked = time.monotonic()
                    if (yield from self._follow_successor(0.0)):
                        return False
                self._sample_slow_run()
                yield from self.report_unready(journal)
                up = journal.launched and (not self.ready or len(journal.ready) == len(self.running.hosts))
                if self._is_leaving or (self.detach and (up or journal.waiting)):
                    if journal.over:  # else the run would be left as one that goes on
                        yield journal.over
                    return True
        return False

    def report_unready(self, journal: JournalReader) -> e.Workflow[None]:
        """Tells which ranks keep a run to detach from on the screen, each time after twice as long."""
        if not (self.detach and self.ready and journal.launched) or journal.over is not None:
            return
        self.awaited = self.awaited or time.monotonic()
        if time.monotonic() < self.awaited + self.patience:
            return
        self.patience *= 2
        hosts = self.running.hosts
        others = [f"rank {rank} on {host}" for rank, host in enumerate(hosts) if rank not in journal.ready]
        have = "has" if len(others) == 1 else "have"
        text = f"{len(journal.ready)} of {len(hosts)} ready: {join_names(others, 4)} {have} not given the sign"
        yield e.Message(f"{text} {printable(self.ready, 100)!r} (waiting; Ctrl-C ends the run)", code="unready")

    def _read_frames(self, *, once: bool = False, samples: bool = True) -> Generator[OutputFrame | None, None, None]:
        """The frames of the run's files, up to the last; None where there was none for a moment."""
        begun, self.follower = self.follower, None
        begun = begun or RunFollower(self.context, self.head, once=once, samples=samples, timings=self.timings)
        with closing(begun) as follower:
            frame = None
            while frame is None or frame.kind not in LAST:
                frame = follower.read_frame(0.2)
                yield frame

    def _handle_signal(self) -> e.Workflow[None]:
        """The first Ctrl-C asks the keeper to stop the run, the second to kill it."""
        order = "stop" if self.interrupted is None else "kill"
        signals = self.context.interrupts
        taken = signals.pop_pending()
        if self.stop_on_nan and signals.lost_loss and not self.stopped_on_nan:
            self.stopped_on_nan, self.pending_order, self.retry_at = True, StopRun(signals.lost_loss), 0.0
        if taken is None:
            return
        self.interrupted = taken
        if taken.number != signal.SIGHUP:
            yield e.Message("killing" if order == "kill" else "stopping (again to kill)", "warning", code=order)
            name = describe_signal(taken.number)
            self.pending_order, self.retry_at = StopRun(name) if order == "stop" else KillRun(name), 0.0
            self.killed_at = self.killed_at or time.monotonic() * (order == "kill")
            if self.disconnected:
                text = f"connection lost; the {order} request will be sent when it is back"
                yield e.Message(text, "warning", self.head.host.name, "disconnected")

    def _handle_late_signal(self) -> e.Workflow[None]:
        """A run that has ended cannot be stopped: the second Ctrl-C leaves its remaining output on the head."""
        now, taken = time.monotonic(), self.context.interrupts.pop_pending()
        if taken and (taken.number == signal.SIGHUP or now >= self.refused_at + _REPEAT_WINDOW):
            self.refusals, self.refused_at = self.refusals + 1, now
            self.interrupted = taken if self.refusals > 1 or taken.number == signal.SIGHUP else self.interrupted
            text = "the run has ended; the rest of its output is on the head"
            read = advise("attach", self.running.run, text=f"{text}; this reads it:")
            yield e.Message(read if self.refusals > 1 else f"{text} (again to leave it there)", "warning", code="left")

    def _send_pending_order(self) -> e.Workflow[None]:
        """Sends an order that was not delivered again: when the connection is back, and every few seconds."""
        if self.pending_order is None or self.disconnected or time.monotonic() < self.retry_at:
            return
        if self.send_order(self.pending_order):
            self.pending_order = None
        elif not self.retry_at:  # it may just be ending
            self.retry_at = time.monotonic() + 1.0
        else:
            text = "the run's keeper does not answer; trying again"
            yield e.Message(text, "warning", self.head.host.name, "keeper-silent")
            self.retry_at = time.monotonic() + 5.0

    def _sample_slow_run(self) -> None:
        """Asks where the ranks of a run that has become slow stand, some times in a row."""
        now = time.monotonic()
        if self.context.interrupts.slow and now >= self.sampled_at and not self.disconnected:
            self.sampled_at, self.pause = now + self.pause, 2 * self.pause
            times = max(_MIN_SAMPLES, min(_MAX_SAMPLES, _STACK_LIMIT // max(len(self.running.hosts), 1)))
            self.send_order(RequestStacks(PACE, times))

    def _read_frame(self, frame: OutputFrame | None, journal: JournalReader) -> e.Workflow[None]:
        head = self.head.host.name
        if time.monotonic() >= self.released_at + 1.0:
            self.released_at = time.monotonic()
            yield from journal.release_lines()
        if frame is None:
            return
        if frame.kind == LOST:
            self.disconnected, self.lost_at = True, time.time()
            goes_on = "" if self.ending else ", the run may go on"  # unless the head's own network is away
            text = f"connection lost ({frame.data.decode()}){goes_on}; reconnecting"
            yield e.Message(text, "warning", head, "disconnected")
        elif frame.kind == SILENT:
            yield e.HostSilent(self.running.head, float(frame.data))
        elif frame.kind == BACK:
            self.disconnected, self.retry_at = False, 0.0
            yield e.HostSilent(self.running.head, 0.0)
            yield e.Message("reconnected", host=head, code="reconnected")
        elif frame.kind == frames.CLOCK:
            journal.shift = time.time() - float(frame.data[:16]) / 1000 if frame.data.isdigit() else 0.0
        elif frame.kind in (frames.END, REMOVED):
            yield from journal.end()
            if frame.kind == REMOVED and journal.over is None:
                raise make_removed_error(self.running.run, self.context.state / "runs")
            why = printable(frame.data.partition(b" ")[2].decode("utf-8", "replace"), 400)
            died = ": ".join([f"the run's keeper on {head} died", *filter(None, [why])])
            self.run_ended = journal.over or e.RunEnded(self.running.run, "lost", died)
            self.died = journal.over is None
            if self.run_ended.reason != "lost" or not self.successors:
                yield self.run_ended
        else:
            for event in journal.read(frame.kind, frame.data):
                if isinstance(event, e.HostFailed) and event.failure.kind is Kind.LOST:
                    self.lost_hosts.add(event.failure.host)
                yield event

    def send_order(self, order: run_control.Order, run_dir: RemoteRunDir | None = None) -> bool:
        """Sends an order to the keeper on the head, or another host; False if it has ended or does not answer."""
        run_dir = run_dir or self.head
        try:
            return run_control.send_order(self.context.links.open(run_dir.host), run_dir, order)
        except LinkError:
            return False

    def wait_for_end(self) -> None:
        """Waits up to 20 seconds without showing anything: for a run that could not be started everywhere."""
        deadline = time.monotonic() + 20.0
        with closing(self._read_frames()) as received:
            for _ in received:
                if time.monotonic() >= deadline:
                    break

    def read_files(self, *, follow: bool, samples: bool = True) -> e.Workflow[None]:
        """The contents of the run's files as events, with or without those of samples; ``follow`` goes on to the run's
        end. Sends no orders."""
        journal = JournalReader(self.nonce, self.running)
        with closing(self._read_frames(once=not follow, samples=samples)) as received:
            for frame in received:
                if frame is None or frame.kind not in {frames.END, GAVE_UP}:
                    yield from self._read_frame(frame, journal)
            yield from journal.end()
        self.run_ended = journal.over

    def read_earlier(self) -> e.Workflow[None]:
        """What ranks wrote on hosts that led the run before, if these can be reached; of the first host at least that
        it started them. How such a host then lost the others is not of interest."""
        running, order = self.running, self.running.leaders
        for host in order[: order.index(running.head)] if running.head in order else ():
            self.running = replace(running, head=host)
            if host in self.run_dirs and self._leads(host):
                yield from (each for each in self.read_files(follow=False) if isinstance(each, e.RunStarted | e.Output))
            elif host == order[0]:
                yield make_run_started(self.running, self.started)
        self.running, self.run_ended = running, None

    def report_end(self, verb: str, detached: bool) -> e.Workflow[None]:
        """The answer and the end of a command that watched the run."""
        reason = self.run_ended.reason if self.run_ended else None
        answer = RunAnswer(self.running.run, reason, detached, self.profiled, self.traces)
        yield from e.finish_verb(verb, answer, self.exit)

    def prove_ended(self, *, keep: bool = False) -> e.Workflow[None]:
        """Ends what is left of the run on every host and removes its directories; with ``keep`` the head's stays, which
        holds the ranks' output. A signal after some seconds ends the search: hosts not searched yet are reported as
        unknown."""
        keeping = self.head.host.name if keep else ""
        run_dirs = {run_dir.host.name: run_dir for run_dir in self.run_dirs.values()}
        survivors: dict[str, tuple[int, ...]] = {}  # by host; of every host that was searched

        def sweep(link: Link, _: Emit) -> None:
            name = link.host.name
            patience = 10.0 if name in self.lost_hosts else 30.0  # it has been waited for once
            run, remove = self.running.run, name != keeping
            survivors[name] = run_control.end_run_on_host(link, run_dirs[name], run, patience, remove=remove).left

        def sweep_hosts() -> e.Workflow[None]:
            """A run that ended well is not called lost because a network that loses packets cut one connection."""
            for turn in range(_SWEEP_TRIES if self.run_ended and self.run_ended.reason == "done" else 1):
                away = self.lost_hosts if turn else ()  # the keeper says so, too
                left = [each.host for name, each in run_dirs.items() if name not in survivors and name not in away]
                yield from run_on_hosts(self.context, left, "sweep", sweep)

        sweeping = sweep_hosts()
        taken = self.context.interrupts.pop_pending()
        while self.context.interrupts.pop_pending():
            pass  # of the same storm
        self.interrupted = self.interrupted or taken
        try:  # `CleanupChecked` names the hosts that do not answer
            with self.context.interrupts.ignore_signals(_REPEAT_WINDOW):
                yield from run_nested(sweeping, lambda event: not isinstance(event, e.HostFailed))
        except Interrupted as interrupted:
            self.interrupted = interrupted
        left = {name: pids for name, pids in survivors.items() if pids}
        hosts = tuple(dict.fromkeys((*self.running.hosts_used, *self.running.labels.values())))
        yield e.CleanupChecked(self.running.run, hosts, left, tuple(host for host in hosts if host not in survivors))
