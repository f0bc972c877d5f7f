"""Which ends of a run its hosts start again, and what happens between two attempts."""

from typing import Any

import pytest
from hypothesis import given

from ipexctl.protocol import journal, messages
from ipexctl.protocol.journal import Reason
from ipexctl.remote.agent import keeper_state as ks
from tests.unit.agent.test_keeper_state import NODES, TWO, History, check_states, join, steps

WORDS = ["mpirun", *("-n", "2", "-host", "h0", "rank"), ":", *("-n", "2", "-host", "h1", "rank")]
MAY = TWO._replace(restarts=2, head=TWO.head_spec._replace(min_hosts=1, mpiexec=WORDS))
TRACE = 'Traceback:\n  File "train.py", line 7, in <module>\n  File "data.py", line 40, in load\nKeyError: 3\n'


def cleaned(history: History) -> History:
    return history.feed(*(ks.FromGuard(host, messages.Cleaned([])) for host in sorted(history.run.present)))


def failed(history: History, rank: int = 2, **how: Any) -> History:
    """A rank fails, the others are ended, and the guards have looked for what is left."""
    history.ends(rank, **{"status": 3, **how}).feed(ks.LauncherEnded(1)).after(0.2)
    return cleaned(history)


def begun(history: History) -> History:
    """The pause is over, and the guards have their new ranks."""
    history.after(40.0)
    number = history.run.restart
    hosts = [host for host, node in history.run.spec.head_spec.hosts.items() if node.ranks]
    return history.feed(*(ks.FromGuard(host, messages.Begun(number)) for host in hosts))


def ends(history: History) -> list[journal.AttemptEnded]:
    return [action.record for action in history.actions if isinstance(action, ks.EndAttempt)]


def test_a_failed_rank_is_followed_by_an_attempt_on_the_same_hosts_and_the_last_failure_by_none() -> None:
    history = failed(History(MAY).started())
    assert history.at(ks.RunPhase.RESTING)
    assert ends(history) == [journal.AttemptEnded(Reason.RANK, "rank 2 on b failed", 1, 2)]
    assert messages.Finish(stay=True) in history.sent()
    begun(history)
    assert history.at(ks.RunPhase.RUNNING)
    assert history.actions.count(ks.StartLauncher()) == 2
    assert history.records(journal.Launched)[-1].restart == 1
    begun(failed(history))
    assert history.run.restart == 2
    assert cleaned(failed(history)).at(ks.RunPhase.DONE)
    assert history.end().detail == "rank 2 on b failed; no restart is left of 2"


def test_the_pause_before_an_attempt_has_an_end_after_thousands_of_them() -> None:
    history = History(MAY._replace(restarts=9000)).started()
    history.run.restart = 5000
    assert begun(failed(history)).run.restart == 5001


def test_of_several_ranks_that_failed_none_is_named_as_the_reason() -> None:
    """The first to be heard of may have failed for want of another, which the report names."""
    history = History(MAY).started().ends(2, status=3).ends(0, status=1).feed(ks.LauncherEnded(1)).after(0.2)
    assert ends(cleaned(history)) == [journal.AttemptEnded(Reason.RANK, "several ranks failed", 1, 2)]


@pytest.mark.parametrize(
    ("how", "why"),
    [({"status": 2}, "exit status 2 is a refusal of its arguments"), ({"status": 0, "abort": None, "signal": 0}, "")],
)
def test_ends_that_are_the_scripts_own_wish_are_final(how: dict[str, Any], why: str) -> None:
    history = History(MAY).started()
    for rank in range(4) if not how["status"] else [1]:
        history.ends(rank, **how)
    history.feed(ks.LauncherEnded(0)).after(0.2)
    assert why in cleaned(history).end().detail
    assert ends(history) == []


def test_the_same_line_and_exception_twice_are_not_tried_a_third_time() -> None:
    history = begun(failed(History(MAY).started(), traceback=TRACE, error="KeyError: 3"))
    history = failed(history, traceback=TRACE, error="KeyError: 3")
    assert history.end().detail.endswith("failed there too, data.py:40: KeyError")
    library = TRACE + '  File "/e/lib/python3.11/site-packages/torch/serialization.py", line 1609, in load\n'
    history = begun(failed(History(MAY).started(), traceback=library, error="UnpicklingError: Weights\n\tof: many"))
    history = failed(history, traceback=library, error="UnpicklingError: Weights\n\tof: many")
    assert history.end().detail.endswith("failed there too, data.py:40: UnpicklingError"), "the script's own line"
    other = begun(failed(History(MAY).started(), traceback=TRACE, error="KeyError: 3"))
    assert failed(other, traceback=TRACE, error="KeyError: 4").at(ks.RunPhase.RESTING)


def test_the_users_stop_is_final_at_every_moment() -> None:
    stop = messages.StopRun("Ctrl-C")
    running = History(MAY).started().feed(stop, ks.LauncherEnded(1)).after(0.2)
    assert cleaned(running).end().reason == Reason.STOPPED
    stopping = History(MAY).started().ends(2, status=3).feed(stop, ks.LauncherEnded(1)).after(0.2)
    assert (cleaned(stopping).end().reason, ends(stopping)) == (Reason.RANK, [])
    finishing = History(MAY).started().ends(2, status=3).feed(ks.LauncherEnded(1)).after(0.2).feed(stop)
    assert cleaned(cleaned(finishing)).end().reason == Reason.STOPPED
    resting = failed(History(MAY).started()).feed(stop)
    assert resting.at(ks.RunPhase.FINISHING)
    assert resting.sent()[-1] == messages.Finish(stay=False)
    assert cleaned(resting).end().reason == Reason.STOPPED
    gathering = failed(History(MAY).started()).after(40.0).feed(stop).after(0.2)
    assert cleaned(gathering).end().reason == Reason.STOPPED


def test_no_attempt_begins_before_a_lost_host_has_ended_its_part() -> None:
    history = History(MAY).started().after(5.0, ks.GuardLost("b", "its guard ended"))
    history.feed(ks.LauncherEnded(1)).after(0.2)
    cleaned(history).after(31.0)
    assert history.at(ks.RunPhase.RESTING), "its wrappers may take the node lease and a moment"
    history.after(3.0)
    assert history.at(ks.RunPhase.PLACING)
    assert history.run.spec.size == 2
    history.feed(ks.FromGuard("a", messages.Begun(1)))
    assert history.records(journal.Launched)[-1].placed == {"a": [0, 1]}


def test_a_lost_host_that_is_back_and_clean_takes_part_again_and_one_with_something_left_does_not() -> None:
    for left, size in ([], 4), ([(7, "D")], 2):
        history = History(MAY).started().after(5.0, ks.GuardLost("b", "silent", silent=30.0)).feed(ks.LauncherEnded(1))
        history.after(0.2, *join("b", left=left))
        assert len(history.records(journal.HostBack)) == (not left)
        cleaned(history).after(40.0)
        assert history.run.spec.size == size


def test_too_few_hosts_are_waited_for_and_then_given_up() -> None:
    all_of_them = MAY._replace(head=MAY.head_spec._replace(min_hosts=0))
    history = (
        History(all_of_them).started().after(5.0, ks.GuardLost("b", "silent", silent=30.0)).feed(ks.LauncherEnded(1))
    )
    cleaned(history.after(0.2)).after(40.0)
    assert ends(history)[0].awaited == ["b"]
    assert history.at(ks.RunPhase.RESTING)
    history.after(60.0)
    assert cleaned(history).end().detail.endswith("b not back within 60 s")


@pytest.mark.parametrize(("refused", "state"), [(["b"], ks.RunPhase.FINISHING), ([], ks.RunPhase.RESTING)])
def test_a_host_that_was_started_anew_is_not_waited_for_long(refused: list[str], state: ks.RunPhase) -> None:
    """It answers, and has no guard that could come back: it was waited for for 15 minutes after a split."""
    split = MAY._replace(head=MAY.head_spec._replace(min_hosts=2, split_hosts=1))
    history = History(split).started().after(5.0, ks.GuardLost("b", "silent", silent=30.0)).feed(ks.LauncherEnded(1))
    cleaned(history.after(0.2)).after(40.0)
    assert messages.FindLeader() in history.sent()
    history.feed(ks.FromGuard("a", messages.NoLeader(refused))).after(59.0)
    assert history.at(ks.RunPhase.RESTING)
    assert history.after(2.0).at(state)
    if refused:
        assert history.run.detail.endswith("; b reached again, without its part of the run (a reboot?)")


def test_a_host_lost_before_the_next_start_costs_no_restart() -> None:
    history = failed(History(MAY).started()).after(2.0)
    assert (history.run.state, history.run.restart) == (ks.RunPhase.PLACING, 1)
    history.feed(ks.GuardLost("b", "its guard ended"))
    assert (history.run.state, history.run.restart) == (ks.RunPhase.RESTING, 0)
    begun(history)
    assert (history.run.restart, history.run.spec.size) == (1, 2)


def test_a_stall_is_started_again_where_that_was_asked_for_and_a_time_limit_never() -> None:
    stall = journal.Stall([0, 1, 2, 3], True, True, 120.0, {})
    for restart in (True, False):
        head = MAY.head_spec._replace(stall_restart=restart, stall_kill=True)
        history = History(MAY._replace(head=head)).started().feed(stall)
        history.feed(*(ks.FromGuard(host, messages.StacksReported()) for host in NODES)).after(1.0, ks.LauncherEnded(1))
        cleaned(history.after(0.2))
        assert history.at(ks.RunPhase.RESTING) is restart
    limited = History(MAY._replace(timings=MAY.timings._replace(time_limit=100.0))).started().after(50.0)
    begun(failed(limited)).after(11.0)
    assert limited.run.reason == Reason.LIMIT, "the limit is that of all attempts together"


@given(steps)
def test_any_order_ends_in_done_also_with_restarts(history_of: list[tuple[float, ks.Input]]) -> None:
    history = History(MAY)
    for seconds, what in history_of:
        history.after(seconds, what)
    history.feed(messages.StopRun("enough"))
    for _ in range(6):
        history.after(60.0)
    check_states(history.states)
    assert history.at(ks.RunPhase.DONE)
    assert len([action for action in history.actions if isinstance(action, ks.Close)]) == 1
