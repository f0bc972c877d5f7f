"""A run that becomes slow: the pace that it had, the host that the others wait for, why, and the run without it."""

from collections.abc import Iterator, Sequence

import pytest

from ipexctl.decide.run.report import make_report
from ipexctl.model import events as e
from ipexctl.model.events import Event, Stamped
from ipexctl.model.reports import StallPlace
from ipexctl.model.run_state import RunState
from tests.tables import read_table
from tests.unit.show.streams import fold_state

HOSTS = ("a", "a", "b", "b")
RUN = e.RunStarted("k7", "a", HOSTS, "train.py")
COMMAND = e.Started("run", "train.py", ("a", "b"), words=("run", "--ppn", "2", "train.py"))
QUICK, SLOW = 0.5, 2.0  # seconds of a step


def steps(at: float, count: int, seconds: float, first: int = 0, ranks: Sequence[int] = range(4)) -> Iterator[Stamped]:
    for step in range(count):
        for rank in ranks:
            line = b"step %d loss 2.0\n" % (first + step)
            yield Stamped(at + step * seconds, e.Output(rank, HOSTS[rank], "out", line))


def sample(at: float, host: str, **more: object) -> Stamped:
    values: dict[str, object] = {"seconds": 5.0, "cpu": 2.0, "cores": 4, "memory": 1, "memory_total": 2} | more
    return Stamped(at, e.HostSample(host, at, **values))  # type: ignore[arg-type]


def samples(at: float, late: Sequence[int], count: int = 4, call: str = "all_reduce") -> Iterator[Stamped]:
    """Stacks of all ranks: ``late`` compute, the others wait for them."""
    others = tuple(rank for rank in range(4) if rank not in late)
    for turn in range(count):
        places = (StallPlace(tuple(late), "train.py:23"), StallPlace(others, "train.py:30", call))
        yield Stamped(at + turn, e.PlacesSampled(tuple(place for place in places if place.ranks)))


def begin(*events: Event) -> list[Stamped]:
    return [Stamped(100.0, each) for each in (*(events or (COMMAND,)), RUN)]


def slow_run(ranks: Sequence[int] = range(4)) -> list[Stamped]:
    return [*begin(), *steps(100.0, 40, QUICK, ranks=ranks), *steps(121.5, 6, SLOW, 40, ranks)]


def get_verdict(state: RunState) -> tuple[str, ...]:
    slowdown = state.attempt.slowdown if state.attempt else None
    return slowdown.verdict.lines if slowdown and slowdown.verdict else ()


def test_the_host_that_others_wait_for_is_named_with_cause_and_the_command_without_it() -> None:
    stream = [*slow_run(), *(sample(131.5, host, capped=0.0 if host == "a" else 0.985) for host in "ab")]
    stream += samples(132.0, late=(2, 3))
    state = fold_state(stream)
    assert get_verdict(state) == (
        "pace 0.50 it/s, was 2.00 until 00:00:21",
        "ranks 2-3 on b come last into all_reduce (4 of 4); the others wait 100 % of the time",
        "b: its control group limits CPU time, throttled 98 % of the time",
        "without it: ipexctl run --limit '!b' --ppn 2 train.py",
    )
    assert state.attempt
    assert state.attempt.suspects == (2, 3)
    report = make_report(state)
    assert report.run
    assert report.run.slow_host
    assert (report.run.slow_host.host, report.run.slow_host.ranks, report.run.slow_host.pace) == ("b", (2, 3), 0.5)
    assert report.run.slow_host.command == ("ipexctl", "run", "--limit", "!b", "--ppn", "2", "train.py")


@pytest.mark.parametrize(("computing", "named"), [(2, True), (12, False)])
def test_a_host_for_which_the_others_hardly_wait_is_not_the_cause(computing: int, named: bool) -> None:
    """Two hosts that other programs slow down alike: now and then one of them comes last."""
    busy = [
        Stamped(132.0 + turn, e.PlacesSampled((StallPlace((0, 1, 2, 3), "train.py:23"),))) for turn in range(computing)
    ]
    stream = [*slow_run(), *busy, *samples(150.0, late=(2, 3))]
    assert bool(get_verdict(fold_state(stream))) is named


def test_where_ranks_of_both_hosts_are_late_none_of_them_is_the_cause() -> None:
    assert get_verdict(fold_state([*slow_run(), *samples(132.0, late=(0, 1, 2))])) == ()


def test_where_ranks_of_one_host_wait_for_each_other_in_turn_no_others_wait() -> None:
    """It ended the command with exit code 70, also of an honest run on one host."""
    turns = [
        (StallPlace((rank,), "train.py:23"), StallPlace((1 - rank,), "train.py:30", "all_reduce")) for rank in (0, 1)
    ]
    stream = [*slow_run(), *(Stamped(132.0 + turn, e.PlacesSampled(turns[turn % 2])) for turn in range(4))]
    assert get_verdict(fold_state(stream))[1] == "ranks 0-1 on a come last into all_reduce (4 of 4)"


@pytest.mark.parametrize("late", [(9,), ()])
def test_samples_of_ranks_that_the_run_does_not_have_are_none(late: tuple[int, ...]) -> None:
    """A saved run of somebody else ended commands with exit code 70."""
    places = (StallPlace(late, "train.py:23"), StallPlace((0,), "train.py:30", "all_reduce"))
    stream = [*slow_run(), *(Stamped(132.0 + turn, e.PlacesSampled(places)) for turn in range(4))]
    assert get_verdict(fold_state(stream)) == get_verdict(fold_state(slow_run()))


def test_a_run_that_is_over_becomes_slow_no_more() -> None:
    over = Stamped(121.0, e.RunEnded("k7", "done", "", 121.0))
    late = [sample(140.0 + 2 * number, host, capped=0.9 if host == "b" else 0.0) for number, host in enumerate("abab")]
    running, ended = (fold_state([*begin(), *steps(100.0, 40, QUICK), *more, *late]) for more in ((), (over,)))
    assert [bool(make_report(state).run and get_verdict(state)) for state in (running, ended)] == [True, False]


FAR = {"a": {"delay": 0.01}, "b": {"delay": 104.2, "resent": 0.021}, "c": {"delay": 0.21}}
LOSSY = {"a": {"delay": 0.01}, "b": {"delay": 0.3, "resent": 0.03}, "c": {"delay": 0.2, "resent": 0.001}}
HEAD = {"a": {"delay": 0.01, "resent": 0.02}, "b": {"delay": 104.2}, "c": {"delay": 103.0}}
NEAR = {"a": {"delay": 0.01}, "b": {"delay": 4.0, "resent": 0.002}, "c": {"delay": 0.1}}
BUSY = {"a": {"delay": 4.8}, "b": {"delay": 9.4}}  # the head is as slow to answer itself


@pytest.mark.parametrize(
    ("measured", "host", "cause"),
    [
        (
            FAR,
            "b",
            "a packet takes 104 ms from a and back, the others 0.21 ms; 2.1 % of its TCP segments are sent again",
        ),
        (LOSSY, "b", "3.0 % of its TCP segments are sent again"),
        (HEAD, "a", "a packet takes 103 ms to the other hosts and back; 2.0 % of its TCP segments are sent again"),
        (NEAR, "", ""),
        (BUSY, "", ""),
    ],
    ids=["far", "lossy", "the head", "near", "busy"],
)
def test_a_slow_link_is_named_where_all_ranks_wait(
    measured: dict[str, dict[str, float]], host: str, cause: str
) -> None:
    stream = [sample(110.0, name, delay=0.1) for name in measured]
    stream = [*slow_run()[:100], *stream, *slow_run()[100:]]
    stream += samples(132.0, late=(0, 1) if host == "b" else ())
    stream += [sample(131.5 + 2 * number, name, **more) for number, (name, more) in enumerate(measured.items())]
    state = fold_state(stream)
    verdict = get_verdict(state)
    assert [line for line in verdict if line.startswith(("a:", "b:", "c:"))] == ([f"{host}: {cause}"] if host else [])
    assert bool(verdict) == bool(host)


def test_a_measured_cause_of_the_host_that_is_late_counts_more_than_a_slow_link() -> None:
    stream = [
        *slow_run(),
        sample(131.5, "a", capped=0.9),
        sample(133.5, "c", delay=0.2),
        sample(135.5, "b", delay=90.0),
    ]
    verdict = get_verdict(fold_state([*stream, *samples(136.0, late=(0, 1))]))
    assert verdict[2] == "a: its control group limits CPU time, throttled 90 % of the time"


def test_without_a_cause_it_is_said_where_the_late_ranks_are() -> None:
    state = fold_state([*slow_run(ranks=[0]), *samples(132.0, late=(3,))])
    assert get_verdict(state)[1:3] == (
        "rank 3 on b comes last into all_reduce (4 of 4); the others wait 100 % of the time",
        "b: rank 3 mostly at train.py:23 (4 of 4)",
    )


def test_a_pace_that_comes_back_takes_the_verdict_away_and_the_report_keeps_it() -> None:
    stream = [*slow_run(), *samples(132.0, late=(2, 3)), *steps(137.0, 12, QUICK, 46)]
    state = fold_state(stream)
    assert state.attempt
    assert state.attempt.slowdown is None
    report = make_report(state)
    assert report.run
    assert report.run.slow_host


@pytest.mark.parametrize(
    "more",
    [
        [],
        [*samples(132.0, late=(2, 3), count=2)],
        [*samples(132.0, late=(0, 1)), *samples(136.0, late=(2, 3))],
        [*samples(132.0, late=(0, 1, 2, 3))],
        [sample(132.0, host, capped=0.9) for host in "ab"],
    ],
    ids=["no samples", "too few", "in turn", "none waits", "all throttled"],
)
def test_no_host_is_blamed_without_a_reason(more: list[Stamped]) -> None:
    state = fold_state([*slow_run(), *more])
    assert state.attempt
    assert state.attempt.slowdown
    assert get_verdict(state) == ()


def test_an_even_pace_and_one_slow_step_are_no_slowdown() -> None:
    for stream in (
        [*begin(), *steps(100.0, 60, QUICK)],
        [*begin(), *steps(100.0, 40, QUICK), *steps(130.0, 10, QUICK, 40)],
    ):
        state = fold_state(stream)
        assert state.attempt
        assert state.attempt.slowdown is None


def test_a_host_without_cpu_time_is_named_whatever_is_printed() -> None:
    state = fold_state([*begin(), sample(110.0, "a", capped=0.0), sample(112.0, "b", capped=0.8)])
    assert get_verdict(state) == (
        "b: its control group limits CPU time, throttled 80 % of the time",
        "without it: ipexctl run --limit '!b' --ppn 2 train.py",
    )


@pytest.mark.parametrize(("odd", "usual", "cause"), read_table("slowdown/what_sets_the_slow_host_apart"))
def test_what_sets_the_slow_host_apart(odd: dict[str, object], usual: dict[str, object], cause: str) -> None:
    stream = [*slow_run(), sample(131.0, "a", **usual), sample(131.0, "b", **odd), *samples(132.0, late=(2, 3))]
    assert get_verdict(fold_state(stream))[2] == cause


@pytest.mark.parametrize(("words", "command"), read_table("slowdown/users_words", frozen=True))
def test_the_command_without_the_host_keeps_the_users_words(words: tuple[str, ...], command: str) -> None:
    started = e.Started(words[0], "x.py", ("a", "b"), words=words)
    state = fold_state([*begin(started), sample(110.0, "a", capped=0.0), sample(112.0, "b", capped=0.8)])
    assert get_verdict(state)[1:] == ((f"without it: {command}",) if command else ())
