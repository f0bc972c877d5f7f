"""How a run goes: `next_step` takes what happened, changes what is known, and returns what the keeper has to do."""

import signal
from typing import Any, Callable, Dict, List, Type, Union

from ipexctl.protocol import journal, messages
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.journal import Reason
from ipexctl.remote.agent import attempts, guard_messages, inquiries, keeping
from ipexctl.remote.agent import keeper_state as ks
from ipexctl.remote.agent.keeper_state import KeeperRun, RunPhase

SLOWEST_COPY = 8 << 20  # bytes a second at which a host may get a checkpoint, all hosts together


def next_step(run: "KeeperRun", what: "ks.Input", now: "ks.Moment") -> "List[ks.Action]":
    """What the state has no use for changes nothing."""
    run.now, run.actions = now, []
    if run.state is not RunPhase.DONE:
        _HANDLERS[type(what)](run, what)
    if run.state in _CHECKS:
        _CHECKS[run.state](run)
    return run.actions


# What is due in a state, whatever happened.


def _check_gathering(run: "KeeperRun") -> None:
    missing = sorted(run.list_ranks().keys() - run.present)
    if missing:
        if run.is_late():
            run.stop(Reason.LAUNCH, "no guard on %s" % ", ".join(missing))
    elif run.is_waiting():
        states = [run.waits.get(host) for host in run.spec.head_spec.hosts]
        free = all(state and (state.taken or not (state.holder or state.before)) for state in states)
        if free and not run.taking:
            run.taking = True
            run.send(messages.TakeHost())
    else:
        attempts.begin_attempt(run, 0, attempts.choose_next_hosts(run))


def _check_placing(run: "KeeperRun") -> None:
    missing = sorted(run.list_ranks().keys() - run.begun)
    if missing:
        if run.is_late():
            run.stop(Reason.LAUNCH, "no guard on %s" % ", ".join(missing))
    elif run.spec.keep and not run.spec.keep.fresh:
        number = int(run.now.clock)  # no order of an earlier attempt has it
        run.since = run.now.steady
        run.kept = keeping.Keeping(look=number, number=number)  # nothing is known until all hosts have answered it
        run.enter(RunPhase.RESUMING, run.spec.timings.ready_timeout)
        run.send(messages.FindCheckpoints(number))
    else:
        _launch(run)


def _launch(run: "KeeperRun") -> None:
    run.enter(RunPhase.LAUNCHING)
    run.actions.append(ks.StartLauncher())


def _check_resuming(run: "KeeperRun") -> None:
    assert run.spec.keep
    hosts, known = list(run.list_ranks()), run.kept
    silent = [host for host in hosts if host not in known.reports or known.reports[host].number != known.look]
    if silent:
        if run.is_late():
            run.stop(Reason.LAUNCH, "no word of the checkpoints on %s" % ", ".join(silent))
        return
    if known.orders:
        sources = [source for order in known.orders.values() for source in order.message.sources]
        size = sum(size for source in sources for size, _ in source.files.values())
        if run.now.steady > run.since + run.spec.timings.away + size / SLOWEST_COPY:
            awaited = sorted({order.host for order in known.orders.values()})
            run.stop(Reason.LAUNCH, "no word of the checkpoint that %s was to get" % ", ".join(awaited))
        return
    if known.due:
        run.kept, orders = keeping.plan_resume(known, hosts, run.spec.keep)
        if orders:
            for order in orders:
                run.send(order.message, order.host)
            return
        if run.kept.failed and run.kept.chosen is None:
            run.stop(Reason.LAUNCH, "no checkpoint is on all hosts")
            return
    kept, seconds = run.kept, run.now.steady - run.since
    if kept.chosen:
        record = journal.ResumeChosen(kept.chosen.name, kept.chosen.at, kept.size, seconds, sorted(kept.sources))
    else:
        record = journal.ResumeChosen("", 0.0, kept.size, seconds, [], keeping.find_incomplete(kept, hosts))
    run.note(record)
    _launch(run)


def _check_running(run: "KeeperRun") -> None:
    timings, steady, doubt, launcher_ended = run.spec.timings, run.now.steady, run.doubt, run.launcher_ended
    if len(run.ended) == run.spec.size:
        if launcher_ended is not None or steady > max(run.ended.values()) + timings.launcher:
            _finish(run)
        return
    # Word of the ranks' ends, which mpirun says were good, may take many seconds over a network that loses packets.
    well = bool(run.launcher_status == 0 and run.started)
    if launcher_ended is not None and steady > launcher_ended + (timings.node_lease if well else timings.launcher):
        if doubt and doubt.reason == Reason.LAUNCH:  # it ended because of that
            run.stop(doubt.reason, doubt.detail)
            return
        reason = Reason.LOST if run.started else Reason.LAUNCH
        run.stop(reason, "mpirun ended with status %s before its ranks" % run.launcher_status)
    elif len(run.started) < run.spec.size and steady > run.since + timings.start_timeout:
        first = min(set(range(run.spec.size)) - run.started)
        run.stop(Reason.LAUNCH, "rank %d did not start within %.0f s" % (first, timings.start_timeout))
    elif doubt and steady > doubt.until and not well and not doubt.ranks <= set(run.ended):
        run.stop(doubt.reason, doubt.detail)
    elif timings.time_limit and steady > run.limited + timings.time_limit:
        run.stop(Reason.LIMIT, "time limit of %.0f s" % timings.time_limit)
    elif timings.lease and steady > run.watched + timings.lease:
        run.stop(Reason.LIMIT, "watcher lost: nobody watched for %.0f s" % timings.lease)
    else:
        inquiries.check_inquiry(run)


def _check_ending(run: "KeeperRun") -> None:
    if _is_settled(run) or (run.is_late() and run.state is RunPhase.KILLING):
        _finish(run)
    elif run.is_late():
        run.kill()


def _is_settled(run: "KeeperRun") -> bool:
    """Nothing is to be waited for: the launcher has ended or never began, or every rank of a living host has ended."""
    if not run.launched or run.launcher_ended is not None:
        return True
    placed = run.list_ranks()
    living = {rank for host, ranks in placed.items() if host not in run.lost for rank in ranks}
    if not living <= set(run.ended):
        return False
    # mpirun ends by itself soon after its ranks, and then complains of nothing; with a host lost it never does.
    late = run.now.steady > max(run.ended.values(), default=0.0) + run.spec.timings.orderly
    return late or not run.lost.isdisjoint(placed)


def _finish(run: "KeeperRun") -> None:
    if not run.reason:
        guard_messages.judge_worlds(run, ())
        guard_messages.note_uneven_collectives(run)
    attempts.finish_attempt(run)


_CHECKS: "Dict[RunPhase, Callable[[KeeperRun], None]]" = {
    RunPhase.GATHERING: _check_gathering,
    RunPhase.PLACING: _check_placing,
    RunPhase.RESUMING: _check_resuming,
    RunPhase.RUNNING: _check_running,
    RunPhase.STOPPING: _check_ending,
    RunPhase.KILLING: _check_ending,
    RunPhase.FINISHING: attempts.check_finishing,
    RunPhase.RESTING: attempts.check_resting,
}


# What happened.


def _on_guard_connected(run: "KeeperRun", guard: "ks.GuardConnected") -> None:
    """It tells next what it knows of the run, and what is left of its part (`Joined`)."""
    if guard.host in run.spec.head_spec.hosts:
        run.clocks[guard.host] = ks.HostClock(guard.clock - run.now.clock)
        run.send(messages.Ping(run.now.clock, steady=run.now.steady), guard.host)


def _on_guard_silent(run: "KeeperRun", guard: "ks.GuardSilent") -> None:
    if guard.host in run.present - run.silent:
        run.silent.add(guard.host)
        run.note(journal.HostSilent(guard.host, guard.seconds))


def _on_guard_lost(run: "KeeperRun", guard: "ks.GuardLost") -> None:
    host, timings = guard.host, run.spec.timings
    if host not in run.present or (host in run.cleaned and run.state is RunPhase.FINISHING and not run.again):
        return  # who has reported may go
    for hosts in (run.present, run.silent, run.begun):
        hosts.discard(host)
    run.lost.add(host)
    run.fences[host] = run.now.steady - guard.silent + timings.node_lease + timings.fence
    run.kept, _ = keeping.end_order(run.kept, host, messages.CheckpointTaken(0, "lost", 0, 0.0))
    run.actions.append(ks.Disconnect(host))
    run.note(journal.HostLost(host, guard.why, guard.tampered, silent=guard.silent))
    if run.restart and run.state in (RunPhase.PLACING, RunPhase.RESUMING):
        attempts.withdraw_attempt(run, "%s lost before the start" % host)
    elif host in run.list_ranks():
        run.stop(Reason.LOST, "%s lost (%s)" % (host, guard.why))


def _on_guard_message(run: "KeeperRun", sent: "ks.FromGuard") -> None:
    message, host = sent.message, sent.host
    node = run.spec.head_spec.hosts.get(host)
    rank = getattr(message, "rank", None)
    handler = guard_messages.HANDLERS.get(type(message))
    if isinstance(message, Unreadable):
        run.note(journal.MessageIgnored(host, message.kind, message.why))
    elif handler is None or node is None or host not in run.clocks or (rank is not None and rank not in node.ranks):
        run.note(journal.MessageIgnored(host, type(message).__name__, "unexpected"))
    else:
        handler(run, host, message)


def _on_launcher_started(run: "KeeperRun", started: "ks.LauncherStarted") -> None:
    if run.state is not RunPhase.LAUNCHING:
        return
    run.enter(RunPhase.RUNNING)
    run.launched, run.since = True, run.now.steady
    if not run.restart:
        run.watched = run.limited = run.now.steady
    resume = run.kept.chosen.name if run.kept.chosen else ""
    run.send(messages.RanksPort(started.port, resume))
    placed = run.list_ranks()
    run.note(journal.Launched(started.pid, started.port, placed=placed, out=started.out, restart=run.restart))


def _on_launcher_ended(run: "KeeperRun", ended: "ks.LauncherEnded") -> None:
    if not run.launched:
        return
    run.launcher_ended, run.launcher_status = run.now.steady, ended.status
    number = -ended.status
    if run.state is RunPhase.RUNNING and number > 0 and number != signal.SIGPIPE:  # that is a dead proxy's doing
        known = number in list(signal.Signals)
        name = signal.Signals(number).name if known else "signal %d" % number
        run.stop(Reason.LOST, "mpirun on %s was killed by %s" % (run.spec.host, name))


def _on_rank_aborted(run: "KeeperRun", aborted: "ks.RankAborted") -> None:
    rank = aborted.rank
    hosts = [host for host, ranks in run.list_ranks().items() if rank in ranks]
    if run.state is RunPhase.RUNNING and rank not in run.ended and hosts:
        run.aborted[rank] = aborted.code
        run.stop(Reason.RANK, "rank %d on %s called MPI_Abort(%d)" % (rank, hosts[0], aborted.code))


def _on_stop_order(run: "KeeperRun", order: "Union[messages.StopRun, messages.KillRun]") -> None:
    run.halted = True
    if run.again:  # between two attempts
        run.reason, run.detail = Reason.STOPPED, order.why
    run.stop(Reason.STOPPED, order.why)
    if isinstance(order, messages.KillRun) and run.state is RunPhase.STOPPING:
        run.kill()


def _on_tick(run: "KeeperRun", tick: "ks.Tick") -> None:
    if tick.watched:
        run.watched = run.now.steady


def _on_vote(run: "KeeperRun", vote: "messages.Vote") -> None:
    run.voted = run.base.head_spec.split_hosts > 0


def _on_resumed(run: "KeeperRun", resumed: "journal.Resumed") -> None:
    if run.state is RunPhase.RUNNING:
        run.note(resumed)


_HANDLERS: "Dict[Type[Any], Callable[[KeeperRun, Any], None]]" = {
    ks.GuardConnected: _on_guard_connected,
    ks.GuardSilent: _on_guard_silent,
    ks.GuardLost: _on_guard_lost,
    ks.FromGuard: _on_guard_message,
    ks.LauncherStarted: _on_launcher_started,
    ks.LauncherFailed: lambda run, failed: run.stop(Reason.LAUNCH, failed.why),
    ks.LauncherEnded: _on_launcher_ended,
    ks.RankAborted: _on_rank_aborted,
    ks.Tick: _on_tick,
    messages.StopRun: _on_stop_order,
    messages.KillRun: _on_stop_order,
    messages.RequestStacks: inquiries.on_stacks_request,
    messages.Vote: _on_vote,
    journal.Stall: inquiries.on_stall,
    journal.Straggling: inquiries.on_straggling,
    journal.Resumed: _on_resumed,
}
