"""How a run goes, as a state machine without clock, files or connections: `next_step` takes what happened and gives the
new state and what the keeper has to do. The keeper feeds it (`keeper.Keeper`), tests feed it histories."""

import enum
import signal
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Set,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from ipexctl.protocol import journal, messages, rank_records
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.journal import Reason, Record
from ipexctl.protocol.messages import Message
from ipexctl.protocol.run_spec import HeadSpec, RunSpec
from ipexctl.protocol.world import build_world, choose_hosts, place_spec
from ipexctl.remote.agent import keeping, meeting, restarts


class RunPhase(enum.Enum):
    """Where a run is. `TRANSITIONS` says where it may go from there."""

    # From the keeper's start. Guards join; when all have, the launcher is started. Ends at the time for that, too.
    GATHERING = "gathering"
    # All guards have joined, and the ranks may go on from a checkpoint: hosts without it get it.
    RESUMING = "resuming"
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
    # An attempt has ended and another one follows: once the pause is over, each lost host has certainly ended its part,
    # and enough hosts are there, their guards get their new ranks (gathering).
    RESTING = "resting"
    # The guards have reported, or their time is over. The final record is written; nothing happens any more.
    DONE = "done"


TRANSITIONS: "Dict[RunPhase, FrozenSet[RunPhase]]" = {
    RunPhase.GATHERING: frozenset({RunPhase.RESUMING, RunPhase.LAUNCHING, RunPhase.STOPPING, RunPhase.RESTING}),
    RunPhase.RESUMING: frozenset({RunPhase.LAUNCHING, RunPhase.STOPPING, RunPhase.RESTING}),
    RunPhase.LAUNCHING: frozenset({RunPhase.RUNNING, RunPhase.STOPPING}),
    RunPhase.RUNNING: frozenset({RunPhase.STOPPING, RunPhase.FINISHING}),
    RunPhase.STOPPING: frozenset({RunPhase.KILLING, RunPhase.FINISHING}),
    RunPhase.KILLING: frozenset({RunPhase.FINISHING}),
    RunPhase.FINISHING: frozenset({RunPhase.FINISHING, RunPhase.RESTING, RunPhase.DONE}),
    RunPhase.RESTING: frozenset({RunPhase.GATHERING, RunPhase.FINISHING, RunPhase.DONE}),
    RunPhase.DONE: frozenset(),
}
TIMES = 16  # inquiries that one request may ask for
BEFORE_THE_END = (RunPhase.GATHERING, RunPhase.RESUMING, RunPhase.LAUNCHING, RunPhase.RUNNING)


# ``steady`` is the monotonic clock, by which times are kept; ``clock`` Unix seconds, for records.
Moment = NamedTuple("Moment", [("steady", float), ("clock", float)])

# What can happen. Also the messages of guards (`FromGuard`) and of the user (`StopRun`, `KillRun`), and what the
# progress monitor finds (`Stall`, `Straggling`, `Resumed`).
GuardConnected = NamedTuple("GuardConnected", [("host", str), ("clock", float)])  # its host's clock, Unix seconds


class GuardLost(NamedTuple):
    """``tampered``: a line that one side had not written arrived at the other. ``silent``: seconds since it was heard
    last."""

    host: str
    why: str
    tampered: bool = False
    silent: float = 0.0


FromGuard = NamedTuple("FromGuard", [("host", str), ("message", Union[Message, Unreadable])])


class LauncherStarted(NamedTuple):
    """``out``: the offset in the ranks' output at which that of this attempt begins."""

    pid: int
    port: int
    out: int = 0


LauncherFailed = NamedTuple("LauncherFailed", [("why", str)])
LauncherEnded = NamedTuple("LauncherEnded", [("status", int)])
# The launcher has written that a rank ended the whole job.
RankAborted = NamedTuple("RankAborted", [("rank", int), ("code", int)])
Tick = NamedTuple("Tick", [("watched", bool)])  # time has passed; whether somebody watches the run
Input = Union[
    GuardConnected, GuardLost, FromGuard, LauncherStarted, LauncherFailed, LauncherEnded, RankAborted, Tick,
    messages.StopRun, messages.KillRun, messages.RequestStacks, messages.Vote,
    journal.Stall, journal.Straggling, journal.Resumed,
]  # fmt: skip


# What the keeper has to do.
Send = NamedTuple("Send", [("host", str), ("message", Message)])  # to the guard of a host; to all guards for ""
Note = NamedTuple("Note", [("record", Record)])  # write it to the journal
StartLauncher = NamedTuple("StartLauncher", [])  # and report it (`LauncherStarted`, `LauncherFailed`)
Disconnect = NamedTuple("Disconnect", [("host", str)])  # close the connection to the guard of the host
ReleaseShims = NamedTuple("ReleaseShims", [("host", str)])  # the launcher's proxy there has ended: so do its shims
# End the launcher, store the rest of its output and write this as the final record.
Close = NamedTuple("Close", [("end", journal.RunEnd)])
EndAttempt = NamedTuple("EndAttempt", [("record", journal.AttemptEnded)])  # the same where another attempt follows
Dissolve = NamedTuple("Dissolve", [])  # end without a record: others lead
Action = Union[Send, Note, StartLauncher, Disconnect, ReleaseShims, Close, EndAttempt, Dissolve]
Actions = Tuple[Action, ...]


# Parts of the launcher end: perhaps because of a rank whose own end is still to be reported. Until ``until`` (steady)
# that would explain it; then the run is stopped for ``reason``, unless the ``ranks`` it is about have all ended.
Doubt = NamedTuple("Doubt", [("reason", str), ("detail", str), ("until", float), ("ranks", FrozenSet[int])])


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


class LastPong(NamedTuple):
    """The last `Pong` of a guard: when the ping was sent that it answers, when the guard sent it, by its own clock, and
    when it arrived."""

    asked: float
    ponged: float
    arrived: float


class RankFailure(NamedTuple):
    """Why a rank failed first in an attempt: its ``status``, where, with the exception ("" where not known), and the
    checkpoint that the attempt had gone on from."""

    status: "Optional[int]" = None
    where: str = ""
    resumed: str = ""


class KeeperRun(NamedTuple):
    """All that the keeper knows of a run. Times are steady."""

    spec: "RunSpec"  # of this attempt
    since: float  # the keeper's start, then the launcher's
    deadline: float  # of the state
    watched: float  # when somebody last watched
    state: "RunPhase" = RunPhase.GATHERING
    guards: "FrozenSet[str]" = frozenset()  # hosts with a connected guard
    lost: "FrozenSet[str]" = frozenset()
    clocks: "Dict[str, HostClock]" = {}
    cleaned: "Dict[str, List[Tuple[int, str]]]" = {}  # host → processes left there
    started: "FrozenSet[int]" = frozenset()
    ended: "Dict[int, float]" = {}  # rank → when its end was reported
    aborted: "Dict[int, int]" = {}  # rank → the code with which it ended the whole job, as the launcher says
    launched: bool = False
    launcher_ended: "Optional[float]" = None
    launcher_status: "Optional[int]" = None
    reason: str = ""
    detail: str = ""
    stopped_at: "Optional[float]" = None  # the head's clock at the polite stop
    doubt: "Optional[Doubt]" = None
    inquiry: "Optional[Inquiry]" = None
    requests: "Tuple[str, ...]" = ()  # for stacks, that wait for the end of another inquiry
    verdict: str = ""  # why the run is to be stopped once the inquiry is over
    meetings: "meeting.Meetings" = {}
    waits: "Dict[str, messages.HostWaits]" = {}  # of hosts that are not taken, if the run waits for them
    waiting: "journal.Waiting" = journal.Waiting({})  # as it was noted last
    taking: bool = False  # all were free, and were told to be taken
    kept: "keeping.Keeping" = keeping.Keeping()
    worlds: "Dict[int, int]" = {}  # of `journal.SeparateWorlds`, as it was noted last
    failure: "RankFailure" = RankFailure()
    # Of all attempts:
    base: "Optional[RunSpec]" = None  # the specification of the first, by which others are made
    restart: int = 0  # attempts before this one
    again: bool = False  # another one follows
    halted: bool = False  # by the user: no other one
    present: "FrozenSet[str]" = frozenset()  # hosts with a connected guard, which can take part in the next one
    fences: "Dict[str, float]" = {}  # lost host → when it has certainly ended its part
    before: "RankFailure" = RankFailure()  # in the attempt before
    limited: float = 0.0  # the first start, from which the time limit counts
    ports: "Dict[str, int]" = {}  # of hosts that may take the head's place
    left: "Optional[Dict[str, float]]" = None  # while this one takes it: host → when it heard a keeper last
    former: str = ""  # whose place it takes
    voted: bool = False  # for this host, by the command that started the run
    ranked: "FrozenSet[str]" = frozenset()  # hosts that may still have ranks of the attempt before


Step = Tuple[KeeperRun, Actions]


def create_run(spec: "RunSpec", now: "Moment") -> "KeeperRun":
    """Returns the run at the keeper's start."""
    return KeeperRun(spec, now.steady, now.steady + spec.timings.ready_timeout, now.steady, base=spec)


def take_over(spec: "RunSpec", now: "Moment") -> "KeeperRun":
    """Returns the run as a host finds it that takes the head's place: between two attempts, and nobody is there yet."""
    lost = frozenset(spec.head_spec.hosts)
    return create_run(spec, now)._replace(state=RunPhase.RESTING, deadline=now.steady, again=True, lost=lost, left={})


def is_waiting(run: "KeeperRun") -> bool:
    """Returns whether hosts that another run has, or had, are not taken yet."""
    taken = {host for host, waits in run.waits.items() if waits.taken}
    return run.spec.wait and run.state is RunPhase.GATHERING and taken != set(run.spec.head_spec.hosts)


def find_heard(run: "KeeperRun", host: str, answers: "Dict[str, LastPong]") -> float:
    """Returns up to when the guard of a host was heard, by its own clock, from which its lease counts. Where another
    host may take the head's place that is while most hosts were heard, too: ranks that are cut off with the head end
    within a lease, whatever becomes of the keeper. Before an attempt, hosts may wait for each other for longer."""
    own = answers.get(host)
    if own is None:
        return 0.0
    if not run.spec.leaders or run.state is RunPhase.RESTING or run.spec is run.base:
        return own.ponged
    asked = sorted((answer.asked for answer in answers.values()), reverse=True)
    most = run.spec.head_spec.split_hosts if run.voted else len(run.spec.head_spec.hosts) // 2 + 1
    return own.ponged - max(0.0, own.arrived - asked[most - 1]) if len(asked) >= most else 0.0


def is_steady(run: "KeeperRun", now: "Moment") -> bool:
    """All ranks have been running for a moment, and no end is awaited: who looks after them may do so rarely."""
    running = run.state is RunPhase.RUNNING and len(run.started) == run.spec.size and not run.ended
    awaited = run.doubt or run.inquiry or run.launcher_ended is not None
    return running and not awaited and now.steady > run.since + run.spec.timings.early


def next_step(run: "KeeperRun", what: "Input", now: "Moment") -> "Step":
    """The state after ``what`` happened, and what is to be done. What the state has no use for changes nothing."""
    if run.state is RunPhase.DONE:
        return run, ()
    run, actions = _HANDLERS[type(what)](run, what, now)
    if run.state not in _DUE:
        return run, actions
    run, more = _DUE[run.state](run, now)
    return run, actions + more


# Steps from state to state.


def _enter_state(run: "KeeperRun", state: "RunPhase", deadline: float = 0.0) -> "KeeperRun":
    assert state in TRANSITIONS[run.state], "%s → %s" % (run.state, state)
    return run._replace(state=state, deadline=deadline)


def _was_launcher_killed(run: "KeeperRun") -> bool:
    """By somebody. SIGPIPE is a dead proxy's doing."""
    status = run.launcher_status or 0
    return status < 0 and status != -signal.SIGPIPE


def _stop_run(run: "KeeperRun", reason: str, detail: str, now: "Moment") -> "Step":
    if run.state not in BEFORE_THE_END:
        return run, ()
    run = run._replace(reason=reason, detail=detail, stopped_at=now.clock)
    stopped = _enter_state(run, RunPhase.STOPPING, now.steady + run.spec.timings.grace)
    return stopped, (Note(journal.Stopping(reason, detail)), Send("", messages.Terminate()))


def _kill_run(run: "KeeperRun", now: "Moment") -> "Step":
    killed = _enter_state(run, RunPhase.KILLING, now.steady + run.spec.timings.kill)
    return killed, (Note(journal.Killing()), Send("", messages.Kill()))


def _finish_run(run: "KeeperRun", now: "Moment") -> "Step":
    run = run._replace(reason=run.reason or Reason.DONE)
    run, notes = _judge_worlds(run, ()) if run.reason == Reason.DONE else (run, ())
    again, why = restarts.judge_end(run)
    run = run._replace(again=again, detail="%s; %s" % (run.detail, why) if why else run.detail)
    run = run._replace(guards=run.guards | run.present)  # also those that had no ranks
    finishing = _enter_state(run, RunPhase.FINISHING, now.steady + run.spec.timings.clean)
    return finishing, (*notes, Send("", messages.Finish(again)))


def _close_run(run: "KeeperRun", now: "Moment") -> "Step":
    if run.again and not run.halted:
        return _rest_run(run, now)
    if run.again:
        return _give_up_restart(run, run.reason, run.detail, now)
    left = {host: processes for host, processes in run.cleaned.items() if processes}
    unknown = sorted(set(run.spec.head_spec.hosts) - set(run.cleaned))
    end = journal.RunEnd(run.spec.run, run.reason, run.detail, run.launcher_status, left, unknown, sorted(run.lost))
    return _enter_state(run, RunPhase.DONE), (Close(end._replace(restart=run.restart)),)


def _rest_run(run: "KeeperRun", now: "Moment") -> "Step":
    """The attempt is over. A host on which something is left takes no part in another one; one that has not reported
    may be cut off, and its ranks at work until its lease is over."""
    timings = run.spec.timings
    unclean = {host for host in run.guards if run.cleaned.get(host, True)}
    over = now.steady + timings.node_lease + timings.fence
    run = run._replace(fences={**run.fences, **{host: over for host in run.guards if host not in run.cleaned}})
    run = run._replace(guards=frozenset(), present=run.present - unclean, lost=run.lost | unclean)
    pause = min(timings.backoff * 2**run.restart, timings.longest_backoff)
    awaited = [] if _choose_hosts(run) else sorted(run.lost)
    ended = journal.AttemptEnded(run.reason, run.detail, run.restart + 1, run.spec.restarts, awaited)
    return _enter_state(run, RunPhase.RESTING, now.steady + pause), (EndAttempt(ended),)


def _get_plan(run: "KeeperRun") -> "HeadSpec":
    """Returns all hosts of the run, with the ranks that they may have."""
    return (run.base or run.spec).head_spec


def _choose_hosts(run: "KeeperRun") -> "List[str]":
    before = [host for host, node in run.spec.head_spec.hosts.items() if node.ranks]
    plan = _get_plan(run)
    if run.voted:
        plan = plan._replace(min_hosts=plan.split_hosts)
    return choose_hosts(plan, run.present, before)


def _begin_attempt(run: "KeeperRun", number: int, hosts: "List[str]", now: "Moment") -> "Step":
    """Tells all hosts that are there which ranks they have, if any."""
    base = run.base or run.spec
    carried = ("base", "present", "fences", "clocks", "lost", "watched", "limited", "ports", "voted")
    world = build_world(number, base.head_spec, hosts)
    begun = create_run(place_spec(base, world)._replace(wait=False), now)._replace(restart=number, before=run.failure)
    begun = begun._replace(**{name: getattr(run, name) for name in carried})
    return begun, tuple(Send(host, messages.Begin(world)) for host in sorted(run.present))


def _give_up_restart(run: "KeeperRun", reason: str, detail: str, now: "Moment", others: bool = False) -> "Step":
    """No other attempt follows after all: the guards, which have stayed for it, end, or go to ``others`` who lead."""
    run = run._replace(again=False, reason=reason, detail=detail, guards=run.present, cleaned={})
    finish = Send("", messages.Finish(others=others))
    return _enter_state(run, RunPhase.FINISHING, now.steady + run.spec.timings.clean), (finish,)


# What is due in a state, whatever happened.


def _check_gathering(run: "KeeperRun", now: "Moment") -> "Step":
    missing = sorted(host for host, node in run.spec.head_spec.hosts.items() if node.ranks and host not in run.guards)
    if not missing and run.spec.wait and is_waiting(run):
        states = [run.waits.get(host) for host in run.spec.head_spec.hosts]
        if run.taking or not all(state and (state.taken or not (state.holder or state.before)) for state in states):
            return run, ()
        return run._replace(taking=True), (Send("", messages.TakeHost()),)
    if not missing and run.spec is run.base and (run.spec.head_spec.used or run.spec.leaders):  # the spares, too
        return _begin_attempt(run, 0, choose_hosts(run.spec.head_spec, run.present), now)
    if not missing and run.spec.keep and not run.spec.keep.fresh:
        number = int(now.clock)  # no order of an earlier attempt has it
        run = run._replace(since=now.steady, kept=keeping.begin_look(number))
        resuming = _enter_state(run, RunPhase.RESUMING, now.steady + run.spec.timings.ready_timeout)
        return resuming, (Send("", messages.FindCheckpoints(number)),)
    if not missing:
        return _enter_state(run, RunPhase.LAUNCHING), (StartLauncher(),)
    if now.steady > run.deadline:
        return _stop_run(run, Reason.LAUNCH, "no guard on %s" % ", ".join(missing), now)
    return run, ()


def _check_resuming(run: "KeeperRun", now: "Moment") -> "Step":
    assert run.spec.keep
    hosts, known = [host for host, node in run.spec.head_spec.hosts.items() if node.ranks], run.kept
    silent = [host for host in hosts if host not in known.reports or known.reports[host].number != known.look]
    if silent:
        detail = "no word of the checkpoints on %s" % ", ".join(silent)
        return _stop_run(run, Reason.LAUNCH, detail, now) if now.steady > run.deadline else (run, ())
    if known.orders:
        return run, ()
    if known.due:
        known, orders = keeping.plan_resume(known, hosts, run.spec.keep)
        run = run._replace(kept=known)
        if orders:
            return run, tuple(Send(order.host, order.message) for order in orders)
        if known.failed and known.chosen is None:
            return _stop_run(run, Reason.LAUNCH, "no checkpoint is on all hosts", now)
    name, written = (known.chosen.name, known.chosen.at) if known.chosen else ("", 0.0)
    chosen = journal.ResumeChosen(name, written, known.size, now.steady - run.since, sorted(known.sources))
    return _enter_state(run, RunPhase.LAUNCHING), (Note(chosen), StartLauncher())


def _check_running(run: "KeeperRun", now: "Moment") -> "Step":
    timings, steady, size = run.spec.timings, now.steady, run.spec.size
    doubt, launcher_ended = run.doubt, run.launcher_ended
    if len(run.ended) == size:
        patient = launcher_ended is None and steady <= max(run.ended.values()) + timings.launcher
        return (run, ()) if patient else _finish_run(run, now)
    # Word of the ranks' ends, which mpirun says were good, may take many seconds over a network that loses packets.
    well = bool(run.launcher_status == 0 and run.started)
    if launcher_ended is not None and steady > launcher_ended + (timings.node_lease if well else timings.launcher):
        if doubt and doubt.reason == Reason.LAUNCH:  # it ended because of that
            return _stop_run(run, doubt.reason, doubt.detail, now)
        reason = Reason.LOST if run.started else Reason.LAUNCH
        return _stop_run(run, reason, "mpirun ended with status %s before its ranks" % run.launcher_status, now)
    if len(run.started) < size and steady > run.since + timings.start_timeout:
        first = min(set(range(size)) - run.started)
        detail = "rank %d did not start within %.0f s" % (first, timings.start_timeout)
        return _stop_run(run, Reason.LAUNCH, detail, now)
    if doubt and steady > doubt.until and not well and not doubt.ranks <= set(run.ended):
        return _stop_run(run, doubt.reason, doubt.detail, now)
    if timings.time_limit and steady > run.limited + timings.time_limit:
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


def _check_ending(run: "KeeperRun", now: "Moment") -> "Step":
    late = now.steady > run.deadline
    if _is_settled(run, now) or (late and run.state is RunPhase.KILLING):
        return _finish_run(run, now)
    return _kill_run(run, now) if late else (run, ())


def _check_resting(run: "KeeperRun", now: "Moment") -> "Step":
    if run.halted:
        return _give_up_restart(run, run.reason, run.detail, now)
    if run.left is not None:
        return _check_takeover(run, run.left, now)
    fenced = [until for host, until in run.fences.items() if host not in run.present]
    if now.steady < max([run.deadline, *fenced]):
        return run, ()
    hosts = _choose_hosts(run)
    if hosts:
        return _begin_attempt(run, run.restart + 1, hosts, now)
    patience = run.spec.timings.rejoin
    if now.steady < run.deadline + patience:
        return run, ()
    if run.spec.head_spec.split_hosts and run.present:
        patience = run.spec.timings.away
        if now.steady < max(fenced, default=0.0) + patience:  # another one may lead the others by now
            return run._replace(deadline=now.steady), (Send("", messages.Finish(stay=True, others=True)),)
    detail = "%s; %s not back within %.0f s" % (run.detail, ", ".join(sorted(run.lost)), patience)
    return _give_up_restart(run, Reason.LOST, detail, now, others=bool(run.spec.leaders))


def _check_takeover(run: "KeeperRun", left: "Dict[str, float]", now: "Moment") -> "Step":
    """The ranks of the attempt before have ended for certain before others start.

    Each attempt has most of the hosts, and so have those that are here: one of them at least had ranks in the last one,
    and knows which hosts had. None of these has heard its keeper since, so that no host learned later that most were
    heard (`find_heard`): within a lease all have ended their parts."""
    timings, hosts = run.spec.timings, _choose_hosts(run)
    if not hosts:
        gone = now.steady > run.deadline + timings.gather
        return (_enter_state(run, RunPhase.DONE), (Send("", messages.Release()), Dissolve())) if gone else (run, ())
    away = {host for host in run.spec.head_spec.hosts if host not in run.present}
    awaited = away & run.ranked
    if awaited and now.steady < max(left.values()) + timings.node_lease + timings.fence:
        return run, ()
    lost = tuple(
        Note(journal.HostLost(host, "out of reach of %s, which leads now" % run.spec.host)) for host in sorted(away)
    )
    detail = "%s lost" % run.former
    run = run._replace(left=None, reason=Reason.LOST, detail=detail)
    if run.restart >= run.spec.restarts:
        run, actions = _give_up_restart(run, Reason.LOST, "%s; no restart is left of %d" % (detail, run.restart), now)
        return run, (*lost, *actions)
    ended = Note(journal.AttemptEnded(Reason.LOST, detail, run.restart + 1, run.spec.restarts))
    run, actions = _begin_attempt(run, run.restart + 1, hosts, now)
    return run, (*lost, ended, *actions)


_DUE: "Dict[RunPhase, Callable[[KeeperRun, Moment], Step]]" = {
    RunPhase.GATHERING: _check_gathering,
    RunPhase.RESUMING: _check_resuming,
    RunPhase.RUNNING: _check_running,
    RunPhase.STOPPING: _check_ending,
    RunPhase.KILLING: _check_ending,
    RunPhase.FINISHING: lambda run, now: (
        _close_run(run, now) if run.guards <= set(run.cleaned) or now.steady > run.deadline else (run, ())
    ),
    RunPhase.RESTING: _check_resting,
}


def _is_settled(run: "KeeperRun", now: "Moment") -> bool:
    """Nothing is to be waited for: the launcher has ended or never began, or every rank of a living host has ended."""
    if not run.launched or run.launcher_ended is not None:
        return True
    living = [node for host, node in run.spec.head_spec.hosts.items() if host not in run.lost]
    if not {rank for node in living for rank in node.ranks} <= set(run.ended):
        return False
    # mpirun ends by itself soon after its ranks, and then complains of nothing; with a host lost it never does.
    lost = any(node.ranks for host, node in run.spec.head_spec.hosts.items() if host in run.lost)
    return lost or now.steady > max(run.ended.values()) + run.spec.timings.orderly


# What happened.


def _on_guard_connected(run: "KeeperRun", guard: "GuardConnected", now: "Moment") -> "Step":
    if guard.host not in run.spec.head_spec.hosts:
        return run, ()
    run = run._replace(clocks={**run.clocks, guard.host: HostClock(guard.clock - now.clock)})
    ping = Send(guard.host, messages.Ping(now.clock, steady=now.steady))
    if guard.host in run.lost or run.restart:  # it is back, and tells next what is left of its part (`Cleaned`)
        return run, (ping,)
    run = run._replace(guards=run.guards | {guard.host}, present=run.present | {guard.host})
    return run, (ping, Note(journal.GuardJoined(guard.host)))


def _on_guard_lost(run: "KeeperRun", guard: "GuardLost", now: "Moment") -> "Step":
    host, timings = guard.host, run.spec.timings
    if host not in run.guards | run.present or (host in run.cleaned and not run.again):  # who has reported may go
        return run, ()
    fence = now.steady - guard.silent + timings.node_lease + timings.fence
    run = run._replace(guards=run.guards - {host}, present=run.present - {host}, fences={**run.fences, host: fence})
    known, _ = keeping.end_order(run.kept, host, messages.CheckpointTaken(0, "lost", 0, 0.0))
    run = run._replace(lost=run.lost | {host}, kept=known)
    lost = Note(journal.HostLost(host, guard.why, guard.tampered))
    actions: Actions = ()
    if run.restart and run.state in (
        RunPhase.GATHERING,
        RunPhase.RESUMING,
    ):  # the attempt has not begun: its hosts are chosen anew
        why = "%s lost before the start" % host
        again = run._replace(restart=run.restart - 1, again=True, failure=run.before, reason=Reason.LOST, detail=why)
        run = _enter_state(again, RunPhase.RESTING, now.steady)
    elif run.spec.head_spec.hosts[host].ranks:
        run, actions = _stop_run(run, Reason.LOST, "%s lost (%s)" % (host, guard.why), now)
    return run, (Disconnect(host), lost, *actions)


def _on_guard_message(run: "KeeperRun", sent: "FromGuard", now: "Moment") -> "Step":
    message, host = sent.message, sent.host
    node = run.spec.head_spec.hosts.get(host)
    handler: Optional[Callable[[KeeperRun, str, Any, Moment], Step]] = _MESSAGES.get(type(message))
    rank = getattr(message, "rank", None)
    if isinstance(message, Unreadable):
        return run, (Note(journal.MessageIgnored(host, message.kind, message.why)),)
    if handler is None or node is None or host not in run.clocks or (rank is not None and rank not in node.ranks):
        return run, (Note(journal.MessageIgnored(host, type(message).__name__, "unexpected")),)
    return handler(run, host, message, now)


def _on_launcher_started(run: "KeeperRun", started: "LauncherStarted", now: "Moment") -> "Step":
    if run.state is not RunPhase.LAUNCHING:
        return run, ()
    run = _enter_state(run, RunPhase.RUNNING)._replace(launched=True, since=now.steady)
    if not run.restart:
        run = run._replace(watched=now.steady, limited=now.steady)
    placed = {host: node.ranks for host, node in run.spec.head_spec.hosts.items() if node.ranks}
    launched = journal.Launched(started.pid, started.port, placed=placed, out=started.out, restart=run.restart)
    resume = run.kept.chosen.name if run.kept.chosen else ""
    return run, (Send("", messages.RanksPort(started.port, resume)), Note(launched))


def _on_launcher_ended(run: "KeeperRun", ended: "LauncherEnded", now: "Moment") -> "Step":
    if not run.launched:
        return run, ()
    run = run._replace(launcher_ended=now.steady, launcher_status=ended.status)
    if run.state is not RunPhase.RUNNING or not _was_launcher_killed(run):
        return run, ()
    known = -ended.status in list(signal.Signals)
    name = signal.Signals(-ended.status).name if known else "signal %d" % -ended.status
    return _stop_run(run, Reason.LOST, "mpirun on %s was killed by %s" % (run.spec.host, name), now)


def _on_rank_aborted(run: "KeeperRun", aborted: "RankAborted", now: "Moment") -> "Step":
    rank = aborted.rank
    hosts = [host for host, node in run.spec.head_spec.hosts.items() if rank in node.ranks]
    if run.state is not RunPhase.RUNNING or rank in run.ended or not hosts:
        return run, ()
    run = run._replace(aborted={**run.aborted, rank: aborted.code})
    return _stop_run(run, Reason.RANK, "rank %d on %s called MPI_Abort(%d)" % (rank, hosts[0], aborted.code), now)


def _on_stop_order(run: "KeeperRun", order: "Union[messages.StopRun, messages.KillRun]", now: "Moment") -> "Step":
    run = run._replace(halted=True)
    if run.again:  # between two attempts
        return run._replace(reason=Reason.STOPPED, detail=order.why), ()
    return _stop_run(run, Reason.STOPPED, order.why, now)


def _on_kill_order(run: "KeeperRun", order: "messages.KillRun", now: "Moment") -> "Step":
    run, stopping = _on_stop_order(run, order, now)
    if run.state is not RunPhase.STOPPING:
        return run, stopping
    run, killing = _kill_run(run, now)
    return run, stopping + killing


def _on_stall(run: "KeeperRun", stall: "journal.Stall", now: "Moment") -> "Step":
    kill = (run.spec.head_spec.stall_kill or run.spec.head_spec.stall_restart) and stall.grave and not stall.early
    return _start_inquiry(run, stall._replace(kill=kill), "no progress for %.0f s" % stall.seconds if kill else "", now)


def _on_straggling(run: "KeeperRun", few: "journal.Straggling", now: "Moment") -> "Step":
    kill = run.spec.head_spec.straggler_kill
    verdict = ""
    if kill:
        verdict = "%d rank%s done for %.0f s, others go on" % (few.done, "s"[few.done == 1 :], few.seconds)
    return _start_inquiry(run, few._replace(kill=kill), verdict, now)


def _start_inquiry(run: "KeeperRun", alarm: "Record", verdict: str, now: "Moment") -> "Step":
    if run.state is not RunPhase.RUNNING:
        return run, ()
    run = run._replace(verdict=run.verdict or verdict)
    if run.inquiry and run.inquiry.requested:  # its stacks are of this moment
        return run, (Note(alarm),)
    inquiry = Inquiry(run.guards, now.steady + run.spec.timings.inquiry)
    return run._replace(inquiry=inquiry), (Note(alarm), Send("", messages.ReportStacks()))


def _on_stacks_request(run: "KeeperRun", order: "messages.RequestStacks", now: "Moment") -> "Step":
    if run.state is not RunPhase.RUNNING:
        return run, ()
    return _answer_requests(run._replace(requests=run.requests + (order.request,) * min(order.times, TIMES)), now)


def _answer_requests(run: "KeeperRun", now: "Moment") -> "Step":
    """Begins the inquiry for all requests that wait, once for each; they go on waiting while there is another one."""
    if run.inquiry or not run.requests:
        return run, ()
    answered, waiting = list(dict.fromkeys(run.requests)), list(run.requests)
    for request in answered:
        waiting.remove(request)
    notes = tuple(Note(journal.StacksRequested(request)) for request in answered)
    inquiry = Inquiry(run.guards, now.steady + run.spec.timings.inquiry, requested=True)
    return run._replace(inquiry=inquiry, requests=tuple(waiting)), (*notes, Send("", messages.ReportStacks()))


_HANDLERS: "Dict[Type[Any], Callable[[KeeperRun, Any, Moment], Step]]" = {
    GuardConnected: _on_guard_connected,
    GuardLost: _on_guard_lost,
    FromGuard: _on_guard_message,
    LauncherStarted: _on_launcher_started,
    LauncherFailed: lambda run, failed, now: _stop_run(run, Reason.LAUNCH, failed.why, now),
    LauncherEnded: _on_launcher_ended,
    RankAborted: _on_rank_aborted,
    Tick: lambda run, tick, now: (run._replace(watched=now.steady) if tick.watched else run, ()),
    messages.StopRun: _on_stop_order,
    messages.KillRun: _on_kill_order,
    messages.RequestStacks: _on_stacks_request,
    messages.Vote: lambda run, vote, now: (run._replace(voted=run.spec.head_spec.split_hosts > 0), ()),
    journal.Stall: _on_stall,
    journal.Straggling: _on_straggling,
    journal.Resumed: lambda run, resumed, now: (run, (Note(resumed),) if run.state is RunPhase.RUNNING else ()),
}


# Messages of guards; their loads (`RankLoads`) are for the progress monitor.


def _on_pong(run: "KeeperRun", host: str, pong: "messages.Pong", now: "Moment") -> "Step":
    """Returns the clock is measured by the shortest round trip so far; older ones count for less, for clocks drift."""
    known, trip = run.clocks[host], now.clock - pong.sent
    best = trip if known.within is None else min(trip, known.within)
    offset = pong.clock - (pong.sent + now.clock) / 2 if best == trip else known.offset
    return run._replace(clocks={**run.clocks, host: HostClock(offset, 1.1 * best)}), ()


def _on_rank_record(run: "KeeperRun", host: str, record: "Any", now: "Moment") -> "Step":
    return run, (Note(_convert_to_head_time(run, host, record)),)


def _on_meeting_record(run: "KeeperRun", host: str, record: "Any", now: "Moment") -> "Step":
    run = run._replace(meetings=meeting.add_record(run.meetings, record))
    going_on = set(range(run.spec.size)) - set(run.ended)
    return _judge_worlds(run, going_on) if run.state is RunPhase.RUNNING and going_on else (run, ())


def _judge_worlds(run: "KeeperRun", awaited: "Iterable[int]") -> "Step":
    """Notes it where the ranks work apart, and where they no longer do."""
    separate = meeting.find_separate_worlds(run.meetings, awaited)
    if separate is None or separate.worlds == run.worlds:
        return run, ()
    return run._replace(worlds=separate.worlds), (Note(separate),)


def _on_stacks_reported(run: "KeeperRun", host: str, message: "Message", now: "Moment") -> "Step":
    inquiry = run.inquiry and run.inquiry._replace(hosts=run.inquiry.hosts - {host})
    return run._replace(inquiry=inquiry), ()


def _on_rank_started(run: "KeeperRun", host: str, started: "rank_records.RankStarted", now: "Moment") -> "Step":
    return run._replace(started=run.started | {started.rank}), (Note(_convert_to_head_time(run, host, started)),)


def _on_rank_dropped(run: "KeeperRun", host: str, dropped: "rank_records.RankDropped", now: "Moment") -> "Step":
    """The launcher ends ranks where one has called MPI_Abort: that one's own end, which is to come, explains it."""
    if dropped.rank in run.ended or run.state is not RunPhase.RUNNING:
        return run, ()
    return _start_doubt(run, {dropped.rank}, "the launcher ended rank %d on %s" % (dropped.rank, host), now), ()


def _on_rank_ended(run: "KeeperRun", host: str, end: "rank_records.RankEnded", now: "Moment") -> "Step":
    end = _convert_to_head_time(run, host, end)
    explained = end.status and (end.error or end.exited)
    if end.rank in run.aborted and not explained:  # however it ended while it waited for that
        end = end._replace(signal=0, abort=run.aborted[end.rank], lost=False)
        if end.error:  # the exception is the cause, the call what followed
            end = end._replace(status=run.aborted[end.rank] & 0xFF or 1, abort=None)
    run = run._replace(ended={**run.ended, end.rank: now.steady}, started=run.started | {end.rank})
    running = run.state is RunPhase.RUNNING
    alone = run.spec.independent and not run.spec.fail_fast  # the other instances do not need it
    own = running or end.abort is not None or end.rank in run.aborted or _ended_before_stop(run, host, end)
    end = end._replace(by_us=not own)
    if (end.status == 0 and end.abort is None) or end.by_us or alone:
        return run, (Note(end),)
    if end.lost:  # killed by somebody, or by the kernel in the script's place
        run, actions = _stop_run(run, Reason.LOST, "the wrapper of rank %d on %s was killed" % (end.rank, host), now)
    else:
        if running:
            resumed = run.kept.chosen.name if run.kept.chosen else ""
            run = run._replace(failure=RankFailure(end.status, restarts.describe_place(end), resumed))
        run, actions = _stop_run(run, Reason.RANK, "rank %d on %s failed" % (end.rank, host), now)
    return run, (Note(end), *actions)


def _ended_before_stop(run: "KeeperRun", host: str, end: "rank_records.RankEnded") -> bool:
    """Returns whether an end that is reported after the stop came before it, so that it is the rank's own."""
    if run.reason == Reason.RANK and not end.lost:  # after another stop it may have failed for want of the others
        return not end.ending  # nobody had asked it to end: its host's one clock tells, without a doubt
    if run.stopped_at is None:
        return False
    return end.at < run.stopped_at - (run.clocks[host].within or 0.0)


def _on_proxy_ended(run: "KeeperRun", host: str, proxy: "messages.ProxyEnded", now: "Moment") -> "Step":
    ranks = set(run.spec.head_spec.hosts[host].ranks)
    if not ranks & run.started:
        detail = "mpirun's proxy on %s ended before it started a rank" % host
        detail += ": " + proxy.why if proxy.why else ""
        run = _start_doubt(run, ranks, detail, now, Reason.LAUNCH)
    elif ranks - set(run.ended):
        run = _start_doubt(run, ranks, "mpirun's proxy on %s ended before its ranks" % host, now)
    return run, (ReleaseShims(host),)


def _on_host_waits(run: "KeeperRun", host: str, waits: "messages.HostWaits", now: "Moment") -> "Step":
    leave: Actions = ()
    if run.taking and not waits.taken:  # another run was sooner on this host: none is held meanwhile
        leave = tuple(Send(name, messages.LeaveHost()) for name, other in run.waits.items() if other.taken)
        kept = {name: other._replace(taken=False) for name, other in run.waits.items()}
        run = run._replace(taking=False, waits=kept)
    run = run._replace(waits={**run.waits, host: waits})
    waiting = _describe_waiting(run)
    if waiting == run.waiting or set(run.waits) != set(run.spec.head_spec.hosts):
        return run, leave
    return run._replace(waiting=waiting), (*leave, Note(waiting))


def _describe_waiting(run: "KeeperRun") -> "journal.Waiting":
    holders = {host: waits.holder for host, waits in sorted(run.waits.items()) if waits.holder}
    hosts = {host: (holder.run, holder.owner, holder.started) for host, holder in holders.items()}
    return journal.Waiting(hosts, max([waits.before for waits in run.waits.values()], default=0))


def _on_checkpoints_found(run: "KeeperRun", host: str, found: "messages.CheckpointsFound", now: "Moment") -> "Step":
    parts = [each if each.owner else _convert_to_head_time(run, host, each) for each in found.parts]
    run = run._replace(kept=keeping.add_report(run.kept, host, found._replace(parts=parts)))
    return _order_copies(run, ())


def _on_checkpoint_taken(run: "KeeperRun", host: str, taken: "messages.CheckpointTaken", now: "Moment") -> "Step":
    known, notes = keeping.end_order(run.kept, host, taken)
    return _order_copies(run._replace(kept=known), tuple(map(Note, notes)))


def _order_copies(run: "KeeperRun", notes: "Actions") -> "Step":
    if run.spec.keep is None or run.state is not RunPhase.RUNNING:
        return run, notes
    hosts = [host for host in run.spec.head_spec.hosts if host in run.guards]
    known, orders = keeping.plan_copies(run.kept, hosts, run.spec.keep)
    return run._replace(kept=known), (*notes, *(Send(order.host, order.message) for order in orders))


def _on_cleaned(run: "KeeperRun", host: str, cleaned: "messages.Cleaned", now: "Moment") -> "Step":
    notes = [Note(journal.Leftovers(host, cleaned.left))] if cleaned.left else []
    if cleaned.strays and run.reason == Reason.DONE:  # else they are what we stopped
        notes.append(Note(journal.Strays(host, cleaned.strays)))
    run = run._replace(cleaned={**run.cleaned, host: cleaned.left})
    if host in run.lost - run.guards and not cleaned.left:
        notes.append(Note(journal.HostBack(host) if run.left is None else journal.GuardJoined(host)))
        run = run._replace(present=run.present | {host}, lost=run.lost - {host})
    return run, tuple(notes)


def _on_joined(run: "KeeperRun", host: str, joined: "messages.Joined", now: "Moment") -> "Step":
    if joined.port:
        run = run._replace(ports={**run.ports, host: joined.port})
    known = (Send("" if joined.port else host, messages.Leaders(run.ports)),)
    if run.left is None:
        return run, known
    left = {**run.left, host: now.steady - joined.away}
    limited = min(run.limited or now.steady, now.steady - joined.running)
    restart = max(run.restart, joined.attempt)
    ranked = run.ranked.union(joined.hosts or run.spec.head_spec.hosts)
    return run._replace(left=left, limited=limited, restart=restart, former=joined.leader, ranked=ranked), known


def _on_begun(run: "KeeperRun", host: str, begun: "messages.Begun", now: "Moment") -> "Step":
    awaited = run.state is RunPhase.GATHERING and begun.number == run.restart
    return (run._replace(guards=run.guards | {host}) if awaited else run), ()


_MESSAGES: "Dict[Type[Any], Callable[[KeeperRun, str, Any, Moment], Step]]" = {
    messages.Pong: _on_pong,
    rank_records.RankStack: _on_rank_record,
    messages.StacksReported: _on_stacks_reported,
    rank_records.RankStarted: _on_rank_started,
    rank_records.RankStage: _on_rank_record,
    rank_records.RankRendezvous: _on_rank_record,
    rank_records.RankWorld: _on_meeting_record,
    rank_records.RankAlone: _on_meeting_record,
    rank_records.RankNote: _on_rank_record,
    rank_records.RankDropped: _on_rank_dropped,
    rank_records.RankEnded: _on_rank_ended,
    messages.ProxyEnded: _on_proxy_ended,
    messages.ProcessesKilled: lambda run, host, killed, now: (run, (Note(journal.Killed(host, killed.processes)),)),
    messages.Cleaned: _on_cleaned,
    messages.HostWaits: _on_host_waits,
    messages.CheckpointsFound: _on_checkpoints_found,
    messages.CheckpointTaken: _on_checkpoint_taken,
    messages.Begun: _on_begun,
    messages.Joined: _on_joined,
}


def _start_doubt(
    run: "KeeperRun", ranks: "Set[int]", detail: str, now: "Moment", reason: str = Reason.LOST
) -> "KeeperRun":
    if run.doubt and not run.doubt.ranks <= set(run.ended):
        return run
    return run._replace(doubt=Doubt(reason, detail, now.steady + run.spec.timings.suspicion, frozenset(ranks)))


def convert_to_head_time(run: "KeeperRun", host: str, at: float) -> float:
    """Unix seconds of a connected host's clock in those of the head's."""
    return at - run.clocks[host].offset


R = TypeVar("R")


def _convert_to_head_time(run: "KeeperRun", host: str, record: "R") -> "R":
    """Returns a host's record with its time moved to the head's clock, and the host's name as the keeper knows it."""
    named: Any = record
    changes: Dict[str, Any] = {"at": convert_to_head_time(run, host, named.at)}
    if hasattr(record, "host"):
        changes["host"] = host
    return named._replace(**changes)  # type: ignore[no-any-return]
