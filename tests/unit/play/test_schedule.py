"""Which steps are done, in which batches, and when a play ends: decided without any host."""

import pytest

from ipexctl.decide.play_schedule import (
    describe_end,
    find_missing_hosts,
    find_stop_reason,
    format_repetition,
    select_steps,
    split_batches,
)
from ipexctl.model.errors import UsageError
from ipexctl.model.hosts import Host
from ipexctl.model.plays import Play, Share, Step
from ipexctl.model.tasks import Doctor, Run

LOOK = Step(action="doctor", task=Doctor(), name="look", tags=("prepare",))
PUT = Step(action="doctor", task=Doctor(), tags=("prepare", "slow"))
TRAIN = Step(action="run", task=Run(script="t.py"), name="train")
PLAY = Play(source="p.yaml", steps=(LOOK, PUT, TRAIN))
NAMES = [f"n{i}" for i in range(10)]
HOSTS = [Host(name, name) for name in NAMES]


def test_steps_are_chosen_by_tags_and_by_where_to_begin() -> None:
    assert select_steps(PLAY) == (LOOK, PUT, TRAIN)
    assert select_steps(PLAY, tags=["slow"]) == (PUT,)
    assert select_steps(PLAY, skip_tags=["slow"]) == (LOOK, TRAIN)
    assert select_steps(PLAY, tags=["slow, prepare"]) == (LOOK, PUT)
    assert select_steps(PLAY, start_at="train") == (TRAIN,)
    assert select_steps(PLAY, start_at="doctor") == (LOOK, PUT, TRAIN)
    assert select_steps(PLAY, start_at="run") == (TRAIN,)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"start_at": "trian"}, "p.yaml has no step called 'trian' (did you mean train?)"),
        ({"tags": ["prepair"]}, "no step with the tags prepair (did you mean prepare?)"),
        ({"tags": ["prepare"], "skip_tags": ["prepare"]}, "no step that is left to do"),
    ],
)
def test_what_chooses_nothing_is_refused(how: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        select_steps(PLAY, **how)  # type: ignore[arg-type]
    assert why in str(refused.value)


def test_what_is_left_of_a_play_is_one_command_that_a_shell_takes() -> None:
    named = Step(action="run", task=Run(script="t.py"), name="train it")
    end = "the play ends here: no host is left"
    assert describe_end("no host is left", "", named) == end
    again = "; what comes after it: ipexctl play p.yaml --start-at 'train it'"
    assert describe_end("no host is left", "ipexctl play p.yaml", named) == f"{end}{again}"
    assert format_repetition("ipexctl play p.yaml", "look", [TRAIN]) == "ipexctl play p.yaml --start-at look"
    assert format_repetition("ipexctl play p.yaml", None, [LOOK]) == "ipexctl play p.yaml --limit @failed"


@pytest.mark.parametrize(
    ("serial", "sizes"),
    [
        ((), [10]),
        ((Share(3),), [3, 3, 3, 1]),
        ((Share(25, percent=True),), [2, 2, 2, 2, 2]),
        ((Share(1), Share(50, percent=True)), [1, 5, 4]),
        ((Share(1, percent=True),), [1] * 10),
        ((Share(99),), [10]),
    ],
)
def test_hosts_come_in_batches_of_which_the_last_size_repeats(serial: tuple[Share, ...], sizes: list[int]) -> None:
    made = [*split_batches(HOSTS, serial, len(HOSTS))]
    assert [len(batch) for batch in made] == sizes
    assert [host for batch in made for host in batch] == HOSTS


def test_when_failures_end_a_play() -> None:
    step = Step(action="doctor", task=Doctor())
    assert find_stop_reason(step, [], NAMES) == ""
    assert find_stop_reason(step, NAMES[:9], NAMES) == ""
    assert find_stop_reason(step, ["elsewhere"], NAMES) == ""
    assert (
        find_stop_reason(Step(action="doctor", task=Doctor(), any_errors_fatal=True), NAMES[:1], NAMES)
        == "any_errors_fatal"
    )
    some = Step(action="doctor", task=Doctor(), max_fail_percentage=30)
    assert find_stop_reason(some, NAMES[:3], NAMES) == ""
    assert find_stop_reason(some, NAMES[:4], NAMES) == "more than 30 % of the hosts failed"
    assert find_stop_reason(Step(action="doctor", task=Doctor(), max_fail_percentage=0), NAMES[:1], NAMES) != ""
    rolling = Step(action="doctor", task=Doctor(), serial=(Share(2),))
    assert find_stop_reason(rolling, NAMES[:1], NAMES[:2]) == ""
    assert find_stop_reason(rolling, NAMES[:2], NAMES[:2]) == "all hosts of a batch failed"


def test_hosts_that_work_together_cannot_be_missing_unless_it_is_reported_how_many() -> None:
    assert find_missing_hosts(TRAIN, ["n1"], NAMES) == ("n1",)
    assert find_missing_hosts(TRAIN, [], NAMES) == ()
    assert find_missing_hosts(LOOK, ["n1"], NAMES) == ()
    few = Step(action="run", task=Run(script="t.py"), max_fail_percentage=20)
    assert find_missing_hosts(few, NAMES[:2], NAMES) == ()
    assert find_missing_hosts(few, NAMES[:3], NAMES) == ("n0", "n1", "n2")
