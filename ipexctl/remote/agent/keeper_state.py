"""How a run goes, as a state machine without clock, files or connections: `next_step` takes what happened and gives the
new state and what the keeper has to do. The keeper feeds it (`keeper.Keeper`), tests feed it histories."""

import enum
import signal
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Type, TypeVar, Union

from ipexctl.protocol import journal, messages, rank_records
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.journal import Reason, Record
from ipexctl.protocol.messages import Message
from ipexctl.protocol.run_spec import RunSpec


class State(enum.Enum):
    """Where a run is. `TRANSITIONS` says where it may go from there."""

    # From the keeper's start. Guards join; when all have, the launcher is started. Ends at the time for that, too.
    GATHERING = "gathering"
    # All guards have joined: the keeper is starting the launcher, and reports at once whether it could.
    LAUNCHING = "launching"
    # The launcher was started. Ranks start and end; whatever ends the run stops it, or all ranks end by themselves.
    RUNNING = "running"
    # Something ended the run before its ranks: they got SIGTERM and have the grace time. The first reason stays.
    STOPPING = "stopping"
    # The grace time is over, or the user lost patience: SIGKILL.
    KILLING = "killing"
    # Ranks and launcher have ended, or are waited for no longer: the guards end what is left and report it.
    FINISHING = "finishing"
    # The guards have reported, or their time is over. The final record is written; nothing happens any more.
    DONE = "done"


TRANSITIONS: "Dict[State, FrozenSet[State]]" = {
    State.GATHERING: frozenset({State.LAUNCHING, State.STOPPING}),
    State.LAUNCHING: frozenset({State.RUNNING, State.STOPPING}),
    State.RUNNING: frozenset({State.STOPPING, State.FINISHING}),
    State.STOPPING: frozenset({State.KILLING, State.FINISHING}),
    State.KILLING: frozenset({State.FINISHING}),
    State.FINISHING: frozenset({State.DONE}),
    State.DONE: frozenset(),
}
BEFORE_THE_END = (State.GATHERING, State.LAUNCHING, State.RUNNING)


# ``steady`` is the monotonic clock, by which times are kept; ``clock`` Unix seconds, for records.
Moment = NamedTuple("Moment", [("steady", float), ("clock", float)])

# What can happen. Also the messages of guards (`FromGuard`) and of the user (`StopRun`, `KillRun`), and what the
# progress monitor finds (`Stall`, `Straggling`, `Resumed`).
GuardConnected = NamedTuple("GuardConnected", [("host", str), ("clock", float)])  # its host's clock, Unix seconds


class GuardLost(NamedTuple):
    """``tampered``: a line that one side had not written arrived at the other."""

    host: str
    why: str
    tampered: bool = False


FromGuard = NamedTuple("FromGuard", [("host", str), ("message", Union[Message, Unreadable])])
LauncherStarted = NamedTuple("LauncherStarted", [("pid", int), ("port", int)])
LauncherFailed = NamedTuple("LauncherFailed", [("why", str)])
LauncherEnded = NamedTuple("LauncherEnded", [("status", int)])
Tick = NamedTuple("Tick", [("watched", bool)])  # time has passed; whether somebody watches the run
Input = Union[
    GuardConnected, GuardLost, FromGuard, LauncherStarted, LauncherFailed, LauncherEnded, Tick, messages.StopRun,
    messages.KillRun, messages.RequestStacks, journal.Stall, journal.Straggling, journal.Resumed,
]  # fmt: skip


# What the keeper has to do.
Send = NamedTuple("Send", [("host", str), ("message", Message)])  # to the guard of a host; to all guards for ""
Note = NamedTuple("Note", [("record", Record)])  # write it to the journal
StartLauncher = NamedTuple("StartLauncher", [])  # and report it (`LauncherStarted`, `LauncherFailed`)
Disconnect = NamedTuple("Disconnect", [("host", str)])  # close the connection to the guard of the host
ReleaseShims = NamedTuple("ReleaseShims", [("host", str)])  # the launcher's proxy there has ended: so do its shims
# End the launcher, store the rest of its output and write this as the final record.
Close = NamedTuple("Close", [("end", journal.RunEnd)])
Action = Union[Send, Note, StartLauncher, Disconnect, ReleaseShims, Close]
Actions = Tuple[Action, ...]


# Parts of the launcher end: perhaps because of a rank whose own end is still to be reported. Until ``until`` (steady)
# that would explain it; then the run is stopped for ``reason``. ``since`` is in the head's clock.
Doubt = NamedTuple("Doubt", [("reason", str), ("detail", str), ("since", float), ("until", float)])


class Inquiry(NamedTuple):
    """Guards were asked for the stacks of their ranks: ``hosts`` have still to report, until ``until`` (steady).
    ``requested``: by the user, while nothing was wrong."""

    hosts: "FrozenSet[str]"
    until: float
    requested: bool = False


class HostClock(NamedTuple):
    """A host's clock minus ours, and how far that may be off: the round trip it was measured by. In seconds."""

    offset: float
    within: "Optional[float]" = None


class Run(NamedTuple):
    """All that the keeper knows of a run. Times are steady."""

    spec: "RunSpec"
    since: float  # the keeper's start, then the launcher's
    deadline: float  # of the state
    watched: float  # when somebody last watched
    state: "State" = State.GATHERING
    guards: "FrozenSet[str]" = frozenset()  # hosts with a connected guard
    lost: "FrozenSet[str]" = frozenset()
    clocks: "Dict[str, HostClock]" = {}
    cleaned: "Dict[str, List[Tuple[int, str]]]" = {}  # host → processes left there
    started: "FrozenSet[int]" = frozenset()
    ended: "Dict[int, float]" = {}  # rank → when its end was reported
    launched: bool = False
    launcher_ended: "Optional[float]" = None
    launcher_status: "Optional[int]" = None
    reason: str = ""
    detail: str = ""
    stopped_at: "Optional[float]" = None  # the head's clock at the polite stop
    doubt: "Optional[Doubt]" = None
    # Ends of ranks whose wrappers were killed, by whom is in doubt.
    unwitnessed: "Tuple[rank_records.RankEnded, ...]" = ()
    inquiry: "Optional[Inquiry]" = None
    requests: "Tuple[str, ...]" = ()  # for stacks, that wait for the end of another inquiry
    verdict: str = ""  # why the run is to be stopped once the inquiry is over


Step = Tuple[Run, Actions]


def create_run(spec: "RunSpec", now: "Moment") -> "Run":
    """The run at the keeper's start."""
    return Run(spec, now.steady, now.steady + spec.timings.ready_timeout, now.steady)


def is_steady(run: "Run", now: "Moment") -> bool:
    """All ranks have been running for a moment, and no end is awaited: who looks after them may do so rarely."""
    running = run.state is State.RUNNING and len(run.started) == run.spec.size and not run.ended
    awaited = run.doubt or run.inquiry or run.launcher_ended is not None
    return running and not awaited and now.steady > run.since + run.spec.timings.early


def next_step(run: "Run", what: "Input", now: "Moment") -> "Step":
    """The state after ``what`` happened, and what is to be done. What the state has no use for changes nothing."""
    if run.state is State.DONE:
        return run, ()
    run, actions = _HANDLERS[type(what)](run, what, now)
    if run.state not in _DUE:
        return run, actions
    run, more = _DUE[run.state](run, now)
    return run, actions + more


# Steps from state to state.


def _enter_state(run: "Run", state: "State", deadline: float = 0.0) -> "Run":
    assert state in TRANSITIONS[run.state], "%s → %s" % (run.state, state)
    return run._replace(state=state, deadline=deadline)


def _was_launcher_killed(run: "Run") -> bool:
    """Then it has taken its ranks' wrappers along. SIGPIPE is a dead proxy's doing."""
    status = run.launcher_status or 0
    return status < 0 and status != -signal.SIGPIPE


def _stop_run(run: "Run", reason: str, detail: str, now: "Moment") -> "Step":
    """The polite stop; the first reason stays."""
    if run.state not in BEFORE_THE_END:
        return run, ()
    by_us = reason != Reason.LOST or _was_launcher_killed(run)
    notes = tuple(Note(end._replace(by_us=by_us)) for end in run.unwitnessed)
    run = run._replace(reason=reason, detail=detail, unwitnessed=(), stopped_at=now.clock)
    stopped = _enter_state(run, State.STOPPING, now.steady + run.spec.timings.grace)
    return stopped, (*notes, Note(journal.Stopping(reason, detail)), Send("", messages.Terminate()))


def _kill_run(run: "Run", now: "Moment") -> "Step":
    killed = _enter_state(run, State.KILLING, now.steady + run.spec.timings.kill)
    return killed, (Note(journal.Killing()), Send("", messages.Kill()))


def _finish_run(run: "Run", now: "Moment") -> "Step":
    run = run._replace(reason=run.reason or Reason.DONE)
    return _enter_state(run, State.FINISHING, now.steady + run.spec.timings.clean), (Send("", messages.Finish()),)


def _close_run(run: "Run") -> "Step":
    left = {host: processes for host, processes in run.cleaned.items() if processes}
    unknown = sorted(set(run.spec.head_spec.hosts) - set(run.cleaned))
    end = journal.RunEnd(run.spec.run, run.reason, run.detail, run.launcher_status, left, unknown, sorted(run.lost))
    return _enter_state(run, State.DONE), (Close(end),)


# What is due in a state, whatever happened.


def _check_gathering(run: "Run", now: "Moment") -> "Step":
    missing = sorted(set(run.spec.head_spec.hosts) - run.guards)
    if not missing:
        return _enter_state(run, State.LAUNCHING), (StartLauncher(),)
    if now.steady > run.deadline:
        return _stop_run(run, Reason.LAUNCH, "no guard on %s" % ", ".join(missing), now)
    return run, ()


def _check_running(run: "Run", now: "Moment") -> "Step":
    timings, steady, size = run.spec.timings, now.steady, run.spec.size
    doubt, launcher_ended = run.doubt, run.launcher_ended
    if len(run.ended) == size:
        if doubt:  # all of them ended by the launcher, none by itself; its own end, which may say why, is waited for
            patient = launcher_ended is None and steady <= doubt.until
            return (run, ()) if patient else _stop_run(run, doubt.reason, doubt.detail, now)
        patient = launcher_ended is None and steady <= max(run.ended.values()) + timings.launcher
        return (run, ()) if patient else _finish_run(run, now)
    if launcher_ended is not None and steady > launcher_ended + timings.launcher:
        reason = Reason.LOST if run.started else Reason.LAUNCH
        return _stop_run(run, reason, "mpirun ended with status %s before its ranks" % run.launcher_status, now)
    if len(run.started) < size and steady > run.since + timings.start_timeout:
        first = min(set(range(size)) - run.started)
        detail = "rank %d did not start within %.0f s" % (first, timings.start_timeout)
        return _stop_run(run, Reason.LAUNCH, detail, now)
    if doubt and steady > doubt.until:
        return _stop_run(run, doubt.reason, doubt.detail, now)
    if timings.time_limit and steady > run.since + timings.time_limit:
        return _stop_run(run, Reason.LIMIT, "time limit of %.0f s" % timings.time_limit, now)
    if timings.lease and steady > run.watched + timings.lease:
        return _stop_run(run, Reason.LIMIT, "watcher lost: nobody watched for %.0f s" % timings.lease, now)
    if run.inquiry and (not run.inquiry.hosts or steady > run.inquiry.until):
        ended = Note(journal.InquiryEnded(sorted(run.inquiry.hosts)))
        run = run._replace(inquiry=None)
        if not run.verdict:
            run, actions = _answer_requests(run, now)
            return run, (ended, *actions)
        run, actions = _stop_run(run, Reason.LIMIT, run.verdict, now)
        return run, (ended, *actions)
    return run, ()


def _check_ending(run: "Run", now: "Moment") -> "Step":
    late = now.steady > run.deadline
    if _is_settled(run, now) or (late and run.state is State.KILLING):
        return _finish_run(run, now)
    return _kill_run(run, now) if late else (run, ())


_DUE: "Dict[State, Callable[[Run, Moment], Step]]" = {
    State.GATHERING: _check_gathering,
    State.RUNNING: _check_running,
    State.STOPPING: _check_ending,
    State.KILLING: _check_ending,
    State.FINISHING: lambda run, now: (
        _close_run(run) if run.guards <= set(run.cleaned) or now.steady > run.deadline else (run, ())
    ),
}


def _is_settled(run: "Run", now: "Moment") -> bool:
    """Nothing is to be waited for: the launcher has ended or never began, or every rank of a living host has ended."""
    if not run.launched or run.launcher_ended is not None:
        return True
    living = [node for host, node in run.spec.head_spec.hosts.items() if host not in run.lost]
    if not {rank for node in living for rank in node.ranks} <= set(run.ended):
        return False
    # mpirun ends by itself soon after its ranks, and then complains of nothing; with a host lost it never does.
    return bool(run.lost) or now.steady > max(run.ended.values()) + run.spec.timings.orderly


# What happened.


def _on_guard_connected(run: "Run", guard: "GuardConnected", now: "Moment") -> "Step":
    if guard.host not in run.spec.head_spec.hosts:
        return run, ()
    clocks = {**run.clocks, guard.host: HostClock(guard.clock - now.clock)}
    run = run._replace(guards=run.guards | {guard.host}, clocks=clocks)
    return run, (Send(guard.host, messages.Ping(now.clock)), Note(journal.GuardJoined(guard.host)))


def _on_guard_lost(run: "Run", guard: "GuardLost", now: "Moment") -> "Step":
    if guard.host not in run.guards or guard.host in run.cleaned:  # a guard that has reported may go
        return run, ()
    run = run._replace(guards=run.guards - {guard.host}, lost=run.lost | {guard.host})
    run, actions = _stop_run(run, Reason.LOST, "%s lost (%s)" % (guard.host, guard.why), now)
    return run, (Disconnect(guard.host), Note(journal.HostLost(guard.host, guard.why, guard.tampered)), *actions)


def _on_guard_message(run: "Run", sent: "FromGuard", now: "Moment") -> "Step":
    message, host = sent.message, sent.host
    node = run.spec.head_spec.hosts.get(host)
    handler: Optional[Callable[[Run, str, Any, Moment], Step]] = _MESSAGES.get(type(message))
    rank = getattr(message, "rank", None)
    if isinstance(message, Unreadable):
        return run, (Note(journal.MessageIgnored(host, message.kind, message.why)),)
    if handler is None or node is None or host not in run.clocks or (rank is not None and rank not in node.ranks):
        return run, (Note(journal.MessageIgnored(host, type(message).__name__, "unexpected")),)
    return handler(run, host, message, now)


def _on_launcher_started(run: "Run", started: "LauncherStarted", now: "Moment") -> "Step":
    if run.state is not State.LAUNCHING:
        return run, ()
    run = _enter_state(run, State.RUNNING)._replace(launched=True, since=now.steady, watched=now.steady)
    return run, (Send("", messages.RanksPort(started.port)), Note(journal.Launched(*started)))


def _on_launcher_ended(run: "Run", ended: "LauncherEnded", now: "Moment") -> "Step":
    if not run.launched:
        return run, ()
    run = run._replace(launcher_ended=now.steady, launcher_status=ended.status)
    if run.state is not State.RUNNING or not _was_launcher_killed(run):
        return run, ()
    known = -ended.status in list(signal.Signals)
    name = signal.Signals(-ended.status).name if known else "signal %d" % -ended.status
    return _stop_run(run, Reason.LOST, "mpirun on %s was killed by %s" % (run.spec.host, name), now)


def _on_kill_order(run: "Run", order: "messages.KillRun", now: "Moment") -> "Step":
    run, stopping = _stop_run(run, Reason.STOPPED, order.why, now)
    if run.state is not State.STOPPING:
        return run, stopping
    run, killing = _kill_run(run, now)
    return run, stopping + killing


def _on_stall(run: "Run", stall: "journal.Stall", now: "Moment") -> "Step":
    kill = run.spec.head_spec.stall_kill and stall.grave
    return _start_inquiry(run, stall._replace(kill=kill), "no progress for %.0f s" % stall.seconds if kill else "", now)


def _on_straggling(run: "Run", few: "journal.Straggling", now: "Moment") -> "Step":
    kill = run.spec.head_spec.straggler_kill
    verdict = "%d rank%s done for %.0f s, others go on" % (few.done, "s"[few.done == 1 :], few.seconds) if kill else ""
    return _start_inquiry(run, few._replace(kill=kill), verdict, now)


def _start_inquiry(run: "Run", alarm: "Record", verdict: str, now: "Moment") -> "Step":
    if run.state is not State.RUNNING:
        return run, ()
    run = run._replace(verdict=run.verdict or verdict)
    if run.inquiry and run.inquiry.requested:  # its stacks are of this moment
        return run, (Note(alarm),)
    inquiry = Inquiry(run.guards, now.steady + run.spec.timings.inquiry)
    return run._replace(inquiry=inquiry), (Note(alarm), Send("", messages.ReportStacks()))


def _on_stacks_request(run: "Run", order: "messages.RequestStacks", now: "Moment") -> "Step":
    if run.state is not State.RUNNING:
        return run, ()
    return _answer_requests(run._replace(requests=(*run.requests, order.request)), now)


def _answer_requests(run: "Run", now: "Moment") -> "Step":
    """Begins the inquiry for all requests that wait; they go on waiting while there is another one."""
    if run.inquiry or not run.requests:
        return run, ()
    notes = tuple(Note(journal.StacksRequested(request)) for request in run.requests)
    inquiry = Inquiry(run.guards, now.steady + run.spec.timings.inquiry, requested=True)
    return run._replace(inquiry=inquiry, requests=()), (*notes, Send("", messages.ReportStacks()))


_HANDLERS: "Dict[Type[Any], Callable[[Run, Any, Moment], Step]]" = {
    GuardConnected: _on_guard_connected,
    GuardLost: _on_guard_lost,
    FromGuard: _on_guard_message,
    LauncherStarted: _on_launcher_started,
    LauncherFailed: lambda run, failed, now: _stop_run(run, Reason.LAUNCH, failed.why, now),
    LauncherEnded: _on_launcher_ended,
    Tick: lambda run, tick, now: (run._replace(watched=now.steady) if tick.watched else run, ()),
    messages.StopRun: lambda run, order, now: _stop_run(run, Reason.STOPPED, order.why, now),
    messages.KillRun: _on_kill_order,
    messages.RequestStacks: _on_stacks_request,
    journal.Stall: _on_stall,
    journal.Straggling: _on_straggling,
    journal.Resumed: lambda run, resumed, now: (run, (Note(resumed),) if run.state is State.RUNNING else ()),
}


# Messages of guards; their loads (`RankLoads`) are for the progress monitor.


def _on_pong(run: "Run", host: str, pong: "messages.Pong", now: "Moment") -> "Step":
    """The clock is measured by the shortest round trip so far; older ones count for less, for clocks drift."""
    known, trip = run.clocks[host], now.clock - pong.sent
    best = trip if known.within is None else min(trip, known.within)
    offset = pong.clock - (pong.sent + now.clock) / 2 if best == trip else known.offset
    return run._replace(clocks={**run.clocks, host: HostClock(offset, 1.1 * best)}), ()


def _on_rank_record(run: "Run", host: str, record: "Any", now: "Moment") -> "Step":
    return run, (Note(_convert_to_head_time(run, host, record)),)


def _on_stacks_reported(run: "Run", host: str, message: "Message", now: "Moment") -> "Step":
    inquiry = run.inquiry and run.inquiry._replace(hosts=run.inquiry.hosts - {host})
    return run._replace(inquiry=inquiry), ()


def _on_rank_started(run: "Run", host: str, started: "rank_records.RankStarted", now: "Moment") -> "Step":
    return run._replace(started=run.started | {started.rank}), (Note(_convert_to_head_time(run, host, started)),)


def _on_rank_ended(run: "Run", host: str, end: "rank_records.RankEnded", now: "Moment") -> "Step":
    end = _convert_to_head_time(run, host, end)
    run = run._replace(ended={**run.ended, end.rank: now.steady}, started=run.started | {end.rank})
    running = run.state is State.RUNNING
    alone = run.spec.independent and not run.spec.fail_fast  # the other instances do not need it
    if end.lost and running and not alone:
        # By somebody, by the kernel in the script's place, or by mpirun: because of a rank whose own end is not yet
        # reported, but came first.
        run = run._replace(unwitnessed=(*run.unwitnessed, end))
        return _start_doubt(run, "the wrapper of rank %d on %s was killed" % (end.rank, host), end.at, now), ()
    if end.unheard and running:
        run = _start_doubt(run, "mpirun's proxy on %s ended before its ranks" % host, end.at, now)
    before = running or _ended_before_stop(run, host, end)
    after = run.doubt is not None and end.at > run.doubt.since + (run.clocks[host].within or 0.0)
    end = end._replace(by_us=not before or after or end.unheard)
    if end.status == 0 or end.by_us or alone:
        return run, (Note(end),)
    if end.stopped and end.signal:
        return _start_doubt(run, "mpirun ended rank %d on %s" % (end.rank, host), end.at, now), (Note(end),)
    run, actions = _stop_run(run, Reason.RANK, "rank %d on %s failed" % (end.rank, host), now)
    return run, (Note(end), *actions)


def _ended_before_stop(run: "Run", host: str, end: "rank_records.RankEnded") -> bool:
    """Whether an end that is reported after the stop came before it, so that it is the rank's own."""
    by_itself = not end.lost and not end.stopped and end.signal not in (signal.SIGTERM, signal.SIGKILL)
    if by_itself and run.reason == Reason.RANK:  # after another stop it may have failed for want of the others
        return not end.ending  # nobody had asked it to end: its host's one clock tells, without a doubt
    # mpirun ends the others by signals as soon as it has seen one fail, before the order of the guard.
    if run.stopped_at is None or (end.lost and _was_launcher_killed(run)):
        return False
    return end.at < run.stopped_at - (run.clocks[host].within or 0.0)


def _on_proxy_ended(run: "Run", host: str, proxy: "messages.ProxyEnded", now: "Moment") -> "Step":
    ranks, at = set(run.spec.head_spec.hosts[host].ranks), _convert_to_head_time(run, host, proxy).at
    if not ranks & run.started:
        detail = "mpirun's proxy on %s ended before it started a rank" % host
        detail += ": " + proxy.why if proxy.why else ""
        run = _start_doubt(run, detail, at, now, Reason.LAUNCH)
    elif ranks - set(run.ended):
        run = _start_doubt(run, "mpirun's proxy on %s ended before its ranks" % host, at, now)
    return run, (ReleaseShims(host),)


def _on_cleaned(run: "Run", host: str, cleaned: "messages.Cleaned", now: "Moment") -> "Step":
    notes = [Note(journal.Leftovers(host, cleaned.left))] if cleaned.left else []
    if cleaned.strays and run.reason == Reason.DONE:  # else they are what we stopped
        notes.append(Note(journal.Strays(host, cleaned.strays)))
    return run._replace(cleaned={**run.cleaned, host: cleaned.left}), tuple(notes)


_MESSAGES: "Dict[Type[Any], Callable[[Run, str, Any, Moment], Step]]" = {
    messages.Pong: _on_pong,
    rank_records.RankStack: _on_rank_record,
    messages.StacksReported: _on_stacks_reported,
    rank_records.RankStarted: _on_rank_started,
    rank_records.RankStage: _on_rank_record,
    rank_records.RankNote: _on_rank_record,
    rank_records.RankEnded: _on_rank_ended,
    messages.ProxyEnded: _on_proxy_ended,
    messages.ProcessesKilled: lambda run, host, killed, now: (run, (Note(journal.Killed(host, killed.processes)),)),
    messages.Cleaned: _on_cleaned,
}


def _start_doubt(run: "Run", detail: str, at: float, now: "Moment", reason: str = Reason.LOST) -> "Run":
    """Begins a doubt, or dates the one there is back to ``at`` (the head's clock)."""
    doubt = run.doubt or Doubt(reason, detail, at, now.steady + run.spec.timings.suspicion)
    return run._replace(doubt=doubt._replace(since=min(at, doubt.since)))


def convert_to_head_time(run: "Run", host: str, at: float) -> float:
    """Unix seconds of a connected host's clock in those of the head's."""
    return at - run.clocks[host].offset


R = TypeVar("R")


def _convert_to_head_time(run: "Run", host: str, record: "R") -> "R":
    """A host's record with its time moved to the head's clock, and the host's name as the keeper knows it."""
    named: Any = record
    changes: Dict[str, Any] = {"at": convert_to_head_time(run, host, named.at)}
    if hasattr(record, "host"):
        changes["host"] = host
    return named._replace(**changes)  # type: ignore[no-any-return]
