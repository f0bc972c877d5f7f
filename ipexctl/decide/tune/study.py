"""A study: launches that Optuna proposes, in turn with the default one; then the best against the default once more."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from statistics import fmean
from typing import Any

from ipexctl.decide.tune.ranking import RATES, Ranking
from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.errors import UsageError
from ipexctl.model.events import CandidateTried, Event, StudyStarted, Values, describe_values
from ipexctl.model.text import pluralize

PAIRS = 2, 6  # A B, at least and at most
_BLOCK = 4  # launches between two measurements of the default
_FINALS = 400, 40  # measurements of the best ones for a noise of 100 %, and at most
_END = 2 + 2 * PAIRS[0]  # launches that the end needs room for, beside the finals
_NOISE = 2.0  # times its own error that a gain must be
_LEAST_GAIN = 0.01
_RANDOM = 10  # launches before the sampler has a model
_REPEATED = 50  # proposals in a row that were tried before: the space is exhausted


class OptunaSearch:
    """A seeded study of Optuna over the values of each knob, beside the default's. It proposes the ``listed`` launches
    first; a value of them that is none of the knob's is left as in the default."""

    def __init__(self, started: StudyStarted, listed: Sequence[Values]) -> None:
        optuna = import_optuna()
        sampler = optuna.samplers.TPESampler(seed=started.seed, multivariate=True, n_startup_trials=_RANDOM)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=max(started.steps // 4, 1), reduction_factor=2)
        self._study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        self._failed = optuna.trial.TrialState.FAIL
        choices = {name: (None, *values) for name, values in started.knobs.items()}
        self._space = {name: optuna.distributions.CategoricalDistribution(each) for name, each in choices.items()}
        self._trial: Any = None  # the proposal that has no score yet
        for values in listed:
            known = {name: value for name, value in values.items() if value in choices.get(name, ())}
            self._study.enqueue_trial({name: known.get(name) for name in choices})

    def ask(self) -> Values:
        """Returns the values of a launch, which `tell` takes the score of."""
        self._trial = self._study.ask(self._space)
        return {name: value for name, value in self._trial.params.items() if value is not None}

    def is_out(self, score: float, step: int) -> bool:
        """Returns whether others are better than the proposal, which has this score after so many steps."""
        if self._trial is None:
            return False
        self._trial.report(score, step)
        return bool(self._trial.should_prune())

    def tell(self, score: float | None) -> None:
        """Takes the score of the proposal; None where it has none."""
        self._study.tell(self._trial, score, self._failed if score is None else None)
        self._trial = None


def import_optuna() -> Any:
    """Returns Optuna, which prints nothing by itself. Raises `UsageError` where it is not installed."""
    try:
        import optuna
    except ImportError:
        what = "tune searches with Optuna, which is not installed beside ipexctl"
        raise UsageError(what, hint="pip install 'ipexctl[tune]', or uv tool install 'ipexctl[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class DefaultFailed(Exception):
    """The default failed at once, or twice in turn: hosts or script are not, or no longer, what they should be."""


class Study(ABC):
    """Chooses launches one by one, after those that an ``earlier`` command tried; the ``listed`` ones are first."""

    def __init__(self, started: StudyStarted, earlier: Sequence[CandidateTried] = ()) -> None:
        self.started = started
        self._asked: dict[str, Values] = {self.identify({}) or "": {}}  # how each launch was asked for first
        self.tried = [each for each in earlier if self._find_values(each.values) is not None]
        self.listed = [each.values for each in self.tried]
        self._search: OptunaSearch | None = None
        self._best: TriedLaunch | None = None  # that is set against the default,
        self._gains: list[float] = []  # and what each pair of runs shows of it

    @abstractmethod
    def identify(self, values: Values) -> str | None:
        """Returns what the launch with these values is, however it is asked for; None where there is none."""

    @abstractmethod
    def watch(self) -> float:
        """Returns the seconds since the study began."""

    @abstractmethod
    def measure(self, values: Values) -> Generator[Event, None, CandidateTried]:
        """Tries the launch with these values; asks `is_out` meanwhile."""

    @property
    def ranking(self) -> Ranking:
        return Ranking(self.started, self.tried)

    def run(self) -> Generator[Event, None, None]:
        """Tries launches until no more are worth it, or the budget ends. Raises `DefaultFailed`."""
        yield from self.tried
        yield from self.try_default()
        yield from self.search()
        yield from self._confirm()

    def search(self) -> Generator[Event, None, None]:
        """Tries what Optuna proposes, then the best ones again: the one that may be the fastest each time."""
        self._search = OptunaSearch(self.started, self.listed)
        room = self.count_left()
        most = max(room / 2, min(room, _END) - 1)
        while self.count_left() > min(self._count_finals() * (1 + 1 / _BLOCK) + _END, most):
            values = self._propose(self._search)
            if values is None:
                break
            tried = yield from self.try_launch(values)
            self._search.tell(self.ranking.compare(tried.rates, tried.at))
        if sum(not each.values for each in self.tried) < 2 and self.count_left() > _END:
            yield from self.try_default()  # which shows the noise
        for _ in range(self._count_finals()):
            launches = self._rank_launches()
            highs = [row.high or 0.0 for row in launches]
            if self.count_left() <= _END or not launches or (launches[0].low or 0.0) > max(highs[1:], default=0.0):
                break  # no time, or the best one is clear
            yield from self.try_launch(launches[highs.index(max(highs))].values)

    def _propose(self, search: OptunaSearch) -> Values | None:
        """A launch that was not tried before; None where there are no more."""
        ratios = {row.name: row.ratio for row in self.ranking.list_launches()}
        for _ in range(_REPEATED + len(ratios)):
            values = self._find_values(search.ask())
            if values and describe_values(values) not in ratios:
                return values
            ratio = None if values is None else ratios[describe_values(values)]
            search.tell(log(ratio) if ratio else None)
        return None

    def try_default(self) -> Generator[Event, None, None]:
        """Tries the default, once more where it fails."""
        for _ in range(2 if self.tried else 1):
            if (yield from self.try_launch({})).outcome == "measured":
                return
        raise DefaultFailed

    def try_launch(self, values: Values) -> Generator[Event, None, CandidateTried]:
        """Measures the launch with these values, after the default where the last `_BLOCK` launches were others."""
        if values and all(each.values for each in self.tried[-_BLOCK:]):
            yield from self.try_default()
        tried = yield from self.measure(values)
        self.tried.append(tried)
        yield tried
        return tried

    def _find_values(self, values: Values) -> Values | None:
        """The values by which this launch was asked for first, none for the default; None where it cannot be."""
        launch = self.identify(values)
        return None if launch is None else self._asked.setdefault(launch, values)

    def _confirm(self) -> Generator[Event, None, None]:
        """Sets the best launch against the default, in turn; of those that are as good the simplest."""
        launches = self._rank_launches()
        good = [row for row in launches if (row.low or 0.0) * (1 + _LEAST_GAIN) >= (launches[0].low or 0.0)]
        self._best = min(good, key=lambda row: len(row.values), default=None)
        while self._best and self.count_left() >= 2 and len(self._gains) < PAIRS[1]:
            pair = []
            for values in ({}, self._best.values):
                tried = yield from self.try_launch(values)
                rate = self.ranking.read_rate(tried.rates)
                if rate is None:
                    self._gains.clear()  # what fails now and then is not recommended
                    return
                pair.append(rate)
            self._gains.append(pair[1] - pair[0])
            known = self.judge()
            if known.pairs >= PAIRS[0] and (known.recommended or known.gain < -known.error):
                return

    def is_out(self, values: Values, rates: Mapping[str, float], at: float, steps: int) -> bool:
        """Whether the launch that is being measured, with these values, is out of the race after so many steps."""
        score = self.ranking.compare(rates, at) if values and self._search else None
        return self._search is not None and score is not None and self._search.is_out(score, steps)

    def count_left(self) -> float:
        """Returns how many launches the budget has room for; 0 while no default tells how long one takes."""
        seconds = max((each.seconds for each in self.tried if not each.values), default=0.0)
        return (self.started.budget - self.watch()) / seconds if seconds > 0 else 0.0

    def _count_finals(self) -> int:
        return min(round(_FINALS[0] * self.ranking.noise), _FINALS[1])

    def _rank_launches(self) -> list[TriedLaunch]:
        """The launches that were measured as a whole and promise a gain, the best one first: the fewer measurements,
        the less a launch is worth."""
        rows = [row for row in self.ranking.list_launches(1) if row.values and not row.dropped and not row.why]
        return sorted((row for row in rows if row.low and row.low > 1), key=lambda row: -(row.low or 0.0))

    @property
    def best(self) -> TriedLaunch | None:
        """The launch that was set against the default, or would be."""
        return self._best or next(iter(self._rank_launches()), None)

    def judge(self) -> TuneAnswer:
        """Returns what is known now."""
        ranking, best, gains = self.ranking, self.best, self._gains
        launches = ranking.list_launches()
        ratio = next((row.ratio for row in launches if best and row.name == best.name), None)
        gain, error = log(ratio) if ratio else 0.0, 0.0
        if len(gains) >= PAIRS[0]:  # one pair alone tells less than all runs do
            runs = sum(not each.values for each in self.tried)  # of the default: a few show too little of the noise
            gain, error = fmean(gains), _NOISE * (1 + 2 / (runs - 1)) * ranking.noise * sqrt(2 / len(gains))
        clear = gain > max(error, _LEAST_GAIN) and min(gains, default=0.0) > 0
        unit = RATES.get(ranking.metric, ranking.metric)
        answer = TuneAnswer(
            "", unit, launches, best.name if best else None, len(gains), exp(gain) - 1, error,
            clear and len(gains) >= PAIRS[0], "", len(self.tried), self.watch(), self.started.budget,
        )  # fmt: skip
        return replace(answer, verdict=describe_verdict(answer, fits=self.count_left() >= 2))


def describe_verdict(answer: TuneAnswer, *, fits: bool = True) -> str:
    """Returns the result of a study, as a sentence. ``fits``: the budget has time for another pair of runs."""
    if answer.best is None and len(answer.launches) > 1:
        return "no launch was clearly faster than the default"
    if answer.best is None:
        return "no other launch was tried"
    value, low, high = (f"{(1 + answer.gain) * exp(error):.3g}" for error in (0.0, -answer.error, answer.error))
    gain = f"{value} times as fast ({low} to {high}) in {pluralize(answer.pairs, 'pair')} of runs in turn"
    if answer.recommended:
        return f"{answer.best}: {gain}"
    if answer.pairs >= PAIRS[0]:
        return f"the default is as good: the best other launch, {answer.best}, was {gain}"
    why = "too few pairs of runs in turn confirm it" + ("" if fits else ", and the budget has no time for another")
    return f"best so far: {answer.best}, {value} times as fast; {why}"
