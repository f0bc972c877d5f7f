"""A study: launches in turn with the default one, and the best of them against the default once more."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from statistics import fmean

from ipexctl.decide.tune.ranking import Ranking
from ipexctl.decide.tune.search import OptunaSearch
from ipexctl.decide.tune.summary import PAIRS, describe_verdict
from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.events import CandidateTried, Event, Purpose, StudyStarted, Values, describe_values

_BLOCK = 4  # launches between two measurements of the default
_FINALS = 400, 40  # measurements of the best ones for a noise of 100 %, and at most
_END = 2 + 2 * PAIRS[0]  # launches that the end needs room for, beside the finals
_NOISE = 2.0  # times its own error that a gain must be
_LEAST_GAIN = 0.01
_REPEATED = 50  # proposals in a row that were tried before: the space is exhausted


class DefaultFailed(Exception):
    """The default failed at once, or twice in turn: hosts or script are not, or no longer, what they should be."""


class Study(ABC):
    """Chooses launches one by one, after those that an ``earlier`` command tried; the ``listed`` ones are first."""

    def __init__(self, started: StudyStarted, earlier: Sequence[CandidateTried] = ()) -> None:
        self.started = started
        self.own_backend = ""  # that the script itself chooses, whatever is planned
        self._asked: dict[str, Values] = {self.identify({}) or "": {}}  # how each launch was asked for first
        known = [each for each in earlier if self._find_values(each.values) is not None]
        self.tried = [replace(each, purpose="search" if each.values else "default") for each in known]
        self.listed = [each.values for each in known]
        self._search: OptunaSearch | None = None
        self._exhausted = False  # no other launch is left to try
        self._best: TriedLaunch | None = None  # that is set against the default

    @abstractmethod
    def identify(self, values: Values) -> str | None:
        """Returns what the launch with these values is, however it is asked for; None where there is none."""

    @abstractmethod
    def watch(self) -> float:
        """Returns the seconds since the study began."""

    @abstractmethod
    def measure(self, purpose: Purpose, values: Values) -> Generator[Event, None, CandidateTried]:
        """Tries the launch with these values; asks `is_out` meanwhile."""

    @property
    def ranking(self) -> Ranking:
        return Ranking(self.started, self.tried)

    # choosing ------------------------------------------------------------------------------------------------------

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
        most = max(room / 2, _END - 1) if room > _END - 1 else room / 2
        while self.count_left() > min(self._count_finals() * (1 + 1 / _BLOCK) + _END, most):
            yield from self.keep_turn()
            values = self._propose(self._search)
            if values is None:
                self._exhausted = True
                break
            tried = yield from self.try_launch("search", values)
            self._search.tell(self.ranking.score(tried))
        if sum(not each.values for each in self.tried) < 2 and self.count_left() > _END:
            yield from self.try_default()  # which shows the noise
        for _ in range(self._count_finals()):
            launches = self._rank_launches()
            highs = [row.high or 0.0 for row in launches]
            if self.count_left() <= _END or not launches or (launches[0].low or 0.0) > max(highs[1:], default=0.0):
                break  # no time, or the best one is clear
            yield from self.keep_turn()
            yield from self.try_launch("final", launches[highs.index(max(highs))].values)

    def _propose(self, search: OptunaSearch) -> Values | None:
        """A launch that was not tried before; None where there are no more."""
        launches = {row.name: row for row in self.ranking.list_launches()}
        for _ in range(_REPEATED + len(launches)):
            values = self._find_values(search.ask())
            row = None if values is None else launches.get(describe_values(values))
            if values and row is None:
                return values
            search.tell(log(row.ratio) if row and row.ratio else None)
        return None

    def keep_turn(self) -> Generator[Event, None, None]:
        """Tries the default where the last `_BLOCK` launches were others."""
        if all(each.values for each in self.tried[-_BLOCK:]):
            yield from self.try_default()

    def try_default(self) -> Generator[Event, None, None]:
        """Tries the default, once more where it fails."""
        for _ in range(2 if self.tried else 1):
            if (yield from self.try_launch("default", {})).outcome == "measured":
                return
        raise DefaultFailed

    def try_launch(self, purpose: Purpose, values: Values) -> Generator[Event, None, CandidateTried]:
        """Measures the launch with these values, and keeps what comes of it."""
        tried = yield from self.measure(purpose, values)
        self.tried.append(tried)
        yield tried
        return tried

    def _find_values(self, values: Values) -> Values | None:
        """The values by which this launch was asked for first, none for the default; None where it cannot be."""
        launch = None if self.own_backend and "backend" in values else self.identify(values)
        return None if launch is None else self._asked.setdefault(launch, values)

    def leave_backends_out(self, backend: str) -> None:
        """Tries no backend any more, nor keeps what was tried: the script chooses its own, and each is the default."""
        self.own_backend = backend
        self.tried = [each for each in self.tried if "backend" not in each.values]

    def _confirm(self) -> Generator[Event, None, None]:
        """Sets the best launch against the default, in turn; of those that are as good the simplest."""
        launches = self._rank_launches()
        if not launches or self.count_left() < 2:
            return
        good = [row for row in launches if (row.low or 0.0) * (1 + _LEAST_GAIN) >= (launches[0].low or 0.0)]
        self._best = min(good, key=lambda row: len(row.values))
        while self.count_left() >= 2:
            for values in ({}, self._best.values):
                if (yield from self.try_launch("confirm", values)).outcome == "failed":
                    return
            known = self.judge()
            clear = known.recommended or known.gain < -known.error
            if known.pairs >= PAIRS[1] or (known.pairs >= PAIRS[0] and clear):
                return

    def is_out(self, rates: Mapping[str, float], at: float, steps: int) -> bool:
        """Whether the launch that is being measured is out of the race after so many steps."""
        score = self.ranking.compare(rates, at)
        return self._search is not None and score is not None and self._search.is_out(score, steps)

    def count_left(self) -> float:
        """Returns how many launches the budget has room for."""
        longest = max(each.seconds for each in self.tried if not each.values)
        return (self.started.budget - self.watch()) / longest

    def _count_finals(self) -> int:
        by_noise, most = _FINALS
        return min(round(by_noise * self.ranking.noise), most)

    # judging -------------------------------------------------------------------------------------------------------

    def _rank_launches(self) -> list[TriedLaunch]:
        """The launches that were measured as a whole and promise a gain, the best one first: the fewer measurements,
        the less a launch is worth."""
        rows = [row for row in self.ranking.list_launches(1) if row.values and not row.dropped and not row.why]
        return sorted((row for row in rows if row.low and row.low > 1), key=lambda row: -(row.low or 0.0))

    @property
    def best(self) -> TriedLaunch | None:
        """The launch that was set against the default, or would be."""
        return self._best or next(iter(self._rank_launches()), None)

    def judge(self, *, interrupted: bool = False) -> TuneAnswer:
        """Returns what is known now."""
        ranking, best = self.ranking, self.best
        confirmed = [each for each in self.tried if each.purpose == "confirm"]
        rates = [rate for each in confirmed if (rate := ranking.read_rate(each.rates)) is not None]
        gains = [after - before for before, after in zip(rates[::2], rates[1::2], strict=False)]
        gain, error, good = log(best.ratio) if best and best.ratio else 0.0, 0.0, False
        if gains:
            gain, error = fmean(gains), _NOISE * ranking.noise * sqrt(2 / len(gains))
            good = len(gains) >= PAIRS[0] and len(rates) == len(confirmed) and min(gains) > 0
        good = good and gain > max(error, _LEAST_GAIN)
        answer = TuneAnswer(
            "", ranking.unit, ranking.list_launches(), best.name if best else None, len(gains), exp(gain) - 1, error,
            good, "", len(self.tried), self.watch(), self.started.budget, interrupted,
        )  # fmt: skip
        return replace(answer, verdict=describe_verdict(answer, exhausted=self._exhausted))
