"""What launches are worth: their rates against the default's, which is measured in turn with them, so that a machine
that changes its speed fools nobody."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, log, sqrt
from statistics import fmean, linear_regression, median

from ipexctl.model.answers.tune import TriedLaunch
from ipexctl.model.events import CandidateTried, StudyStarted, describe_values
from ipexctl.model.grouping import group_pairs

# The first of them that is printed counts, unless the user names a figure.
RATES = {"pace": "steps/s", "samples_s": "samples/s", "tokens_s": "tokens/s"}
_NEAR = 6  # measurements of the default that a rate is compared with
_LEAST_NOISE = 0.005


class Ranking:
    """The launches of a study that were ``tried`` so far."""

    def __init__(self, started: StudyStarted, tried: Sequence[CandidateTried]) -> None:
        self._tried, self._sign = tried, -1.0 if started.minimize else 1.0
        printed = next((each.rates for each in tried if each.rates), {})
        self.metric = started.metric or next((name for name in RATES if name in printed), "")
        defaults = ((each.at, self.read_rate(each.rates)) for each in tried if not each.values)
        self._defaults = [(at, rate) for at, rate in defaults if rate is not None]

    @property
    def unit(self) -> str:
        return RATES.get(self.metric, self.metric)

    def read_rate(self, rates: Mapping[str, float]) -> float | None:
        """The logarithm of the figure that counts, the greater the better; None without it."""
        rate = rates.get(self.metric, 0.0)
        return self._sign * log(rate) if rate > 0 else None

    @property
    def noise(self) -> float:
        """The error of one measurement, as a share, from those of the default that follow each other."""
        steps = [(after[1] - before[1]) ** 2 for before, after in pairwise(self._defaults)]
        return max(sqrt(fmean(steps) / 2) if steps else 0.0, _LEAST_NOISE)

    def compare(self, rates: Mapping[str, float], at: float) -> float | None:
        """The logarithm of how many times these figures are better than the default's at that time."""
        rate, near = self.read_rate(rates), sorted(self._defaults, key=lambda each: abs(each[0] - at))[:_NEAR]
        if rate is None or not near:
            return None
        times, values = [when - at for when, _ in near], [value for _, value in near]
        return rate - (linear_regression(times, values).intercept if len(near) > 1 else values[0])

    def score(self, tried: CandidateTried) -> float | None:
        """The same of a launch that was tried; None of one that failed."""
        return None if tried.outcome == "failed" else self.compare(tried.rates, tried.at)

    def list_launches(self, least: int = 2) -> tuple[TriedLaunch, ...]:
        """Each launch with what is known of it, the best first. Bounds need ``least`` runs of it and of the default,
        since nothing but the scatter between runs says how far a rate is off."""
        groups = group_pairs((describe_values(each.values), each) for each in self._tried)
        rows = [self._summarize(name, runs, least) for name, runs in groups.items()]
        return tuple(sorted(rows, key=lambda row: (row.dropped, -(row.ratio or 0.0))))

    def _summarize(self, name: str, runs: Sequence[CandidateTried], least: int) -> TriedLaunch:
        scores = [score for each in runs if (score := self.score(each)) is not None]
        rates = [each.rates[self.metric] for each in runs if self.score(each) is not None]
        mean, error = (fmean(scores), self.noise / sqrt(len(scores))) if scores else (None, 0.0)
        low, ratio, high = (None if mean is None else exp(mean + side * error) for side in (-1, 0, 1))
        if min(len(scores), len(self._defaults)) < least:
            low = high = None
        return TriedLaunch(
            name, runs[0].values, len(runs), median(rates) if rates else None, ratio, low, high,
            all(each.outcome == "dropped" for each in runs), next((each.why for each in runs if each.why), ""),
            runs[0].changes,
        )  # fmt: skip
