"""Which launches a study tries, in which order, and what it makes of their rates. The clock is a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ipexctl.decide.tune.search import ListSearch, OptunaSearch
from ipexctl.decide.tune.study import Study, Verdict
from ipexctl.decide.tune.summary import describe_verdict, summarize_study
from ipexctl.model.events import CandidateTried, Values
from ipexctl.model.tasks import Run

KNOBS: dict[str, list[bool | int | str]] = {"ppn": [2, 4], "hugepages": [True]}
Pace = Callable[[Values, float], float]


def identify(values: Values) -> str:
    return repr(sorted(values.items()))


def play(study: Study, pace: Pace, *, seconds: float = 10.0, most: int = 200) -> list[CandidateTried]:
    """Tries what the study chooses; a pace of 0 is a launch that fails."""
    now = study.tried[-1].at + seconds if study.tried else 0.0
    for _ in range(most):
        candidate = study.choose(now)
        if candidate is None:
            return study.tried
        rate = pace(candidate.values, now)
        outcome = "measured" if rate else "failed"
        if rate and study.is_out(candidate, {"pace": rate}, 5):
            outcome = "dropped"
        tried = CandidateTried(
            candidate.number, candidate.purpose, candidate.values, outcome, now + seconds / 2, seconds,  # type: ignore[arg-type]
            {"pace": rate} if rate else {}, launch=candidate.launch,
        )  # fmt: skip
        study.add(tried, candidate)
        now += seconds
    raise AssertionError("the study has no end")


def make(budget: float = 600.0, seed: int = 0) -> Study:
    return Study(OptunaSearch(KNOBS, seed, 20, ()), identify, budget)


def faster(values: Values, now: float) -> float:
    return 10.0 * (1.3 if values.get("hugepages") else 1.0) * {2: 0.8, 4: 0.9}.get(int(values.get("ppn", 0)), 1.0)


def test_the_best_launch_is_set_against_the_default_in_turn_and_recommended() -> None:
    study = make()
    tried = play(study, faster)
    assert not tried[0].values
    assert [bool(each.values) for each in tried if each.purpose == "confirm"] == [False, True, False, True]
    verdict = study.judge()
    assert (verdict.values, verdict.recommended) == ({"hugepages": True}, True)
    assert verdict.gain == pytest.approx(0.3)


def test_no_more_than_four_launches_are_between_two_measurements_of_the_default() -> None:
    gap = longest = 0
    for each in play(make(1200.0), lambda values, now: 10.0 + 0.1 * len(values)):
        gap = gap + 1 if each.values else 0
        longest = max(longest, gap)
    assert longest == 4


def test_a_machine_that_becomes_slower_makes_no_launch_look_slow() -> None:
    study = make()
    play(study, lambda values, now: faster(values, now) * (1 - now / 1000))
    assert study.judge().values == {"hugepages": True}
    assert study.judge().gain == pytest.approx(0.3, abs=0.03)


def test_where_all_launches_are_alike_none_is_recommended() -> None:
    study = make()
    noise = iter([1.0, 1.04, 0.97, 1.02, 0.99, 1.03, 0.98, 1.01] * 20)
    play(study, lambda values, now: 10.0 * next(noise))
    assert not study.judge().recommended
    answer = summarize_study(study, Run(script="train.py"), Run(script="train.py"), 1.0, 2.0, interrupted=False)
    assert not answer.recommended
    assert answer.next is None


def test_a_launch_that_fails_is_not_tried_again_and_never_recommended() -> None:
    study = make()
    tried = play(study, lambda values, now: 0.0 if values.get("hugepages") else 10.0)
    failed = [each.launch for each in tried if each.outcome == "failed"]
    assert failed
    assert len(failed) == len(set(failed))
    assert not study.judge().values.get("hugepages")


def test_a_default_that_fails_twice_in_turn_ends_the_study() -> None:
    assert [each.outcome for each in play(make(), lambda values, now: 0.0)] == ["failed"], "it never had a rate"
    tried = play(make(), lambda values, now: 0.0 if now > 60 else 10.0)
    assert [each.outcome for each in tried if not each.values][-2:] == ["failed", "failed"]
    assert len(tried) < 20


@pytest.mark.parametrize("budget", [35.0, 95.0, 300.0])
def test_a_study_begins_no_launch_beyond_its_budget(budget: float) -> None:
    assert all(each.at - each.seconds / 2 <= budget for each in play(make(budget), faster))


def test_a_launch_that_cannot_be_is_never_chosen() -> None:
    def without_ppn(values: Values) -> str | None:
        return None if values.get("ppn") == 2 else identify(values)

    study = Study(OptunaSearch(KNOBS, 0, 20, ()), without_ppn, 600.0)
    assert all(each.values.get("ppn") != 2 for each in play(study, faster))


def test_the_same_seed_tries_the_same_launches() -> None:
    first, second = (play(make(seed=7), faster) for _ in range(2))
    assert [each.values for each in first] == [each.values for each in second]


def test_a_study_goes_on_with_what_was_tried_and_measures_the_default_anew() -> None:
    before = play(make(200.0), faster)
    study = make(600.0)
    for each in before:
        study.add(replace(each, purpose="search" if each.values else "default"))
    candidate = study.choose(210.0)
    assert candidate is not None
    assert (candidate.values, candidate.number) == ({}, before[-1].number + 1)


def test_less_is_better_where_that_is_asked_for() -> None:
    study = Study(OptunaSearch(KNOBS, 0, 20, ()), identify, 600.0, metric="pace", minimize=True)
    play(study, lambda values, now: 1 / faster(values, now))
    assert study.judge().values == {"hugepages": True}
    assert study.judge().gain == pytest.approx(0.3)


def test_a_launch_that_is_dropped_when_it_is_tried_again_stays_in_the_race() -> None:
    study, fast = make(), identify({"hugepages": True})
    rates = {"pace": 13.0}
    study.add(CandidateTried(0, "default", {}, "measured", 5.0, 10.0, {"pace": 10.0}, launch=identify({})))
    study.add(CandidateTried(1, "search", {"hugepages": True}, "measured", 15.0, 10.0, rates, launch=fast))
    study.add(CandidateTried(2, "search", {"hugepages": True}, "dropped", 25.0, 10.0, rates, launch=fast))
    assert study.judge().values == {"hugepages": True}


def test_a_list_is_tried_in_order_and_each_value_once() -> None:
    forms = ("bf16", "compile", "ipex")
    study = Study(ListSearch({"--form": forms}), lambda values: str(dict(values)), 3600.0, finals=False)
    tried = play(study, lambda values, now: {"bf16": 30.0, "compile": 0.0}.get(str(values.get("--form")), 10.0))
    searched = [each.values["--form"] for each in tried if each.purpose == "search"]
    assert searched == [*forms], "one that fails does not end it"
    assert [each.purpose for each in tried if each.purpose not in ("search", "default")] == ["confirm"] * 4
    assert study.judge().values == {"--form": "bf16"}


def test_of_launches_that_are_as_good_the_one_without_a_needless_part_is_recommended() -> None:
    study = make()
    play(study, lambda values, now: (20.0 if values.get("hugepages") else 10.0) * (1.001 if "ppn" in values else 1.0))
    assert study.judge().values == {"hugepages": True}


@pytest.mark.parametrize(
    ("gain", "error", "pairs", "text"),
    [
        (0.31, 0.03, 4, "ppn 2: +31.0 % (+27.1 to +35.0 %) against the default in 4 pairs of runs in turn"),
        (20.43, 0.82, 2, "ppn 2: 21.4 times as fast (9.4 to 49 times) against the default in 2 pairs of runs in turn;"
         " so few show that it is faster, and not by how much"),
    ],
)  # fmt: skip
def test_a_verdict_says_no_more_than_its_pairs_show(gain: float, error: float, pairs: int, text: str) -> None:
    verdict = Verdict({"ppn": 2}, gain, error, ((1.0, 2.0),) * pairs, True)
    assert describe_verdict(verdict, True, interrupted=False) == text
