"""What the keeper makes of the messages of guards: steps of `keeper_steps`. Loads of ranks (`RankLoads`) are for the
progress monitor, and what guards say between two attempts is in `attempts`."""

from typing import Any, Callable, Dict, Iterable, Set, Type, TypeVar

from ipexctl.protocol import journal, messages, rank_records
from ipexctl.protocol.journal import Reason
from ipexctl.remote.agent import attempts, inquiries, keeping, meeting
from ipexctl.remote.agent.keeper_state import Doubt, HostClock, KeeperRun, RankFailure, ReleaseShims, RunPhase

R = TypeVar("R")


def _on_pong(run: "KeeperRun", host: str, pong: "messages.Pong") -> None:
    """The clock is measured by the shortest round trip so far; older ones count for less, for clocks drift."""
    known, trip = run.clocks[host], run.now.clock - pong.sent
    best = trip if known.within is None else min(trip, known.within)
    offset = known.offset
    if best == trip:
        offset = pong.clock - (pong.sent + run.now.clock) / 2
    run.clocks[host] = HostClock(offset, 1.1 * best)
    if host in run.silent:
        run.silent.discard(host)
        run.note(journal.HostSilent(host, 0.0))


def _convert_to_head_time(run: "KeeperRun", host: str, record: "R") -> "R":
    """Returns a host's record with its time moved to the head's clock, and the host's name as the keeper knows it."""
    named: Any = record
    changes: Dict[str, Any] = {"at": run.convert_to_head_time(host, named.at)}
    if hasattr(record, "host"):
        changes["host"] = host
    return named._replace(**changes)  # type: ignore[no-any-return]


# Ranks.


def _on_rank_record(run: "KeeperRun", host: str, record: "Any") -> None:
    run.note(_convert_to_head_time(run, host, record))


def _on_rank_started(run: "KeeperRun", host: str, started: "rank_records.RankStarted") -> None:
    run.started.add(started.rank)
    _on_rank_record(run, host, started)


def _on_meeting_record(run: "KeeperRun", host: str, record: "Any") -> None:
    meeting.add_record(run.meetings, record)
    while run.working in run.ended or run.meetings.get(run.working, meeting.RankMeeting()).works:
        run.working += 1
    going_on = set(range(run.spec.size)) - set(run.ended) if run.working == run.spec.size else ()
    if run.state is RunPhase.RUNNING and going_on:
        judge_worlds(run, going_on)


def judge_worlds(run: "KeeperRun", awaited: "Iterable[int]") -> None:
    """Notes it where the ranks work apart, and where they no longer do."""
    separate = meeting.find_separate_worlds(run.meetings, awaited)
    if separate is not None and separate.worlds != run.worlds:
        run.worlds = separate.worlds
        run.note(separate)


def note_uneven_collectives(run: "KeeperRun") -> None:
    """Notes it where a rank took part in fewer collectives than others, with which it trained on all the same."""
    places = {rank: host for host, ranks in run.list_ranks().items() for rank in ranks}
    uneven = meeting.find_uneven_collectives(run.meetings, places)
    if uneven:
        rank, text = uneven
        run.note(rank_records.RankNote(rank, places[rank], text, run.now.clock))


def _on_rank_ended(run: "KeeperRun", host: str, end: "rank_records.RankEnded") -> None:
    end = _convert_to_head_time(run, host, end)
    explained = end.status and (end.error or end.exited)
    if end.rank in run.aborted and not explained:  # however it ended while it waited for that
        end = end._replace(signal=0, abort=run.aborted[end.rank], lost=False)
        if end.error:  # the exception is the cause, the call what followed
            end = end._replace(status=run.aborted[end.rank] & 0xFF or 1, abort=None)
    run.ended[end.rank] = run.now.steady
    run.started.add(end.rank)
    running = run.state is RunPhase.RUNNING
    own = running or end.abort is not None or end.rank in run.aborted or _ended_before_stop(run, host, end)
    end = end._replace(by_us=not own)
    run.note(end)
    alone = run.spec.independent and not run.spec.fail_fast  # the other instances do not need it
    if (end.status == 0 and end.abort is None) or end.by_us or alone:
        return
    if end.lost:  # killed by somebody, or by the kernel in the script's place
        run.stop(Reason.LOST, "the wrapper of rank %d on %s was killed" % (end.rank, host))
        return
    if running:
        resumed = run.kept.chosen.name if run.kept.chosen else ""
        run.failure = RankFailure(end.status, attempts.describe_place(end), resumed)
    if run.reason == Reason.RANK:  # which of them is the cause, what they wrote shows
        run.detail = "several ranks failed"
    run.stop(Reason.RANK, "rank %d on %s failed" % (end.rank, host))


def _ended_before_stop(run: "KeeperRun", host: str, end: "rank_records.RankEnded") -> bool:
    """Returns whether an end that is reported after the stop came before it, so that it is the rank's own."""
    if run.reason == Reason.RANK and not end.lost:  # after another stop it may have failed for want of the others
        return not end.ending  # nobody had asked it to end: its host's one clock tells, without a doubt
    if run.stopped_at is None:
        return False
    failed_at = end.raised or end.at  # a script whose exception is out may hang while its Python ends
    return failed_at < run.stopped_at - (run.clocks[host].within or 0.0)


# The launcher's part.


def _on_rank_dropped(run: "KeeperRun", host: str, dropped: "rank_records.RankDropped") -> None:
    """The launcher ends ranks where one has called MPI_Abort: that one's own end, which is to come, explains it."""
    if dropped.rank not in run.ended and run.state is RunPhase.RUNNING:
        _start_doubt(run, {dropped.rank}, Reason.LOST, "the launcher ended rank %d on %s" % (dropped.rank, host))


def _on_proxy_ended(run: "KeeperRun", host: str, proxy: "messages.ProxyEnded") -> None:
    ranks = set(run.list_ranks().get(host, ()))
    if not ranks & run.started:
        detail = "mpirun's proxy on %s ended before it started a rank" % host
        if proxy.why:
            detail = "%s: %s" % (detail, proxy.why)
        _start_doubt(run, ranks, Reason.LAUNCH, detail)
    elif ranks - set(run.ended):
        _start_doubt(run, ranks, Reason.LOST, "mpirun's proxy on %s ended before its ranks" % host)
    run.actions.append(ReleaseShims(host))


def _start_doubt(run: "KeeperRun", ranks: "Set[int]", reason: str, detail: str) -> None:
    if run.doubt is None or run.doubt.ranks <= set(run.ended):
        run.doubt = Doubt(reason, detail, run.now.steady + run.spec.timings.suspicion, ranks)


def _on_processes_killed(run: "KeeperRun", host: str, killed: "messages.ProcessesKilled") -> None:
    run.note(journal.Killed(host, killed.processes))


def _on_cleaned(run: "KeeperRun", host: str, cleaned: "messages.Cleaned") -> None:
    run.cleaned[host] = cleaned.left
    if cleaned.left:
        run.note(journal.Leftovers(host, cleaned.left))
    if cleaned.strays and run.reason == Reason.DONE:  # else they are what we stopped
        run.note(journal.Strays(host, cleaned.strays))


# Hosts that the run waits for.


def _on_host_waits(run: "KeeperRun", host: str, waits: "messages.HostWaits") -> None:
    if run.taking and not waits.taken:  # another run was sooner on this host: none is held meanwhile
        run.taking = False
        for name, other in run.waits.items():
            if other.taken:
                run.send(messages.LeaveHost(), name)
                run.waits[name] = other._replace(taken=False)
    run.waits[host] = waits
    holders = {name: other.holder for name, other in sorted(run.waits.items()) if other.holder}
    hosts = {name: (holder.run, holder.owner, holder.started) for name, holder in holders.items()}
    waiting = journal.Waiting(hosts, max(other.before for other in run.waits.values()))
    if waiting != run.waiting and set(run.waits) == set(run.spec.head_spec.hosts):
        run.waiting = waiting
        run.note(waiting)


# Checkpoints.


def _on_checkpoints_found(run: "KeeperRun", host: str, report: "messages.CheckpointsFound") -> None:
    known = [part for part in report.parts if all(len(file) == 2 for file in part.files.values())]
    parts = [each if each.owner else _convert_to_head_time(run, host, each) for each in known]
    run.kept = keeping.add_report(run.kept, host, report._replace(parts=parts))
    _order_copies(run)


def _on_checkpoint_taken(run: "KeeperRun", host: str, taken: "messages.CheckpointTaken") -> None:
    run.kept, notes = keeping.end_order(run.kept, host, taken)
    for record in notes:
        run.note(record)
    _order_copies(run)


def _order_copies(run: "KeeperRun") -> None:
    if run.spec.keep is None or run.state is not RunPhase.RUNNING:
        return
    hosts = [host for host in run.spec.head_spec.hosts if host in run.begun]
    run.kept, orders = keeping.plan_copies(run.kept, hosts, run.spec.keep)
    for order in orders:
        run.send(order.message, order.host)


HANDLERS: "Dict[Type[Any], Callable[[KeeperRun, str, Any], None]]" = {
    messages.Pong: _on_pong,
    messages.Joined: attempts.on_joined,
    messages.Begun: attempts.on_begun,
    messages.NoLeader: attempts.on_no_leader,
    messages.HostWaits: _on_host_waits,
    messages.CheckpointsFound: _on_checkpoints_found,
    messages.CheckpointTaken: _on_checkpoint_taken,
    messages.StacksReported: inquiries.on_stacks_reported,
    messages.ProxyEnded: _on_proxy_ended,
    messages.ProcessesKilled: _on_processes_killed,
    messages.Cleaned: _on_cleaned,
    rank_records.RankStack: _on_rank_record,
    rank_records.RankStarted: _on_rank_started,
    rank_records.RankStage: _on_rank_record,
    rank_records.RankRendezvous: _on_rank_record,
    rank_records.RankWorld: _on_meeting_record,
    rank_records.RankAlone: _on_meeting_record,
    rank_records.RankNote: _on_rank_record,
    rank_records.RankDropped: _on_rank_dropped,
    rank_records.RankEnded: _on_rank_ended,
}
