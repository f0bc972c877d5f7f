"""When a run does not get on: judged from output, stages and processor time, with a clock of our own."""

from ipexctl.protocol import hooks
from ipexctl.protocol.journal import Resumed, Stall, Straggling
from ipexctl.protocol.timings import Timings
from ipexctl.remote.agent.progress_monitor import ProgressMonitor


def pulse(warn: float = 10.0, ranks: int = 4) -> ProgressMonitor:
    made = ProgressMonitor(Timings(stall_warn=warn, straggler_warn=5.0))
    for rank in range(ranks):
        made.note_progress(rank, 0.0)
        made.note_load(rank, 0.0, "S", 0.0)
    return made


def the_stall(monitor: ProgressMonitor, now: float) -> Stall:
    """What is stalled; something is."""
    stall = monitor.find_stall(now)
    assert stall is not None
    return stall


def test_all_silent_is_a_stall_reported_once_until_one_gets_on() -> None:
    run = pulse()
    assert run.find_stall(9.9) is None
    stall = the_stall(run, 10.0)
    assert (stall.ranks, stall.all, stall.grave) == ([0, 1, 2, 3], True, True)
    assert run.find_stall(11.0) is None
    for rank in range(4):
        run.note_output({rank}, 12.0)
    assert run.find_stall(12.5) is None
    assert not run.reported
    assert run.find_stall(22.5) is not None


def test_what_a_rank_writes_because_it_was_asked_for_its_stacks_is_no_sign() -> None:
    run = pulse(ranks=2)
    the_stall(run, 10.0)
    run.note_stack(1, 10.5)
    run.note_output({1}, 10.6)
    assert run.find_stall(11.0) is None
    assert run.reported == {0, 1}, "it stalls as before"
    run.note_output({1}, 11.6)
    assert run.find_stall(11.7) is None
    assert run.reported == {0}


def test_what_a_rank_of_a_slow_run_writes_while_it_is_asked_again_and_again_is_a_sign() -> None:
    """As Ray's driver, which wrote every 2 s right after it was asked: its run was ended as stalled."""
    run = pulse(ranks=1)
    for second in range(2, 14, 2):
        run.note_stack(0, second - 0.1)
        run.note_output({0}, float(second))
    assert run.find_stall(13.0) is None


def test_a_rank_that_ends_well_is_a_sign_for_those_that_go_on() -> None:
    run = pulse(ranks=2)
    for second in range(1, 12):
        run.note_output({0}, float(second))
        run.note_load(1, second * 0.9, "R", float(second))
    run.note_end(0, True, 11.5)
    assert run.find_stall(12.0) is None
    stall = the_stall(run, 21.5)
    assert (stall.ranks, stall.all, stall.seconds) == ([1], True, 10.0)


def test_an_idle_rank_is_a_grave_case_once_the_others_have_ended() -> None:
    """It was reported while they still went on, of which no run is ended."""
    run = pulse(ranks=2)
    run.note_end(0, True, 1.0)
    stall = the_stall(run, 10.5)
    assert (stall.ranks, stall.grave) == ([1], False)
    stall = the_stall(run, 11.0)
    assert (stall.ranks, stall.grave, stall.seconds) == ([1], True, 10.0)
    assert run.find_stall(12.0) is None, "reported once"


def test_a_silent_rank_among_others_is_reported_only_if_it_does_nothing() -> None:
    for busy in (True, False):
        run = pulse()
        for second in range(1, 14):
            for rank in (0, 1, 2):
                run.note_output({rank}, float(second))
            run.note_load(3, second * (0.9 if busy else 0.0), "R" if busy else "S", float(second))
        if busy:
            assert run.find_stall(13.0) is None
        else:
            stall = the_stall(run, 13.0)
            assert (stall.ranks, stall.all, stall.grave, stall.early) == ([3], False, False, True)
            looks = [second for second in range(14, 19) if run.find_stall(float(second))]
            assert looks == [17], "whether it gets on is seen by a second look; the third is later"


def test_a_rank_that_waits_for_a_core_does_not_do_nothing() -> None:
    run = pulse()
    for second in range(1, 14):
        for rank in (0, 1, 2):
            run.note_output({rank}, float(second))
        run.note_load(3, 0.0, "R", float(second))
    assert run.find_stall(13.0) is None


def test_a_stopped_rank_is_a_grave_case() -> None:
    run = pulse()
    for second in range(1, 14):
        run.note_output({0, 1, 2}, float(second))
        run.note_load(3, 0.0, "T", float(second))
    assert the_stall(run, 13.0).grave


def test_a_flood_of_one_rank_does_not_hide_the_sign_of_another() -> None:
    run = pulse()
    for second in range(1, 31):
        run.note_load(3, 0.0, "S", float(second))
        run.note_output({0} if second % 9 else {0, 3}, float(second))
        stall = run.find_stall(float(second))
        assert stall is None or 3 not in stall.ranks


def test_stragglers_are_reported_once_when_the_others_are_done_for_a_while() -> None:
    run = pulse()
    run.note_end(0, True, 1.0)
    assert run.find_stragglers(5.9) is None
    assert run.find_stragglers(6.0) == Straggling([1, 2, 3], 1, 5.0)
    assert run.find_stragglers(7.0) is None


def test_ranks_of_which_one_does_nothing_are_asked_early_and_then_less_often() -> None:
    run = pulse(warn=120.0)
    for rank in (0, 1, 3):
        run.note_load(rank, 19.0, "S", 19.0)  # as in a collective that polls; rank 2 sleeps
    assert run.poll(19.9) == []
    assert run.poll(20.0) == [Stall([0, 1, 2, 3], True, True, 20.0, dict.fromkeys(range(4), "S"), early=True)]
    assert run.poll(60.0) == []
    run.note_output({1}, 61.0)
    assert run.poll(61.0) == [Resumed()]
    assert run.poll(100.0) == []
    assert [(stall.seconds, stall.early) for stall in run.poll(101.0) if isinstance(stall, Stall)] == [(40.0, True)]
    assert [(stall.seconds, stall.early) for stall in run.poll(181.0) if isinstance(stall, Stall)] == [(120.0, False)]
    busy = pulse(warn=120.0)
    for rank in range(4):
        busy.note_load(rank, 25.0, "R", 25.0)
    assert [stall.early for stall in busy.poll(20.0) if isinstance(stall, Stall)] == [True]  # as those that wait in MPI


def test_ranks_that_wait_in_the_rendezvous_for_one_that_has_ended_are_asked_at_once() -> None:
    run = pulse(warn=120.0, ranks=3)
    run.note_end(2, True, 1.0)
    run.note_progress(0, 2.0, hooks.RENDEZVOUS)
    assert run.find_early_stall(6.0) is None, "rank 1 is not there yet"
    run.note_progress(1, 7.0, hooks.RENDEZVOUS)
    run.note_progress(1, 7.0)  # a note
    assert run.find_early_stall(9.9) is None
    stall = run.find_early_stall(10.0)
    assert stall == Stall([0, 1], True, True, 3.0, dict.fromkeys(range(2), "S"), early=True)
    assert run.find_early_stall(11.0) is None
    run.note_progress(1, 12.0, hooks.CONNECTED)
    assert run.find_early_stall(16.0) is None
    met = pulse(warn=120.0, ranks=2)
    for rank in range(2):
        met.note_progress(rank, 1.0, hooks.RENDEZVOUS)
    met.note_end(1, True, 1.0)
    assert met.find_early_stall(10.0) is None, "it may have been the last that the other waited for"


def test_a_program_that_is_up_may_be_silent_until_its_script_fails() -> None:
    run = pulse(ranks=1)
    run.note_progress(0, 1.0, hooks.READY)
    run.note_output({0}, 2.0)
    assert run.find_stall(100.0) is None
    run.note_progress(0, 101.0, hooks.FAILED)
    assert run.find_stall(110.9) is None
    assert the_stall(run, 111.0).ranks == [0]


def test_nothing_is_reported_where_it_was_not_asked_for() -> None:
    run = ProgressMonitor(Timings())
    run.note_progress(0, 0.0)
    run.note_end(1, True, 0.0)
    assert run.find_stall(1e9) is None
    assert run.find_stragglers(1e9) is None


def test_what_ranks_write_in_their_rendezvous_is_no_early_sign() -> None:
    """torch's client writes so while it finds nobody."""
    run = pulse(warn=120.0, ranks=2)
    for rank in range(2):
        run.note_progress(rank, 1.0, hooks.RENDEZVOUS)
    for second in range(2, 21):
        run.note_output({0, 1}, float(second))
    assert run.find_early_stall(20.9) is None
    assert [(alarm.seconds, alarm.early) for alarm in run.poll(21.0) if isinstance(alarm, Stall)] == [(20.0, True)]
    run.note_progress(0, 30.0, hooks.CONNECTED)
    assert run.poll(30.5) == [Resumed()]
