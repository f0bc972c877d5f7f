"""A study: launches in turn with the default one, and the best of them against the default once more."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from statistics import fmean
from typing import Any

from ipexctl.decide.tune.ranking import Ranking
from ipexctl.decide.tune.search import OptunaSearch
from ipexctl.model.answers.tune import TriedLaunch, TuneAnswer
from ipexctl.model.events import CandidateTried, Event, Purpose, StudyStarted, Values, describe_values

_BLOCK = 4  # launches between two measurements of the default
_FINALISTS = 6
_FINALS = 2, 200, 14  # measurements of finalists: without noise, more for a noise of 100 %, at most
_PAIRS = 2, 6  # A B, at least and at most
_NOISE = 2.0  # times its own error that a gain must be
_LEAST_GAIN = 0.01
_REPEATED = 50  # proposals in a row that were measured before: the space is exhausted


class DefaultFailed(Exception):
    """The default failed at once, or twice in turn: hosts or script are not, or no longer, what they should be."""


class Study(ABC):
    """Chooses launches one by one, after those that an ``earlier`` command tried. The ``listed`` ones are first;
    without a ``search`` each of them is tried once, and no others."""

    def __init__(
        self,
        started: StudyStarted,
        search: OptunaSearch | None,
        listed: Sequence[Values] = (),
        earlier: Sequence[CandidateTried] = (),
    ) -> None:
        self.started, self.search, self._listed = started, search, [*listed]
        self._asked: dict[str, Values] = {self.identify({}) or "": {}}  # how each launch was asked for first
        known = [each for each in earlier if self._find_values(each.values) is not None]
        self.tried = [replace(each, purpose="search" if each.values else "default") for each in known]
        self._open: list[tuple[Any, CandidateTried]] = [(None, each) for each in self.tried if each.values]
        self._trial: Any = None  # of the search, for the launch that is being measured
        self._best: TriedLaunch | None = None  # that is set against the default

    @abstractmethod
    def identify(self, values: Values) -> str | None:
        """Returns what the launch with these values is, however it is asked for; None where there is none."""

    @abstractmethod
    def watch(self) -> float:
        """Returns the seconds since the study began."""

    @abstractmethod
    def measure(self, purpose: Purpose, values: Values) -> Generator[Event, None, CandidateTried]:
        """Tries the launch with these values."""

    @property
    def ranking(self) -> Ranking:
        return Ranking(self.started, self.tried)

    # choosing ------------------------------------------------------------------------------------------------------

    def run(self) -> Generator[Event, None, None]:
        """Tries launches until no more are worth it, or the budget ends. Raises `DefaultFailed`."""
        yield from self.tried
        yield from self._try_default()
        ends, left = 2 + 2 * _PAIRS[0], self._count_left()  # launches that the end needs room for, beside the finalists
        least = max(left / 2, ends - 1) if left > ends - 1 else left / 2
        reserve = min(self._count_finals() * (1 + 1 / _BLOCK) + ends, least)
        while self._count_left() > reserve and (proposal := self._propose()):
            yield from self._try_other("search", *proposal)
        for _ in range(self._count_finals()):
            finalists = self._rank_launches()[:_FINALISTS]
            if len(finalists) > 1 and self._count_left() > ends:
                yield from self._try_other("final", max(finalists, key=lambda row: row.high or 0.0).values)
        yield from self._confirm()

    def _propose(self) -> tuple[Values, Any] | None:
        """A launch that is worth a measurement, and its trial: it was measured once at most, and never failed."""
        known = {row.name: row for row in self.ranking.list_launches()}
        waiting = [each.values for _, each in self._open]
        for _ in range(_REPEATED):
            if self._listed:
                trial, asked = None, self._listed.pop(0)
            elif self.search:
                trial, asked = self.search.ask()
            else:
                break
            values = self._find_values(asked)
            row = known.get(describe_values(values or {}))
            if values and values not in waiting and (row is None or (row.runs < 2 and not row.why)):
                return values, trial
            if self.search:
                score = log(row.ratio) if row and row.ratio and values is not None else None
                self.search.tell(trial, asked, score)
        return None

    def _try_other(self, purpose: Purpose, values: Values, trial: Any = None) -> Generator[Event, None, None]:
        """Tries a launch; after every `_BLOCK` of them the default."""
        self._trial = trial
        self._open.append((trial, (yield from self._try(purpose, values))))
        self._trial = None
        if len(self._open) >= _BLOCK:
            yield from self._try_default()

    def _try_default(self) -> Generator[Event, None, None]:
        """Tries the default, once more where it fails, and gives the search the ratios of the launches before."""
        for _ in range(2 if self.tried else 1):
            if (yield from self._try("default", {})).outcome == "measured":
                break
        else:
            raise DefaultFailed
        for trial, each in self._open:
            if self.search:
                score = self.ranking.score(each.rates, each.at) if each.outcome != "failed" else None
                self.search.tell(trial, each.values, score)
        self._open = []

    def _try(self, purpose: Purpose, values: Values) -> Generator[Event, None, CandidateTried]:
        tried = yield from self.measure(purpose, values)
        self.tried.append(tried)
        yield tried
        return tried

    def _find_values(self, values: Values) -> Values | None:
        """The values by which this launch was asked for first, none for the default; None where it cannot be."""
        launch = self.identify(values)
        return None if launch is None else self._asked.setdefault(launch, values)

    def _confirm(self) -> Generator[Event, None, None]:
        """Sets the best launch against the default, in turn; of those that are as good the simplest."""
        ranking = self._rank_launches()
        if not ranking or self._count_left() < 2:
            return
        good = [row for row in ranking if (row.low or 0.0) * (1 + _LEAST_GAIN) >= (ranking[0].low or 0.0)]
        self._best = min(good, key=lambda row: len(row.values))
        while self._count_left() >= 2:
            for values in ({}, self._best.values):
                if (yield from self._try("confirm", values)).outcome == "failed":
                    return
            known = self.judge()
            clear = known.recommended or known.gain < -known.error
            if known.pairs >= _PAIRS[1] or (known.pairs >= _PAIRS[0] and clear):
                return

    def is_out(self, rates: Mapping[str, float], at: float, steps: int) -> bool:
        """Whether the launch that is being measured is out of the race after so many steps."""
        score = self.ranking.score(rates, at)
        if self.search is None or self._trial is None or score is None:
            return False
        return self.search.is_out(self._trial, score, steps)

    def _count_left(self) -> float:
        """How many launches the budget has room for."""
        longest = max(each.seconds for each in self.tried if not each.values)
        return (self.started.budget - self.watch()) / longest

    def _count_finals(self) -> int:
        least, more, most = _FINALS if self.search else (0, 0, 0)
        return min(least + round(more * self.ranking.noise), most)

    # judging -------------------------------------------------------------------------------------------------------

    def _rank_launches(self) -> list[TriedLaunch]:
        """The launches that were measured as a whole and promise a gain, the best one first: the fewer measurements,
        the less a launch is worth."""
        rows = [row for row in self.ranking.list_launches() if row.values and not row.dropped and not row.why]
        return sorted((row for row in rows if row.low and row.low > 1), key=lambda row: -(row.low or 0.0))

    @property
    def best(self) -> TriedLaunch | None:
        """The launch that was set against the default, or would be."""
        return self._best or next(iter(self._rank_launches()), None)

    def judge(self) -> TuneAnswer:
        """Returns what is known now, without the words."""
        ranking, best = self.ranking, self.best
        confirmed = [each for each in self.tried if each.purpose == "confirm"]
        rates = [rate for each in confirmed if (rate := ranking.read_rate(each.rates)) is not None]
        gains = [after - before for before, after in zip(rates[::2], rates[1::2], strict=False)]
        gain, error, good = log(best.ratio) if best and best.ratio else 0.0, 0.0, False
        if gains:
            gain, error = fmean(gains), _NOISE * ranking.noise * sqrt(2 / len(gains))
            good = len(gains) >= _PAIRS[0] and len(rates) == len(confirmed) and min(gains) > 0
        good = good and gain > max(error, _LEAST_GAIN)
        return TuneAnswer(
            "", ranking.unit, ranking.list_launches(), best.name if best else None, len(gains), exp(gain) - 1, error,
            good, "", len(self.tried), self.watch(), self.started.budget, False,
        )  # fmt: skip
