"""Which launches a study tries, in which order, and what it makes of their rates. The clock is a number."""

import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from ipexctl.decide.run.fold import RunFold
from ipexctl.decide.tune.ranking import WARM_UP, RateReader
from ipexctl.decide.tune.study import DefaultFailed, OptunaSearch, Study, describe_verdict, import_optuna
from ipexctl.model.answers.tune import TuneAnswer
from ipexctl.model.errors import UsageError
from ipexctl.model.events import CandidateTried, Event, Output, RunStarted, Stamped, StudyStarted, Values

Pace = Callable[[Values, float], float]


def identify(values: Values) -> str | None:
    return repr(sorted(values.items()))


class Played(Study):
    """A study of a script with this pace, played to its end; each launch takes as long. A pace of 0: it fails."""

    def __init__(
        self,
        pace: Pace,
        budget: float = 600.0,
        seed: int = 0,
        *,
        minimize: bool = False,
        identify: Callable[[Values], str | None] = identify,
        listed: Sequence[Values] = (),
        earlier: Sequence[CandidateTried] = (),
    ) -> None:
        self.pace, self.identify_values, self.now = pace, identify, earlier[-1].at + 5 if earlier else 0.0
        knobs = {"ppn": (2, 4), "hugepages": (True,)}
        started = StudyStarted(knobs, {}, "pace" if minimize else "", minimize, budget, seed, 20)
        super().__init__(started, earlier)
        self.listed += listed
        self.failed = False
        try:
            for _ in self.run():
                assert len(self.tried) < 200, "the study has no end"
        except DefaultFailed:
            self.failed = True

    def identify(self, values: Values) -> str | None:
        return self.identify_values(values)

    def watch(self) -> float:
        return self.now

    def measure(self, values: Values) -> Generator[Event, None, CandidateTried]:
        rate, at = self.pace(values, self.now), self.now + 5
        outcome: Any = "measured" if rate else "failed"
        if rate and self.is_out(values, {"pace": rate}, at, 5):
            outcome = "dropped"
        self.now += 10
        yield from ()
        return CandidateTried(values, outcome, at, 10, {"pace": rate} if rate else {}, why="" if rate else "it crashed")

    @property
    def found(self) -> Values:
        return self.best.values if self.best else {}


def faster(values: Values, now: float) -> float:
    return 10.0 * (1.3 if values.get("hugepages") else 1.0) * {2: 0.8, 4: 0.9}.get(int(values.get("ppn", 0)), 1.0)


def test_the_best_launch_is_set_against_the_default_in_turn_and_recommended() -> None:
    study = Played(faster)
    assert not study.tried[0].values
    assert [bool(each.values) for each in study.tried[-4:]] == [False, True, False, True]
    assert study.judge().pairs == 2
    assert (study.found, study.judge().recommended) == ({"hugepages": True}, True)
    assert study.judge().gain == pytest.approx(0.3)


def test_the_default_is_measured_twice_before_launches_are_ruled_out_for_good() -> None:
    study = Played(
        lambda values, now: 9.0 if values else 10.0, 300.0, identify=lambda v: None if "ppn" in v else identify(v)
    )
    assert [each.values for each in study.tried] == [{}, {"hugepages": True}, {}]
    assert study.best is None


def test_no_more_than_four_launches_are_between_two_measurements_of_the_default() -> None:
    gap = longest = 0
    for each in Played(lambda values, now: 10.0 + 0.1 * len(values), 1200.0).tried:
        gap = gap + 1 if each.values else 0
        longest = max(longest, gap)
    assert longest == 4


def test_a_machine_that_becomes_slower_makes_no_launch_look_slow() -> None:
    study = Played(lambda values, now: faster(values, now) * (1 - now / 1000))
    assert study.found == {"hugepages": True}
    assert study.judge().gain == pytest.approx(0.3, abs=0.03)


def test_two_pairs_that_are_better_by_little_more_than_the_noise_of_few_runs_recommend_nothing() -> None:
    rates = iter([10.0, 11.5, 10.7, 12.0, 10.2, 11.9])
    study = Played(lambda values, now: next(rates, 10.0), 65.0, identify=lambda v: None if "ppn" in v else identify(v))
    answer = study.judge()
    assert (answer.pairs, answer.recommended) == (2, False), answer
    assert answer.gain > 0.1


def test_where_all_launches_are_alike_none_is_recommended() -> None:
    noise = iter([1.0, 1.04, 0.97, 1.02, 0.99, 1.03, 0.98, 1.01] * 20)
    study = Played(lambda values, now: 10.0 * next(noise))
    assert not study.judge().recommended


def test_a_launch_that_fails_is_not_tried_again_and_never_recommended() -> None:
    study = Played(lambda values, now: 0.0 if values.get("hugepages") else 10.0)
    failed = [repr(each.values) for each in study.tried if each.outcome == "failed"]
    assert failed
    assert len(failed) == len(set(failed))
    assert "hugepages" not in study.found


def test_a_launch_that_fails_when_it_is_confirmed_is_not_recommended() -> None:
    rates = iter([10.0, 13.0, 10.0, 13.0, 10.0, 0.0])
    study = Played(lambda values, now: next(rates, 10.0), 65.0, identify=lambda v: None if "ppn" in v else identify(v))
    assert [bool(each.values) for each in study.tried] == [False, True, False, True, False, True]
    assert (study.tried[-1].outcome, study.judge().pairs, study.judge().recommended) == ("failed", 0, False)


def test_without_optuna_it_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="Optuna, which is not installed beside ipexctl") as refused:
        import_optuna()
    assert "pip install 'ipexctl[tune]'" in (refused.value.hint or "")


def test_a_default_that_fails_twice_in_turn_ends_the_study() -> None:
    study = Played(lambda values, now: 0.0)
    assert [each.outcome for each in study.tried] == ["failed"], "it never had a rate"
    study = Played(lambda values, now: 0.0 if now > 30 else 10.0)
    assert study.failed
    assert [each.outcome for each in study.tried if not each.values][-2:] == ["failed", "failed"]
    assert len(study.tried) < 20


@pytest.mark.parametrize("budget", [35.0, 95.0, 300.0])
def test_a_study_begins_no_launch_beyond_its_budget(budget: float) -> None:
    assert all(each.at - each.seconds / 2 <= budget for each in Played(faster, budget).tried)


def test_a_small_budget_has_room_to_confirm_what_it_tried() -> None:
    study = Played(lambda values, now: 13.0 if values else 10.0, 65.0)
    assert [bool(each.values) for each in study.tried] == [False, True, False, True, False, True]
    assert (study.judge().pairs, study.judge().recommended) == (2, True)


def test_a_launch_that_cannot_be_is_never_chosen() -> None:
    study = Played(faster, identify=lambda values: None if values.get("ppn") == 2 else identify(values))
    assert all(each.values.get("ppn") != 2 for each in study.tried)


def test_no_backend_is_proposed_once_the_script_is_seen_to_choose_its_own() -> None:
    started = StudyStarted({"backend": (), "hugepages": (True,)}, {}, "", False, 60.0, 0, 20)
    search = OptunaSearch(started, [{"backend": "gloo"}])
    for _ in range(4):
        assert "backend" not in search.ask()
        search.tell(0.0)


def test_the_same_seed_tries_the_same_launches() -> None:
    first, second = (Played(faster, seed=7).tried for _ in range(2))
    assert [each.values for each in first] == [each.values for each in second]


def test_a_study_goes_on_with_what_was_tried_and_measures_the_default_anew() -> None:
    before = Played(faster, 200.0).tried
    gone = CandidateTried({"ppn": 3}, "measured", 205.0, 10.0, {"pace": 90.0})
    study = Played(faster, earlier=[*before, gone], identify=lambda v: None if v.get("ppn") == 3 else identify(v))
    tried = study.tried[len(before) :]
    assert tried[0].values == {}
    assert study.found == {"hugepages": True}, "one that can no longer be is forgotten"
    assert study.judge().pairs == 2


def test_less_is_better_where_that_is_asked_for() -> None:
    study = Played(lambda values, now: 1 / faster(values, now), minimize=True)
    assert study.found == {"hugepages": True}
    assert study.judge().gain == pytest.approx(0.3)


def test_a_launch_that_is_dropped_when_it_is_tried_again_stays_in_the_race() -> None:
    study, rates = Played(faster, 10.0), {"pace": 13.0}
    study.tried = [
        CandidateTried({}, "measured", 5.0, 10.0, {"pace": 10.0}),
        CandidateTried({"hugepages": True}, "measured", 15.0, 10.0, rates),
        CandidateTried({"hugepages": True}, "dropped", 25.0, 10.0, rates),
    ]
    assert study.found == {"hugepages": True}


def test_listed_launches_are_first_as_far_as_they_are_in_the_space() -> None:
    listed: list[Values] = [{"ppn": 4, "hugepages": True}, {"ppn": 3}, {"omp": "gnu"}, {"hugepages": True}]
    study = Played(faster, listed=listed)
    searched = list({repr(each.values): each.values for each in study.tried if each.values}.values())
    assert searched[:2] == [listed[0], listed[3]]
    assert len(searched) == 5, "then all others"


def test_of_launches_that_are_as_good_the_one_with_the_fewest_changes_is_recommended() -> None:
    study = Played(lambda values, now: (20.0 if "hugepages" in values else 10.0) * (1.001 if "ppn" in values else 1.0))
    assert study.found == {"hugepages": True}
    paces = {"[('ppn', 4)]": 20.0, "[('hugepages', True), ('ppn', 2)]": 20.1}  # the one is no part of the other
    study = Played(lambda values, now: paces.get(identify(values) or "", 10.0))
    assert study.found == {"ppn": 4}


@pytest.mark.parametrize("total", [8, 32])
def test_bars_of_each_epoch_are_counted_on_and_their_own_rates_are_no_pace(total: int) -> None:
    fold, reader, at = RunFold(), RateReader(), 100.0
    fold.handle_event(Stamped(at, RunStarted("k7", "a", ("a",), "train.py", at)))
    for _ in range(4):
        for step in range(total + 1):
            rate = f"{20 + step}.0" if step else "?"
            data = f"\r 1%|█ | {step}/{total} [00:00<00:01, {rate}it/s]".encode() + b"\n" * (step == total)
            fold.handle_event(Stamped(at, Output(0, "a", "err", data)))
            reader.read_state(fold.state, 0)
            at += 0.5
    assert reader.steps == 4 * total - WARM_UP
    assert reader.rates["pace"] == pytest.approx((4 * total - WARM_UP) / (2 * total))


def test_losses_are_counted_where_no_steps_are_printed() -> None:
    fold, reader = RunFold(), RateReader()
    fold.handle_event(Stamped(100.0, RunStarted("k7", "a", ("a",), "train.py", 100.0)))
    for number in range(16):
        line = f"{{'loss': '{5 - number / 10}', 'grad_norm': '1.6', 'epoch': '{number / 2}'}}\n".encode()
        fold.handle_event(Stamped(101.0 + number / 4, Output(0, "a", "out", line)))
        reader.read_state(fold.state, 0)
    assert reader.steps == 16 - WARM_UP
    assert reader.rates["losses"] == pytest.approx(4.0)
    assert "pace" not in reader.rates


def test_output_of_a_rank_that_the_run_does_not_have_has_no_rate() -> None:
    fold, reader = RunFold(), RateReader()
    fold.handle_event(Stamped(100.0, RunStarted("k7", "a", ("a",), "train.py", 100.0)))
    for number in range(16):
        fold.handle_event(Stamped(101.0 + number, Output(7, "a", "out", b"step %d loss 1.0\n" % number)))
        reader.read_state(fold.state, 7)
    assert (reader.steps, reader.rates) == (0, {})


def test_whether_there_is_a_rate_is_asked_without_computing_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 names that a rank printed, 3 MB, that took 17 s, and the square of them."""
    fold, reader = RunFold(every_line=True), RateReader()
    fold.handle_event(Stamped(100.0, RunStarted("k7", "a", ("a",), "train.py", 100.0)))
    lines = b"".join(b"::metric name=n%d value=1\n" % number for number in range(1500))
    for data in (lines, b"::metric name=samples_s value=2\n", b"::metric name=n1 value=2\n"):
        fold.handle_event(Stamped(101.0, Output(0, "a", "out", data)))
        reader.read_state(fold.state, 0)
    monkeypatch.setattr("ipexctl.decide.tune.ranking.median", None)
    assert (reader.has_any(["n1"]), reader.has_any(["n1400", "samples_s", "losses"]), reader.steps) == (True, False, 0)
    assert len(fold.state.ranks[0].figures) == 1000


def test_bounds_are_those_of_several_runs_and_a_single_one_has_none() -> None:
    study = Played(faster, 35.0)
    rows = {row.name: (row.runs, row.low) for row in study.judge().launches}
    assert rows["default"] == (1, None)
    assert {row for name, row in rows.items() if name != "default"} == {(1, None)}
    rows = {row.name: (row.runs, row.low is not None) for row in Played(faster).judge().launches}
    assert all(known == (runs > 1) for runs, known in rows.values())


def make_answer(pairs: int = 0, gain: float = 0.0, error: float = 0.0, **more: Any) -> TuneAnswer:
    given: dict[str, Any] = {"seconds": 219.0, "budget": 300.0, "best": "ppn 2", "recommended": False} | more
    return TuneAnswer("a.py", "steps/s", (), pairs=pairs, gain=gain, error=error, verdict="", tried=9, **given)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (make_answer(4, 0.31, 0.03, recommended=True),
         "ppn 2: 1.31 times as fast (1.27 to 1.35) in 4 pairs of runs in turn"),
        (make_answer(2, 20.43, 0.82, recommended=True),
         "ppn 2: 21.4 times as fast (9.44 to 48.7) in 2 pairs of runs in turn"),
        (make_answer(0, 0.74), "best so far: ppn 2, 1.74 times as fast; too few pairs of runs in turn confirm it"),
        (make_answer(best=None), "no other launch was tried"),
    ],
)  # fmt: skip
def test_a_verdict_says_no_more_than_its_pairs_show(answer: TuneAnswer, text: str) -> None:
    assert describe_verdict(answer) == text


def test_a_launch_has_the_same_gain_in_the_table_and_in_the_verdict() -> None:
    rates = iter([10.0, 30.0, 8.0, 36.0])
    study = Played(lambda values, now: next(rates, 10.0), 45.0, identify=lambda v: None if "ppn" in v else identify(v))
    answer = study.judge()
    assert answer.pairs == 1
    assert 1 + answer.gain == pytest.approx(answer.launches[0].ratio)
    assert answer.verdict.endswith("too few pairs of runs in turn confirm it, and the budget has no time for another")


@pytest.mark.parametrize(("default", "other"), [(5e-324, 1.7e308), (1.7e308, 5e-324), (1.0, float("inf"))])
def test_figures_between_which_no_number_lies_end_no_study(default: float, other: float) -> None:
    """A script prints what it likes: the study ended with an OverflowError, and its runs were lost."""
    study = Played(lambda values, now: other if values or now % 40 == 30 else default)
    assert describe_verdict(study.judge())


@pytest.mark.parametrize("seconds", [(), (0.0,), (-5.0,)])
def test_a_study_that_ends_before_its_default_was_measured_has_an_answer(
    seconds: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the first launch ended `tune` and `bench` with an internal error (70), as a saved study of others did
    whose default took no time."""
    monkeypatch.setattr(Played, "run", lambda _: iter(()))
    study = Played(faster, earlier=[CandidateTried({}, "failed", 1.0, each) for each in seconds])
    assert study.count_left() == 0
    assert study.judge().verdict == "no other launch was tried"


@pytest.mark.parametrize("at", [1e-200, 1e9, 1e308])
def test_times_of_a_saved_study_that_no_clock_has_end_no_study(at: float) -> None:
    """No line goes through points that are as good as one (70), or so far apart that their squares are infinite."""
    earlier = [CandidateTried({}, "measured", when, 10.0, {"pace": 9.0 + when / at}) for when in (at, -at, 0.0)]
    assert all(0.5 < (row.ratio or 0.0) < 2 for row in Played(faster, earlier=earlier).judge().launches)
