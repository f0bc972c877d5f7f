"""A study: launches in turn with the default one, so that a machine that changes its speed fools nobody, and the best
of them against the default once more."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import exp, log, sqrt
from statistics import fmean

from ipexctl.decide.tune.search import ListSearch, OptunaSearch
from ipexctl.model.events import CandidateTried, Purpose, Values
from ipexctl.model.json_values import Record

_BLOCK = 4  # candidates between two measurements of the default
_FINALISTS = 6
_FINALS = 2, 200, 14  # measurements of finalists: without noise, more for a noise of 100 %, at most
_PAIRS = 2, 6  # A B, at least and at most
_NEAR = 2.0  # blocks of the default on each side that a rate is compared with
_FAR = 50.0  # times that, from where on all is as far
_NOISE = 2.0  # times its own error that a gain must be
_LEAST_GAIN = 0.01
_LEAST_NOISE = 0.005
_REPEATED = 50  # proposals in a row that were measured before: the space is exhausted


class Candidate(Record):
    """A launch to try."""

    number: int
    purpose: Purpose
    values: Values
    launch: str = ""  # `identify_launch`
    proposal: int | None = None  # of the search


class Verdict(Record):
    """What a study found. ``gain`` is what the launch ``values`` is faster than the default, as a share, ``error`` how
    far that may be off; ``pairs`` are rates (default, candidate) in turn."""

    values: Values
    gain: float
    error: float
    pairs: tuple[tuple[float, float], ...]
    recommended: bool


class Study:
    """Chooses launches one by one and takes what became of them. ``identify`` returns what a launch of these values is,
    None where there is none; ``seconds`` are counted from the study's start. ``finals``: the best of them are measured
    again before one is set against the default."""

    def __init__(
        self,
        search: OptunaSearch | ListSearch,
        identify: Callable[[Values], str | None],
        budget: float,
        *,
        metric: str = "",
        minimize: bool = False,
        scale: Callable[[Values], float] = lambda values: 1.0,
        finals: bool = True,
    ) -> None:
        self._search, self._identify, self._budget = search, identify, budget
        self.metric, self._minimize, self._scale = metric, minimize, scale
        self.tried: list[CandidateTried] = []
        self._open: list[tuple[Candidate, CandidateTried]] = []  # the search gets them with the next default
        self._by_launch: dict[str, list[CandidateTried]] = {}
        self._default = identify({}) or ""
        self._phase, self._fresh = "search", False  # fresh: the default was measured by this command
        self._number = 0
        self._has_finals, self._finals = finals, 0  # measurements of finalists that are left
        self._winner: CandidateTried | None = None

    # choosing ------------------------------------------------------------------------------------------------------

    def choose(self, now: float) -> Candidate | None:
        """Returns the launch to try next; None at the end."""
        candidate = self._choose(now)
        if candidate is not None:
            self._number += 1
        return candidate

    def _choose(self, now: float) -> Candidate | None:
        defaults = [each.outcome for each in self.tried if not each.values]
        if defaults == ["failed"] or defaults[-2:] == ["failed", "failed"]:
            return None  # the hosts, or the script, are not or no longer what they should be
        if not self._fresh:
            return self._make("default", {})
        left = (self._budget - now) / self._longest
        if self._phase == "search":
            if left > self._reserve and (candidate := self._propose()):
                return candidate
            self._phase, self._finals = "final", self._count_finals()
            if self._open:
                return self._make("default", {})
        if self._phase == "final":
            if len(self._open) >= _BLOCK:
                return self._make("default", {})
            best = self._choose_finalist()
            if best is not None and self._finals > 0 and left > 2 * _PAIRS[0] + 2:
                self._finals -= 1
                return self._make("final", best.values, best.launch)
            self._phase = "confirm"
            if self._open:
                return self._make("default", {})
        return self._choose_pair(left)

    def _propose(self) -> Candidate | None:
        """A launch of the search that is worth a measurement, or the default where that is due."""
        if len(self._open) >= _BLOCK:
            return self._make("default", {})
        for _ in range(_REPEATED):
            number, values = self._search.ask()
            launch = self._identify(values)
            known = self._by_launch.get(launch or "", [])
            if launch == self._default:
                self._search.tell(number, 0.0)
            elif launch is None or any(each.outcome == "failed" for each in known):
                self._search.tell(number, None)
            elif len(known) > 1:
                self._search.tell(number, self._score(known))
            elif any(launch == candidate.launch for candidate, _ in self._open):
                self._search.tell(number, None)
            else:
                return self._make("search", values, launch, number)
        return None

    def _choose_finalist(self) -> CandidateTried | None:
        """The launch that may be the best: of few measurements more is expected."""
        room = [(self._score(self._by_launch[each.launch], 2.0), each) for each in self._rank_launches()[:_FINALISTS]]
        return max(room, key=lambda pair: pair[0])[1] if len(room) > 1 else None

    def _choose_pair(self, left: float) -> Candidate | None:
        ranking = self._rank_launches()
        if self._winner is None:
            if not ranking or left < 2:
                return None
            self._winner = self._drop_needless(ranking)
        launch = self._winner.launch
        confirmed = [each for each in self.tried if each.purpose == "confirm"]
        if any(each.outcome == "failed" for each in confirmed[-1:]):
            return None
        verdict, odd = self.judge(), len(confirmed) % 2
        enough = len(verdict.pairs) >= _PAIRS[1] or verdict.gain < -verdict.error or verdict.recommended
        if not odd and ((len(verdict.pairs) >= _PAIRS[0] and enough) or left < 2):
            return None
        return self._make("confirm", self._winner.values if odd else {}, launch if odd else "")

    def _drop_needless(self, ranking: Sequence[CandidateTried]) -> CandidateTried:
        """The best launch, or one that is as good with fewer of its parts."""
        parts, least = ranking[0].values.items(), self._score(self._by_launch[ranking[0].launch], 0.0) - _LEAST_GAIN
        simpler = [each for each in ranking if each.values.items() <= parts]
        return min(
            (each for each in simpler if self._score(self._by_launch[each.launch], 0.0) >= least),
            key=lambda each: len(each.values),
        )

    def _make(self, purpose: Purpose, values: Values, launch: str = "", proposal: int | None = None) -> Candidate:
        return Candidate(self._number, purpose, values, launch or self._default, proposal)

    # measuring -----------------------------------------------------------------------------------------------------

    def is_out(self, candidate: Candidate, rates: Mapping[str, float], step: int) -> bool:
        """Whether a launch that is being measured is out of the race after so many steps."""
        rate = rates.get(self.metric)
        if candidate.proposal is None or not rate:
            return False
        score = self._sign * log(rate * self._scale(candidate.values) / self._defaults[-1][1])
        return self._search.is_out(candidate.proposal, score, step)

    def add(self, tried: CandidateTried, candidate: Candidate | None = None) -> None:
        """Takes what became of a launch; one that an earlier command tried has no ``candidate``."""
        self.metric = self.metric or next(
            (name for name in ("pace", "samples_s", "tokens_s") if name in tried.rates), ""
        )
        self.tried.append(tried)
        self._number = max(self._number, tried.number + 1)
        if tried.values:
            self._by_launch.setdefault(tried.launch, []).append(tried)
            self._open.append((candidate or Candidate(tried.number, tried.purpose, tried.values, tried.launch), tried))
        elif tried.outcome == "measured":
            self._fresh = self._fresh or candidate is not None
            self._close_block()

    def _close_block(self) -> None:
        """Tells the search what the launches since the last measurement of the default are worth."""
        for candidate, tried in self._open:
            score = self.compare(tried) if tried.outcome != "failed" else None
            if candidate.proposal is not None:
                self._search.tell(candidate.proposal, score)
            elif score is not None and tried.outcome == "measured":
                self._search.learn(candidate.values, score)
        self._open = []

    @property
    def _sign(self) -> float:
        return -1.0 if self._minimize else 1.0

    @property
    def _defaults(self) -> list[tuple[float, float]]:
        """When the default was measured, and its rate."""
        rates = [(each.at, each.rates.get(self.metric)) for each in self.tried if not each.values]
        return [(at, rate) for at, rate in rates if rate]

    @property
    def _longest(self) -> float:
        """Seconds that a launch takes, at most."""
        return max(each.seconds for each in self.tried if not each.values)

    @property
    def _reserve(self) -> float:
        """How many launches the end of the study needs room for; of a small budget not more than half."""
        whole = self._count_finals() * (1 + 1 / _BLOCK) + 2 + 2 * _PAIRS[0]
        return min(whole, self._budget / self._longest / 2)

    def _count_finals(self) -> int:
        least, more, most = _FINALS if self._has_finals else (0, 0, 0)
        return min(least + round(more * self.estimate_noise()), most)

    # judging -------------------------------------------------------------------------------------------------------

    def compare(self, tried: CandidateTried) -> float | None:
        """Returns the logarithm of a rate against the default's at that time, the greater the better; None without."""
        rate, defaults = tried.rates.get(self.metric), self._defaults
        if not rate or not defaults:
            return None
        times = [at for at, _ in defaults]
        gap = _NEAR * (times[-1] - times[0]) / max(len(times) - 1, 1) or 1e9
        base = _fit_line(
            [(at - tried.at, log(other), exp(-min(abs(tried.at - at) / gap, _FAR))) for at, other in defaults]
        )
        return self._sign * (log(rate * self._scale(tried.values)) - base)

    def _score(self, known: Sequence[CandidateTried], errors: float = -1.0) -> float:
        """The mean of what is known of a launch, and so many errors of it: the fewer measurements, the less it is
        worth."""
        scores = [score for each in known if (score := self.compare(each)) is not None]
        return fmean(scores) + errors * self.estimate_noise() / sqrt(len(scores)) if scores else -1.0

    def _rank_launches(self) -> list[CandidateTried]:
        """A measurement of each launch that was measured as a whole and promises a gain, the best launch first."""
        outcomes = ({each.outcome: each for each in known} for known in self._by_launch.values())
        good = [found["measured"].launch for found in outcomes if "measured" in found and "failed" not in found]
        whole = [self._by_launch[launch] for launch in good]
        scores = [(self._score(known), known[0]) for known in whole]
        return [tried for score, tried in sorted(scores, key=lambda pair: -pair[0]) if score > 0]

    def estimate_noise(self) -> float:
        """Returns the error of one measurement, as a share, from those of the default that follow each other."""
        rates = [log(rate) for _, rate in self._defaults]
        steps = [(after - before) ** 2 for before, after in pairwise(rates)]
        return max(sqrt(fmean(steps) / 2) if steps else 0.0, _LEAST_NOISE)

    def judge(self) -> Verdict:
        """Returns what is known now of the launch that was set against the default, or would be."""
        best = self._winner or next(iter(self._rank_launches()), None)
        if best is None:
            return Verdict({}, 0.0, 0.0, (), False)
        confirmed = [each for each in self.tried if each.purpose == "confirm"]
        rates = [each.rates[self.metric] * self._scale(each.values) for each in confirmed if each.outcome == "measured"]
        pairs = tuple(zip(rates[::2], rates[1::2], strict=False))
        if not pairs:
            return Verdict(best.values, exp(self._score(self._by_launch[best.launch], 0.0)) - 1, 0.0, (), False)
        gains = [self._sign * log(after / before) for before, after in pairs]
        error = _NOISE * self.estimate_noise() * sqrt(2 / len(pairs))
        gain = fmean(gains)
        good = (
            len(pairs) >= _PAIRS[0]
            and len(rates) == len(confirmed)
            and gain > max(error, _LEAST_GAIN)
            and min(gains) > 0
        )
        return Verdict(best.values, exp(gain) - 1, error, pairs, good)


def _fit_line(points: Sequence[tuple[float, float, float]]) -> float:
    """The value at 0 of the line through points (place, value, weight)."""
    total = sum(weight for _, _, weight in points)
    middle, mean = (sum(point[2] * point[column] for point in points) / total for column in (0, 1))
    spread = sum(weight * (place - middle) ** 2 for place, _, weight in points)
    slope = sum(weight * (place - middle) * (value - mean) for place, value, weight in points) / (spread or 1.0)
    return mean - slope * middle
