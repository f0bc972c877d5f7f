"""The keeper's state machine, fed with histories: no clock, no process, no connection."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st

from ipexctl.protocol import journal, messages
from ipexctl.protocol.codec import Unreadable
from ipexctl.protocol.journal import Reason
from ipexctl.protocol.rank_records import RankAlone, RankDropped, RankEnded, RankNote, RankStage, RankStarted, RankWorld
from ipexctl.protocol.run_spec import KeepSpec, NodeSpec, RunSpec
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent import keeper_state as ks
from ipexctl.remote.agent.keeper_steps import next_step
from tests.tables import read_table
from tests.unit.agent.runs import SPEC

T = TypeVar("T")
CLOCK = 1_000_000.0  # Unix seconds at steady 0
NODES = {"a": NodeSpec("h0", [0, 1], "/a", "python"), "b": NodeSpec("h1", [2, 3], "/b", "python")}
TWO = SPEC._replace(size=4, head=SPEC.head_spec._replace(hosts=NODES), timings=Timings())
HOST_OF = {rank: host for host, node in NODES.items() for rank in node.ranks}


def join(host: str, **known: Any) -> tuple[ks.Input, ks.Input]:
    """The first words of a guard, and what it knows of the run."""
    return ks.GuardConnected(host, CLOCK), ks.FromGuard(host, messages.Joined(**known))


class History:
    """A run, what it asked for, and the states it went through. Time passes by ``after``."""

    def __init__(self, spec: RunSpec = TWO) -> None:
        self.steady = 0.0
        self.run = ks.KeeperRun(spec, self.now)
        self.actions: list[ks.Action] = []
        self.states = [self.run.state]

    def at(self, state: ks.RunPhase) -> bool:
        return self.run.state is state

    @property
    def now(self) -> ks.Moment:
        return ks.Moment(self.steady, CLOCK + self.steady)

    def feed(self, *inputs: ks.Input) -> History:
        for what in inputs:
            actions = next_step(self.run, what, self.now)
            self.actions += actions
            self.states.append(self.run.state)
            if ks.StartLauncher() in actions:
                self.feed(ks.LauncherStarted(99, 4000))
        return self

    def after(self, seconds: float, *inputs: ks.Input) -> History:
        self.steady += seconds
        return self.feed(*(inputs or (ks.Tick(watched=False),)))

    def joined(self) -> History:
        """All guards are there, and have their ranks."""
        self.feed(*(what for host in NODES for what in join(host)))
        return self.feed(*(ks.FromGuard(host, messages.Begun(self.run.restart)) for host in NODES))

    def started(self) -> History:
        return self.joined().feed(
            *(ks.FromGuard(host, RankStarted(rank, host, 1, 2, [], CLOCK)) for rank, host in HOST_OF.items())
        )

    def ends(self, rank: int, **how: Any) -> History:
        host = HOST_OF[rank]
        return self.feed(ks.FromGuard(host, RankEnded(rank, host, at=self.now.clock, **how)))

    def records(self, kind: type[T]) -> list[T]:
        return [
            action.record for action in self.actions if isinstance(action, ks.Note) and isinstance(action.record, kind)
        ]

    def sent(self) -> list[messages.Message]:
        return [action.message for action in self.actions if isinstance(action, ks.Send)]

    def end(self) -> journal.RunEnd:
        self.feed(*(ks.FromGuard(host, messages.Cleaned([])) for host in sorted(self.run.present)))
        assert self.run.state is ks.RunPhase.DONE
        [closed] = [action.end for action in self.actions if isinstance(action, ks.Close)]
        return closed


def read_state(run: ks.KeeperRun) -> dict[str, Any]:
    """All that it knows but the last actions."""
    return {name: copy.copy(value) for name, value in vars(run).items() if name != "actions"}


def test_all_guards_start_the_launcher_and_all_good_ends_end_the_run() -> None:
    history = History().feed(*join("a"))
    assert history.at(ks.RunPhase.GATHERING)
    history.started()
    assert history.at(ks.RunPhase.RUNNING)
    assert messages.RanksPort(4000) in history.sent()
    for rank in range(4):
        history.ends(rank, status=0)
    assert history.at(ks.RunPhase.RUNNING), "the launcher has a moment for its own end"
    history.feed(ks.LauncherEnded(0))
    assert history.at(ks.RunPhase.FINISHING)
    assert history.end() == journal.RunEnd(SPEC.run, Reason.DONE)


def test_a_guard_that_does_not_join_in_time_is_named() -> None:
    history = History().feed(*join("a")).after(31.0)
    assert (history.run.reason, history.run.detail) == (Reason.LAUNCH, "no guard on b")
    assert history.after(0.2).end().reason == Reason.LAUNCH
    history = History().feed(*join("a"), *join("b"), ks.FromGuard("a", messages.Begun(0))).after(31.0)
    assert (history.run.reason, history.run.detail) == (Reason.LAUNCH, "no guard on b")


def test_a_sign_that_another_program_gives_already_ends_the_run_before_its_start() -> None:
    history = History().feed(*join("a"), *join("b"), ks.FromGuard("b", messages.Begun(0, "http://192.0.2.1:80/")))
    assert (history.run.reason, ks.StartLauncher() in history.actions) == (Reason.LAUNCH, False)
    assert history.run.detail.startswith("on b another program answers at http://192.0.2.1:80/")


def test_a_launcher_that_cannot_be_started_ends_the_run() -> None:
    run = ks.KeeperRun(TWO, ks.Moment(0.0, CLOCK))
    joins = [what for host in NODES for what in join(host)]
    for what in [*joins, *(ks.FromGuard(host, messages.Begun(0)) for host in NODES)]:
        actions = next_step(run, what, run.now)
    assert (run.state, actions) == (ks.RunPhase.LAUNCHING, [ks.StartLauncher()])
    next_step(run, ks.LauncherFailed("cannot start mpirun: no"), run.now)
    assert (run.reason, run.detail) == (Reason.LAUNCH, "cannot start mpirun: no")


def test_a_failed_rank_stops_the_run_and_the_first_reason_stays() -> None:
    history = History().started().ends(2, status=3)
    assert (history.run.state, history.run.reason) == (ks.RunPhase.STOPPING, Reason.RANK)
    history.feed(messages.StopRun("late")).ends(0, status=None, signal=15, stopped=True, ending=True)
    assert [(end.rank, end.by_us) for end in history.records(RankEnded)] == [(2, False), (0, True)]
    history.after(11.0)
    assert history.at(ks.RunPhase.KILLING)
    history.after(5.0)
    assert history.at(ks.RunPhase.FINISHING)
    assert history.end().reason == Reason.RANK


@pytest.mark.parametrize(("how", "by_us"), read_table("keeper_state/own_failures"))
@pytest.mark.parametrize("at", [CLOCK + 0.1999, CLOCK + 0.2001])
def test_whether_a_rank_failed_by_itself_is_by_its_hosts_clock(how: dict[str, Any], by_us: bool, at: float) -> None:
    history = History().started().after(0.1, ks.FromGuard("a", messages.Pong(CLOCK, CLOCK + 0.05)))  # ± 0.11 s
    history.after(0.1, ks.FromGuard("a", RankEnded(1, "a", status=2, at=CLOCK + 0.2)))
    history.after(0.01, ks.FromGuard("a", RankEnded(0, "a", at=at, **how)))
    assert [(end.rank, end.by_us) for end in history.records(RankEnded)] == [(1, False), (0, by_us)]


def test_after_another_stop_than_a_ranks_the_ends_of_ranks_follow_from_it() -> None:
    history = History().started().feed(ks.FromGuard("b", messages.Pong(CLOCK, CLOCK)), messages.StopRun("SIGINT"))
    history.after(0.1, ks.FromGuard("b", RankEnded(2, "b", status=1, at=CLOCK + 0.05)))
    assert [(end.rank, end.by_us) for end in history.records(RankEnded)] == [(2, True)]


def test_a_rank_that_was_killed_before_the_stop_is_no_rank_that_we_ended() -> None:
    history = History().started().feed(ks.FromGuard("a", messages.Pong(CLOCK, CLOCK)))
    history.after(0.2, ks.FromGuard("a", RankEnded(1, "a", status=2, at=CLOCK + 0.1)))
    history.feed(ks.FromGuard("a", RankEnded(0, "a", signal=9, at=CLOCK + 0.1)))
    history.feed(ks.FromGuard("b", RankEnded(2, "b", signal=9, ending=True, at=CLOCK + 0.3)))
    assert [(end.rank, end.by_us) for end in history.records(RankEnded)] == [(1, False), (0, False), (2, True)]


def test_a_proxy_that_ends_first_is_forgiven_when_a_ranks_own_end_explains_it() -> None:
    history = History().started().feed(ks.FromGuard("b", messages.ProxyEnded("")))
    assert ks.ReleaseShims("b") in history.actions
    assert history.at(ks.RunPhase.RUNNING)
    history.after(0.5).feed(ks.FromGuard("a", RankEnded(0, "a", status=1, at=CLOCK)))
    assert (history.run.reason, history.run.detail) == (Reason.RANK, "rank 0 on a failed")


def test_a_proxy_that_ends_without_a_ranks_end_is_a_loss() -> None:
    history = History().started().feed(ks.FromGuard("b", messages.ProxyEnded(""))).after(5.5)
    assert (history.run.reason, history.run.detail) == (Reason.LOST, "mpirun's proxy on b ended before its ranks")


@pytest.mark.parametrize("ended", [[], [ks.LauncherEnded(-13)]])
def test_a_host_where_the_proxy_cannot_work_is_named(ended: list[ks.LauncherEnded]) -> None:
    """mpirun's end was the cause (exit 6) where it had started the ranks of another host."""
    history = History().joined().feed(*(ks.FromGuard("a", RankStarted(rank, "a", 1, 2, [], CLOCK)) for rank in (0, 1)))
    history.feed(ks.FromGuard("b", messages.ProxyEnded("no hydra_pmi_proxy")), *ended).after(5.5)
    assert (history.run.reason, history.run.detail) == (
        Reason.LAUNCH,
        "mpirun's proxy on b ended before it started a rank: no hydra_pmi_proxy",
    )


def test_ends_that_a_lossy_network_delays_are_waited_for_where_mpirun_ended_well() -> None:
    """It was lost after 3 s (exit 6), with each rank ended well."""
    history = History().started().ends(0, status=0).ends(1, status=0).feed(ks.LauncherEnded(0)).after(20.0)
    assert history.at(ks.RunPhase.RUNNING)
    history.feed(ks.FromGuard("b", messages.ProxyEnded(""))).after(8.0)
    assert history.ends(2, status=0).ends(3, status=0).end().reason == Reason.DONE


@pytest.mark.parametrize(("status", "seconds"), [(0, 30.0), (1, 3.0)])
def test_ends_that_never_come_are_a_loss(status: int, seconds: float) -> None:
    history = History().started().ends(0, status=0).feed(ks.LauncherEnded(status)).after(seconds - 0.1)
    assert history.at(ks.RunPhase.RUNNING)
    history.after(0.2)
    assert (history.run.reason, history.run.detail) == (
        Reason.LOST,
        f"mpirun ended with status {status} before its ranks",
    )


def test_a_proxy_that_ended_before_the_word_of_its_ranks_is_no_loss_while_others_work() -> None:
    history = History().started().feed(ks.FromGuard("b", messages.ProxyEnded("")))
    history.after(1.0).ends(2, status=0).ends(3, status=0).after(60.0)
    assert history.at(ks.RunPhase.RUNNING), "ranks 0 and 1 may work for days"
    history.feed(ks.FromGuard("a", messages.ProxyEnded(""))).after(5.5)
    assert (history.run.reason, history.run.detail) == (Reason.LOST, "mpirun's proxy on a ended before its ranks")


def test_a_killed_wrapper_ends_the_run() -> None:
    history = History().started().ends(1, lost=True).feed(ks.LauncherEnded(-9))
    assert (history.run.reason, history.run.detail) == (Reason.LOST, "the wrapper of rank 1 on a was killed")
    assert [(end.rank, end.by_us) for end in history.records(RankEnded)] == [(1, False)]


def test_a_killed_mpirun_is_the_cause_and_not_what_its_ranks_do_then() -> None:
    history = History().started().feed(ks.FromGuard("a", messages.Pong(CLOCK, CLOCK)))
    history.feed(ks.FromGuard("a", RankDropped(0, "a", CLOCK))).after(0.2, ks.LauncherEnded(-9))
    history.feed(ks.FromGuard("a", RankEnded(1, "a", status=1, at=CLOCK + 0.3)))
    assert (history.run.reason, history.run.detail) == (Reason.LOST, "mpirun on a was killed by SIGKILL")
    assert [(end.rank, end.by_us) for end in history.records(RankEnded)] == [(1, True)]


def test_ranks_that_the_launcher_gives_up_are_explained_by_the_one_that_called_mpi_abort() -> None:
    history = History().started()
    for rank, host in HOST_OF.items():
        history.feed(ks.FromGuard(host, RankDropped(rank, host, CLOCK)))
    history.feed(ks.LauncherEnded(7)).after(1.0)
    assert history.at(ks.RunPhase.RUNNING)
    history.ends(2, abort=7).ends(0, signal=15, ending=True)
    assert (history.run.reason, history.run.detail) == (Reason.RANK, f"rank 2 on {HOST_OF[2]} failed")
    assert [(end.rank, end.by_us) for end in history.records(RankEnded)] == [(2, False), (0, True)]


def test_a_rank_that_the_launcher_gives_up_is_a_loss_where_nothing_explains_it() -> None:
    history = History().started().feed(ks.FromGuard("b", RankDropped(2, "b", CLOCK))).after(4.9)
    assert history.at(ks.RunPhase.RUNNING)
    history.after(0.2)
    assert (history.run.reason, history.run.detail) == (Reason.LOST, "the launcher ended rank 2 on b")


def test_a_rank_that_the_launcher_gives_up_may_still_end_well() -> None:
    history = History().started().feed(ks.FromGuard("b", RankDropped(2, "b", CLOCK)))
    for rank in HOST_OF:
        history.ends(rank, status=0)
    assert history.feed(ks.LauncherEnded(0)).end().reason == Reason.DONE


def test_who_called_mpi_abort_is_known_from_the_launcher_where_the_rank_itself_does_not_say_it() -> None:
    history = History().started().feed(ks.RankAborted(2, 0), ks.RankAborted(9, 1))
    assert (history.run.reason, history.run.detail) == (Reason.RANK, "rank 2 on b called MPI_Abort(0)")
    history.ends(2, signal=15, ending=True).ends(3, signal=15, ending=True)
    ends = [(end.rank, end.abort, end.signal, end.by_us) for end in history.records(RankEnded)]
    assert ends == [(2, 0, 0, False), (3, None, 15, True)]


def test_who_exited_with_a_code_of_its_own_did_not_call_mpi_abort_though_the_launcher_says_so() -> None:
    """MPI ends the job of a script that calls sys.exit by the same call."""
    history = History().started().feed(ks.RankAborted(2, 3)).ends(2, status=3, exited=True)
    assert [(end.status, end.abort) for end in history.records(RankEnded)] == [(3, None)]


def test_an_exception_that_ended_in_mpi_abort_is_the_cause_though_the_launcher_killed_the_rank() -> None:
    history = History().started().feed(ks.RankAborted(2, 1)).ends(2, signal=15, error="KeyError: 'record'")
    assert [(end.status, end.signal, end.abort) for end in history.records(RankEnded)] == [(1, 0, None)]


def test_a_lost_host_is_disconnected_and_ends_the_run() -> None:
    history = History().started().feed(ks.GuardLost("b", "its guard ended"))
    assert ks.Disconnect("b") in history.actions
    assert (history.run.reason, history.run.detail) == (Reason.LOST, "b lost (its guard ended)")
    history.ends(0, signal=15).ends(1, signal=15)
    assert history.at(ks.RunPhase.FINISHING), "the ranks of a lost host are not waited for"
    history.end()
    assert history.run.lost == {"b"}


def test_a_host_without_a_sign_of_life_is_noted_once_until_it_answers_or_is_lost() -> None:
    history = History().started().feed(ks.GuardSilent("b", 10.5), ks.GuardSilent("b", 11.5))
    history.feed(*[ks.FromGuard("b", messages.Pong(CLOCK, CLOCK))] * 2)
    assert history.records(journal.HostSilent) == [journal.HostSilent("b", seconds) for seconds in (10.5, 0.0)]
    history.feed(ks.GuardLost("b", "silent", silent=31.0), ks.GuardSilent("b", 32.0))
    assert [lost.silent for lost in history.records(journal.HostLost)] == [31.0]
    assert len(history.records(journal.HostSilent)) == 2


def test_a_guard_that_has_reported_may_go() -> None:
    history = History().started()
    for rank in range(4):
        history.ends(rank, status=0)
    history.feed(ks.LauncherEnded(0), ks.FromGuard("a", messages.Cleaned([])), ks.GuardLost("a", "it has ended"))
    assert history.records(journal.HostLost) == []
    end = history.end()
    assert (end.reason, history.run.lost) == (Reason.DONE, set())


def test_the_second_order_kills() -> None:
    history = History().started().feed(messages.StopRun("SIGINT"), messages.KillRun("SIGINT"))
    assert history.states[-2:] == [ks.RunPhase.STOPPING, ks.RunPhase.KILLING]
    assert (history.run.reason, history.run.detail) == (Reason.STOPPED, "SIGINT")


@pytest.mark.parametrize(
    ("timings", "detail"),
    [({"time_limit": 20.0}, "time limit of 20 s"), ({"lease": 20.0}, "watcher lost: nobody watched for 20 s")],
)
def test_the_users_limits(timings: dict[str, float], detail: str) -> None:
    history = History(TWO._replace(timings=Timings(**timings))).started()
    history.after(19.0, ks.Tick(watched=False))
    assert history.at(ks.RunPhase.RUNNING)
    history.after(2.0)
    assert (history.run.reason, history.run.detail) == (Reason.LIMIT, detail)


def test_whoever_watches_renews_the_lease() -> None:
    history = History(TWO._replace(timings=Timings(lease=20.0))).started()
    for _ in range(10):
        history.after(15.0, ks.Tick(watched=True))
    assert history.at(ks.RunPhase.RUNNING)


@pytest.mark.parametrize(
    "more",
    [
        ks.FromGuard("a", RankEnded(0, "a", status=0, at=CLOCK)),
        ks.LauncherEnded(0),
        messages.RequestStacks("r1"),
        messages.StopRun("enough"),
        ks.GuardLost("a", "silence"),
    ],
)
def test_a_run_is_steady_while_all_ranks_run_and_nothing_is_awaited(more: ks.Input) -> None:
    history = History(TWO._replace(timings=Timings(early=5.0))).joined()
    *ranks, last = (ks.FromGuard(host, RankStarted(rank, host, 1, 2, [], CLOCK)) for rank, host in HOST_OF.items())
    history.after(6.0, *ranks)
    assert not history.run.is_steady(history.now), "a rank has not started"
    history.feed(last)
    assert history.run.is_steady(history.now)
    assert not history.run.is_steady(ks.Moment(4.0, CLOCK)), "mpirun has only just started"
    history.feed(more)
    assert not history.run.is_steady(history.now)


def test_a_stall_is_inquired_and_ends_the_run_once_the_guards_have_reported() -> None:
    timings = TWO.timings._replace(stall_warn=60.0)
    spec = TWO._replace(head=TWO.head_spec._replace(stall_kill=True), timings=timings)
    stall = journal.Stall([0, 1, 2, 3], True, True, 60.0, {0: "S"})
    early = stall._replace(seconds=20.0, early=True)
    assert History(spec).started().feed(early).records(journal.Stall) == [early._replace(limit=60.0)]
    history = History(spec).started().feed(stall)
    assert messages.ReportStacks() in history.sent()
    assert history.records(journal.Stall) == [stall._replace(kill=True, limit=60.0)]
    history.feed(ks.FromGuard("a", messages.StacksReported()))
    assert history.at(ks.RunPhase.RUNNING)
    history.feed(ks.FromGuard("b", messages.StacksReported()))
    assert (history.run.reason, history.run.detail) == (Reason.LIMIT, "no progress for 60 s")
    assert history.records(journal.InquiryEnded) == [journal.InquiryEnded([])]


def report_stacks(history: History) -> History:
    return history.feed(*(ks.FromGuard(host, messages.StacksReported()) for host in NODES))


def test_stacks_are_reported_several_times_in_a_row_on_request() -> None:
    history = History().started().feed(messages.RequestStacks(journal.PACE, 3), messages.RequestStacks("r1"))
    for asked in range(1, 4):
        assert history.sent().count(messages.ReportStacks()) == asked
        report_stacks(history)
    requests = [record.request for record in history.records(journal.StacksRequested)]
    assert requests == [journal.PACE, journal.PACE, "r1", journal.PACE]
    assert history.sent().count(messages.ReportStacks()) == 3
    assert history.records(journal.InquiryEnded) == [journal.InquiryEnded([])] * 3
    assert history.at(ks.RunPhase.RUNNING)


def test_a_host_that_does_not_report_its_stacks_is_named_and_waited_for_no_longer() -> None:
    history = History().started().feed(messages.RequestStacks("r1"))
    history.feed(ks.FromGuard("a", messages.StacksReported())).after(TWO.timings.inquiry + 1.0)
    assert history.records(journal.InquiryEnded) == [journal.InquiryEnded(["b"])]
    assert history.at(ks.RunPhase.RUNNING)


def test_requests_during_an_inquiry_are_answered_by_the_next() -> None:
    stall = journal.Stall([0, 1, 2, 3], True, True, 60.0, {0: "S"})
    history = History().started().feed(stall, messages.RequestStacks("r1"), messages.RequestStacks("r2"))
    assert history.records(journal.StacksRequested) == []
    report_stacks(history)
    assert history.records(journal.StacksRequested) == [journal.StacksRequested("r1"), journal.StacksRequested("r2")]
    assert history.sent().count(messages.ReportStacks()) == 2
    assert len(history.records(journal.InquiryEnded)) == 1
    report_stacks(history)
    assert len(history.records(journal.InquiryEnded)) == 2


def test_a_stall_that_is_noticed_during_a_request_takes_its_stacks() -> None:
    spec = TWO._replace(head=TWO.head_spec._replace(stall_kill=True))
    stall = journal.Stall([0, 1, 2, 3], True, True, 60.0, {0: "S"})
    history = History(spec).started().feed(messages.RequestStacks("r1"), stall)
    assert history.sent().count(messages.ReportStacks()) == 1
    report_stacks(history)
    assert history.run.reason == Reason.LIMIT


def test_a_request_before_or_after_the_ranks_run_changes_nothing() -> None:
    for history in (History().joined().feed(messages.StopRun("x")), History()):
        before = read_state(history.run)
        assert read_state(history.feed(messages.RequestStacks("r1")).run) == before


def test_guards_are_heard_up_to_when_as_many_were_as_the_keeper_needs() -> None:
    """For all of them at once: thousands of hosts, each by itself, took the keeper longer than from ping to ping."""
    run = History(TWO._replace(leaders={"a": "", "b": ""})).started().run
    answers = {"a": ks.LastPong(10.0, 110.0, 11.0), "b": ks.LastPong(4.0, 204.0, 5.0)}
    assert ks.find_heard(run, answers) == {"a": 103.0, "b": 203.0}
    assert ks.find_heard(run, {"a": answers["a"]}) == {}
    run.state = ks.RunPhase.RESTING
    assert ks.find_heard(run, answers) == {"a": 110.0, "b": 204.0}


def test_times_of_hosts_are_moved_to_the_heads_clock() -> None:
    history = History().joined().feed(ks.GuardConnected("a", CLOCK + 100.0))
    history.feed(ks.FromGuard("a", RankStage(0, "forged", "python", CLOCK + 101.0)))
    assert history.records(RankStage) == [RankStage(0, "a", "python", CLOCK + 1.0)]
    history.feed(ks.FromGuard("a", messages.Pong(CLOCK - 0.2, CLOCK + 49.9)))
    assert history.run.clocks["a"].offset == pytest.approx(50.0)


def test_a_hosts_clock_is_that_of_the_shortest_round_trip() -> None:
    history, result = History().joined(), []
    for trip, offset in ((0.4, 50.0), (0.1, 60.0), (0.3, 70.0)):
        history.steady += 1.0
        sent = history.now.clock - trip
        history.feed(ks.FromGuard("a", messages.Pong(sent, sent + trip / 2 + offset)))
        result.append(history.run.clocks["a"].offset)
    assert result == pytest.approx([50.0, 60.0, 60.0])


@pytest.mark.parametrize(
    "message",
    [
        Unreadable("Tomorrow", "unknown kind"),
        messages.Welcome("proof"),
        RankEnded(2, "a", status=1),
        RankEnded(99, "a", status=1),
    ],
)
def test_what_cannot_be_read_or_is_not_theirs_is_recorded_and_changes_nothing(message: messages.Message) -> None:
    history = History().started()
    before = read_state(history.run)
    history.feed(ks.FromGuard("a", message))
    assert read_state(history.run) == before
    assert [record.host for record in history.records(journal.MessageIgnored)] == ["a"]


def test_a_hundredth_of_the_time_is_enough() -> None:
    history = History(TWO._replace(timings=Timings(*(seconds * 0.01 for seconds in Timings()))))
    history.feed(*join("a")).after(0.31)
    assert history.run.reason == Reason.LAUNCH


# any order ----------------------------------------------------------------------------------------------------------

hosts = st.sampled_from(["a", "b", "stranger"])
ranks = st.integers(0, 5)
times = st.floats(CLOCK - 10, CLOCK + 1000)
from_guards = st.one_of(
    st.builds(RankStarted, ranks, hosts, st.just(1), st.just(2), st.just([]), times),
    st.builds(
        RankEnded,
        ranks,
        hosts,
        status=st.sampled_from([None, 0, 1]),
        signal=st.sampled_from([0, 9, 15]),
        stopped=st.booleans(),
        lost=st.booleans(),
        ending=st.booleans(),
        abort=st.sampled_from([None, 0, 7]),
        at=times,
    ),
    st.just(messages.ProxyEnded("")),
    st.builds(RankDropped, ranks, hosts, times),
    st.builds(messages.Pong, times, times),
    st.builds(messages.Cleaned, st.sampled_from([[], [(7, "D")]])),
    st.builds(lambda left: messages.Joined(left=left), st.sampled_from([[], [], [(7, "D")]])),
    st.builds(messages.Begun, st.integers(0, 2)),
    st.builds(messages.NoLeader, st.just(["b"])),
    st.just(messages.StacksReported()),
    st.just(Unreadable("x", "damaged")),
)
inputs = st.one_of(
    st.builds(ks.GuardConnected, hosts, times),
    st.builds(ks.GuardLost, hosts, st.just("gone")),
    st.builds(ks.GuardSilent, hosts, times),
    st.builds(ks.FromGuard, hosts, from_guards),
    st.builds(ks.LauncherEnded, st.integers(-15, 255)),
    st.builds(ks.RankAborted, ranks, st.sampled_from([0, 7])),
    st.builds(ks.Tick, st.booleans()),
    st.builds(messages.StopRun, st.just("why")),
    st.builds(messages.KillRun, st.just("why")),
    st.just(journal.Stall([0], True, True, 9.0, {})),
    st.just(journal.Straggling([0], 3, 9.0)),
    st.builds(messages.RequestStacks, st.just("request")),
)
steps: st.SearchStrategy[list[tuple[float, ks.Input]]] = st.lists(st.tuples(st.floats(0, 20), inputs), max_size=40)


def check_states(states: Iterable[ks.RunPhase]) -> None:
    """A step goes at most along two arrows: its own, and what is then due."""
    for before, after in pairwise(states):
        near = ks.TRANSITIONS[before]
        assert after is before or after in near or any(after in ks.TRANSITIONS[state] for state in near)


def tells(history: History, *records: RankWorld | RankAlone) -> History:
    return history.feed(*(ks.FromGuard(HOST_OF[record.rank], record) for record in records))


def alone(rank: int, steps: int) -> RankAlone:
    return RankAlone(rank, "", steps, [("accelerate", "", "")])


def test_ranks_that_train_alone_are_noted_once_all_of_them_do_and_again_when_they_meet_after_all() -> None:
    history = tells(History().started(), *(alone(rank, 3) for rank in range(3)))
    assert history.records(journal.SeparateWorlds) == []
    tells(history, alone(3, 3))
    separate = journal.SeparateWorlds({1: 4}, 3, 0, [("accelerate", "", "")])
    assert history.records(journal.SeparateWorlds) == [separate]
    tells(history, *(RankWorld(rank, "", "torch", 4, rank, True) for rank in range(4)))
    assert history.records(journal.SeparateWorlds) == [separate, journal.SeparateWorlds({})]


def test_ranks_that_never_met_are_noted_at_a_good_end_and_at_no_other() -> None:
    def end(status: int) -> History:
        history = tells(History().started(), *(alone(rank, 0) for rank in range(4)))
        for rank in range(4):
            history.ends(rank, status=status if rank == 3 else 0)
        return history.feed(ks.LauncherEnded(0))

    assert [record.worlds for record in end(0).records(journal.SeparateWorlds)] == [{1: 4}]
    assert end(1).records(journal.SeparateWorlds) == []
    met = tells(History().started(), *(RankWorld(rank, "", "mpi", 4, rank, True) for rank in range(4)))
    for rank in range(4):
        met.ends(rank, status=0)
    assert met.feed(ks.LauncherEnded(0)).records(journal.SeparateWorlds) == []


def test_a_rank_that_left_a_collective_out_is_noted_at_a_good_end() -> None:
    def end(*counts: int | None, status: int = 0) -> list[tuple[int, str, str]]:
        worlds = [RankWorld(rank, "", "torch", 4, rank, True, collectives=count) for rank, count in enumerate(counts)]
        history = tells(History().started(), *worlds)
        for rank in range(4):
            history.ends(rank, status=status)
        notes = history.feed(ks.LauncherEnded(status)).records(RankNote)
        return [(note.rank, note.host, note.text.partition(":")[0]) for note in notes]

    assert end(17, 17, 16, 17) == [(2, HOST_OF[2], "it took part in 16 collectives, rank 3 in 17")]
    assert end(17, 17, 17, 17) == end(17, 17, None, 16) == end(17, 17, 16, 17, status=1) == []


def test_a_rank_of_another_host_tells_nothing() -> None:
    history = History().started().feed(*(ks.FromGuard("a", alone(rank, 3)) for rank in range(4)))
    assert history.records(journal.SeparateWorlds) == []


BUSY = messages.HostBusy("r0", "ann@desk", CLOCK - 60)
FREE, TAKEN = messages.HostWaits(False), messages.HostWaits(True)


def test_a_run_that_waits_takes_its_hosts_when_all_are_free() -> None:
    history = History(TWO._replace(wait=True)).joined().after(600.0)
    assert history.at(ks.RunPhase.GATHERING)
    history.feed(ks.FromGuard("a", FREE), ks.FromGuard("b", messages.HostWaits(False, BUSY, 2)))
    (waiting,) = history.records(journal.Waiting)
    assert (waiting.hosts, waiting.before) == ({"b": ("r0", "ann@desk", CLOCK - 60)}, 2)
    assert not any(isinstance(message, messages.TakeHost) for message in history.sent())
    history.feed(ks.FromGuard("b", FREE))
    assert isinstance(history.sent()[-1], messages.TakeHost)
    assert history.records(journal.Waiting)[-1].hosts == {}
    history.feed(ks.FromGuard("a", TAKEN))
    assert history.at(ks.RunPhase.GATHERING)
    history.feed(ks.FromGuard("b", TAKEN))
    assert history.at(ks.RunPhase.PLACING)


def test_no_host_is_held_while_another_one_is_waited_for() -> None:
    history = History(TWO._replace(wait=True)).joined().feed(ks.FromGuard("a", FREE), ks.FromGuard("b", FREE))
    history.feed(ks.FromGuard("a", TAKEN), ks.FromGuard("b", messages.HostWaits(False, BUSY)))
    assert history.actions[-2] == ks.Send("a", messages.LeaveHost())
    history.feed(ks.FromGuard("a", FREE), ks.FromGuard("b", FREE))
    assert sum(isinstance(message, messages.TakeHost) for message in history.sent()) == 2
    assert history.feed(ks.FromGuard("b", TAKEN), ks.FromGuard("a", TAKEN)).at(ks.RunPhase.PLACING)


def test_a_run_that_waits_can_be_stopped() -> None:
    history = History(TWO._replace(wait=True)).joined().feed(ks.FromGuard("a", FREE), messages.StopRun("Ctrl-C"))
    assert history.run.reason == Reason.STOPPED
    assert history.end().reason == Reason.STOPPED


KEEP = KeepSpec("/w/ckpt", 1, False, False, [], {"a": "10.0.0.1", "b": "10.0.0.2"}, [0, 0])
GOES_ON = TWO._replace(keep=KEEP)


def find_checkpoint(history: History, host: str, *parts: messages.CheckpointPart, number: int | None = None) -> History:
    look = history.run.kept.look if number is None else number
    return history.feed(ks.FromGuard(host, messages.CheckpointsFound(look, 4000, list(parts))))


def make_file(at: float) -> messages.CheckpointPart:
    return messages.CheckpointPart("ckpt/m.pt", f"m{at:.0f}", {"ckpt/m.pt": [10, int(at)]}, at)


def test_ranks_that_go_on_start_when_all_hosts_have_the_checkpoint() -> None:
    history = History(GOES_ON).joined()
    assert history.at(ks.RunPhase.RESUMING)
    assert history.sent()[-1] == messages.FindCheckpoints(int(CLOCK))
    find_checkpoint(history, "a", make_file(CLOCK - 60), number=0)  # of a look before this one
    find_checkpoint(history, "b")
    assert history.at(ks.RunPhase.RESUMING)
    find_checkpoint(history, "a", make_file(CLOCK - 60))
    (order,) = [each for each in history.sent() if isinstance(each, messages.TakeCheckpoint)]
    assert order.part is None
    assert history.at(ks.RunPhase.RESUMING)
    history.after(9.0, ks.FromGuard("b", messages.CheckpointTaken(order.number, "", 10, 8.0)))
    assert history.at(ks.RunPhase.RUNNING)
    assert messages.RanksPort(4000, "ckpt/m.pt") in history.sent()
    assert history.records(journal.ResumeChosen) == [journal.ResumeChosen("ckpt/m.pt", CLOCK - 60, 10, 9.0, ["a"])]


@pytest.mark.parametrize("wrong", [*({"files": {"m.pt": file}} for file in ([], [1], [1, 2, 3])), {"owner": "b"}])
def test_a_part_that_makes_no_sense_is_none(wrong: dict[str, Any]) -> None:
    """The keeper would end by an exception, and with it the run of all hosts."""
    part = make_file(CLOCK)._replace(**wrong)
    history = find_checkpoint(find_checkpoint(History(GOES_ON).joined(), "a", part), "b")
    assert history.at(ks.RunPhase.RUNNING)
    assert history.records(journal.ResumeChosen)[0].name == ""


def test_ranks_without_a_whole_checkpoint_start_from_the_beginning() -> None:
    history = find_checkpoint(History(GOES_ON).joined(), "a", make_file(CLOCK)._replace(settled=False))
    find_checkpoint(history, "b")
    assert history.at(ks.RunPhase.RUNNING)
    assert messages.RanksPort(4000) in history.sent()
    assert history.records(journal.ResumeChosen) == [journal.ResumeChosen("", incomplete="ckpt/m.pt")]


def test_no_rank_starts_where_a_host_cannot_get_the_checkpoint_or_says_nothing() -> None:
    history = find_checkpoint(find_checkpoint(History(GOES_ON).joined(), "b"), "a", make_file(CLOCK))
    number = next(each.number for each in history.sent() if isinstance(each, messages.TakeCheckpoint))
    history.feed(ks.FromGuard("b", messages.CheckpointTaken(number, "no space left", 0, 1.0)))
    assert (history.run.reason, history.run.detail) == (Reason.LAUNCH, "no checkpoint is on all hosts")
    assert [note.host for note in history.records(journal.CheckpointMissed)] == ["b"]
    silent = find_checkpoint(History(GOES_ON).joined(), "a").after(31.0)
    assert (silent.run.reason, silent.run.detail) == (Reason.LAUNCH, "no word of the checkpoints on b")
    without = find_checkpoint(History(GOES_ON).joined(), "a")
    without.feed(ks.FromGuard("b", messages.CheckpointTaken(0, "it ended", 0, 0.0)))
    assert without.at(ks.RunPhase.RUNNING)  # and what b has is of no use


def test_a_host_that_never_says_whether_it_has_the_checkpoint_is_not_waited_for_without_end() -> None:
    """Its disk may hang while its guard lives."""
    history = find_checkpoint(find_checkpoint(History(GOES_ON).joined(), "b"), "a", make_file(CLOCK))
    assert history.after(800.0).at(ks.RunPhase.RESUMING)
    history.after(200.0)
    assert (history.run.reason, history.run.detail) == (Reason.LAUNCH, "no word of the checkpoint that b was to get")


def test_a_host_that_is_lost_while_the_checkpoint_is_brought_ends_the_attempt() -> None:
    history = find_checkpoint(find_checkpoint(History(GOES_ON).joined(), "b"), "a", make_file(CLOCK))
    history.feed(ks.GuardLost("b", "its guard ended"))
    assert (history.run.state, history.run.reason) == (
        ks.RunPhase.STOPPING,
        Reason.LOST,
    ) or history.run.reason == Reason.LOST


def test_while_ranks_run_finished_checkpoints_are_copied() -> None:
    history = find_checkpoint(History(GOES_ON._replace(keep=KEEP._replace(fresh=True))).started(), "b")
    assert history.at(ks.RunPhase.RUNNING)
    assert not history.run.kept.look
    find_checkpoint(history, "a", make_file(CLOCK))
    (order,) = [each for each in history.sent() if isinstance(each, messages.TakeCheckpoint)]
    assert order.part
    assert (order.part.owner, order.sources[0].address) == ("a", "10.0.0.1")
    history.feed(ks.FromGuard("b", messages.CheckpointTaken(order.number, "", 10, 1.0)))
    assert [(kept.owner, kept.host) for kept in history.records(journal.CheckpointKept)] == [("a", "b")]
