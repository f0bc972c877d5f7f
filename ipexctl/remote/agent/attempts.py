"""From one attempt of a run to the next, or to its end: steps of `keeper_steps`."""

import re
from typing import List, Optional

from ipexctl.protocol import journal, messages, rank_records
from ipexctl.protocol.journal import Reason
from ipexctl.protocol.rank_layout import build_rank_layout, choose_hosts, place_spec
from ipexctl.remote.agent.keeper_state import Close, Dissolve, EndAttempt, KeeperRun, RankFailure, RunPhase, Takeover

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[\d.]*/")
_USAGE = 2  # the status of a script that refuses its arguments, as argparse's


def describe_place(end: "rank_records.RankEnded") -> str:
    """Returns where a rank failed, the script's own line if there is one, with its exception; "" if unknown."""
    frames = _FRAME.findall(end.traceback)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    return "%s:%s: %s" % ((own or frames)[-1] + (end.error,)) if frames and end.error else ""


def find_objection(run: "KeeperRun") -> "Optional[str]":
    """Returns why this attempt is followed by no other, "" for a reason that the user knows; None where one follows."""
    restarts = run.spec.restarts
    if not restarts or run.halted:
        return ""
    stalled = run.reason == Reason.LIMIT and run.verdict and run.spec.head_spec.stall_restart
    failed = run.reason in (Reason.RANK, Reason.LOST) or (run.reason == Reason.LAUNCH and run.restart > 0)
    if not failed and not stalled:
        return ""
    failure, before = run.failure, run.failure_before
    if run.reason == Reason.RANK and failure.status == _USAGE:
        return "not started again: exit status 2 is a refusal of its arguments"
    same = failure.where and failure[1:] == before[1:]  # no newer checkpoint is known since
    if run.reason == Reason.RANK and same:
        place = ": ".join(failure.where.partition("\n")[0].split(": ")[:2])  # without the message
        return "not started again: the attempt before failed there too, %s" % place
    return "no restart is left of %d" % restarts if run.restart >= restarts else None


def begin_attempt(run: "KeeperRun", number: int, hosts: "List[str]") -> None:
    """Tells all hosts that are there which ranks they have, if any."""
    layout = build_rank_layout(number, run.base.head_spec, hosts)
    run.restart = number
    run.failure_before, run.failure = run.failure, RankFailure()
    run.unguarded.clear()
    run.begin_attempt(place_spec(run.base, layout)._replace(wait=False))
    run.enter(RunPhase.PLACING, run.spec.timings.ready_timeout)
    for host in sorted(run.present):
        run.send(messages.Begin(layout), host)


def finish_attempt(run: "KeeperRun") -> None:
    """Ranks and launcher have ended, or are waited for no longer."""
    run.reason = run.reason or Reason.DONE
    objection = find_objection(run)
    run.again = objection is None
    if objection:
        run.detail = "%s; %s" % (run.detail, objection)
    _finish(run)


def _finish(run: "KeeperRun") -> None:
    run.cleaned = {}
    run.enter(RunPhase.FINISHING, run.spec.timings.clean)
    run.send(messages.Finish(stay=run.again))


def give_up(run: "KeeperRun", reason: str, detail: str) -> None:
    """No other attempt follows after all: the guards, which have stayed for it, go to others who lead, or end."""
    run.again, run.reason, run.detail = False, reason, detail
    run.send(messages.FindLeader())
    _finish(run)


def check_finishing(run: "KeeperRun") -> None:
    """Who leaves for another leader, or is lost, is not present any more."""
    if not run.present <= set(run.cleaned) and not run.is_late():
        return
    if run.again and run.halted:
        give_up(run, run.reason, run.detail)
    elif run.again:
        _rest(run)
    else:
        run.actions.append(Close(journal.RunEnd(run.spec.run, run.reason, run.detail, restart=run.restart)))
        run.enter(RunPhase.DONE)


def _rest(run: "KeeperRun") -> None:
    """The attempt is over. A host on which something is left takes no part in another one; one that has not reported
    may be cut off, and its ranks at work until its lease is over."""
    timings = run.spec.timings
    for host in sorted(run.present):
        if host not in run.cleaned:
            run.fences[host] = run.now.steady + timings.node_lease + timings.fence
        if run.cleaned.get(host, True):
            run.present.discard(host)
            run.lost.add(host)
    awaited = [] if choose_next_hosts(run) else sorted(run.lost)
    run.actions.append(
        EndAttempt(journal.AttemptEnded(run.reason, run.detail, run.restart + 1, run.spec.restarts, awaited))
    )
    run.enter(RunPhase.RESTING, min(timings.backoff * 2 ** min(run.restart, 60), timings.longest_backoff))


def withdraw_attempt(run: "KeeperRun", why: str) -> None:
    """A host was lost before the ranks were started again: the hosts are chosen anew, and that costs no restart."""
    run.restart, run.failure, run.again = run.restart - 1, run.failure_before, True
    run.reason, run.detail = Reason.LOST, why
    run.enter(RunPhase.RESTING)


def choose_next_hosts(run: "KeeperRun") -> "List[str]":
    """Returns the hosts of the next attempt; none where too few are there."""
    plan = run.base.head_spec
    if run.voted:
        plan = plan._replace(min_hosts=plan.split_hosts)
    return choose_hosts(plan, run.present, list(run.list_ranks()))


_STARTED_ANEW = "reached again, without its part of the run (a reboot?)"


def check_resting(run: "KeeperRun") -> None:
    timings, steady = run.spec.timings, run.now.steady
    if run.halted:
        give_up(run, run.reason, run.detail)
        return
    if run.takeover:
        _check_takeover(run, run.takeover)
        return
    fenced = [until for host, until in run.fences.items() if host not in run.present]
    if steady < max([run.deadline, *fenced]):
        return
    hosts = choose_next_hosts(run)
    if hosts:
        begin_attempt(run, run.restart + 1, hosts)
        return
    if run.asked is not None and steady < run.asked + timings.rejoin:
        return
    patience = timings.rejoin
    if run.base.head_spec.split_hosts and run.present and not run.lost <= run.unguarded:
        patience = timings.away
    if run.asked is None or steady < max(fenced, default=0.0) + patience:
        run.asked = steady
        run.send(messages.FindLeader())
        return
    parts = [run.detail]
    for names, why in ((run.lost - run.unguarded, "not back within %.0f s" % patience), (run.unguarded, _STARTED_ANEW)):
        if names:
            parts.append("%s %s" % (", ".join(sorted(names)), why))
    give_up(run, Reason.LOST, "; ".join(parts))


def _check_takeover(run: "KeeperRun", takeover: "Takeover") -> None:
    """The ranks of the attempt before have ended for certain before others start.

    Each attempt has most of the hosts, and so have those that are here: one of them at least had ranks in the last one,
    and knows which hosts had. None of these has heard its keeper since, so that no host learned later that most were
    heard (`keeper_state.find_heard`): within a lease all have ended their parts."""
    timings, hosts = run.spec.timings, choose_next_hosts(run)
    if not hosts:
        if run.now.steady > run.deadline + timings.gather:
            run.send(messages.Release())
            run.actions.append(Dissolve())
            run.enter(RunPhase.DONE)
        return
    away = [host for host in run.spec.head_spec.hosts if host not in run.present]
    heard = max(takeover.heard.values())
    over = heard + timings.node_lease + timings.fence
    if takeover.ranked.intersection(away) and run.now.steady < over:
        return
    for host in sorted(away):
        why = "out of reach of %s, which leads now" % run.spec.host
        run.note(journal.HostLost(host, why, silent=run.now.steady - heard))
    run.takeover = None
    run.reason, run.detail = Reason.LOST, "%s lost" % takeover.former
    if run.restart >= run.spec.restarts:
        give_up(run, Reason.LOST, "%s; no restart is left of %d" % (run.detail, run.restart))
        return
    run.note(journal.AttemptEnded(Reason.LOST, run.detail, run.restart + 1, run.spec.restarts))
    begin_attempt(run, run.restart + 1, hosts)


# What guards say between two attempts.


def on_joined(run: "KeeperRun", host: str, joined: "messages.Joined") -> None:
    """A guard has come, or is back: without ranks, so that it can have some where nothing is left of others."""
    run.cleaned[host] = joined.left
    if joined.left:
        run.note(journal.Leftovers(host, joined.left))
    else:
        if host in run.lost and not run.takeover:
            run.note(journal.HostBack(host))
        run.lost.discard(host)
        run.unguarded.discard(host)
        run.present.add(host)
    if joined.port:
        run.ports[host] = joined.port
    run.send(messages.Leaders(dict(run.ports)), "" if joined.port else host)
    if run.takeover:
        run.takeover.heard[host] = run.now.steady - joined.away
        run.takeover.former = joined.leader
        run.takeover.ranked.update(joined.hosts or run.spec.head_spec.hosts)
        run.limited = min(run.limited or run.now.steady, run.now.steady - joined.running)
        run.restart = max(run.restart, joined.attempt)


def on_begun(run: "KeeperRun", host: str, begun: "messages.Begun") -> None:
    if run.state is RunPhase.PLACING and begun.number == run.restart:
        run.begun.add(host)
        if begun.taken:
            text = "on %s another program answers at %s, the sign of --ready, before this run has started"
            run.stop(Reason.LAUNCH, text % (host, begun.taken))


def on_no_leader(run: "KeeperRun", host: str, answer: "messages.NoLeader") -> None:
    """A lost host that was reached, and is not back by now, has no guard that could come back: it was started anew."""
    run.unguarded.update(run.lost.intersection(answer.refused))
