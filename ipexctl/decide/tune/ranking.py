"""What launches are worth: their rates against the default's, which is measured in turn with them, so that a machine
that changes its speed fools nobody."""

from array import array
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import exp, inf, log, sqrt
from operator import itemgetter
from statistics import fmean, linear_regression, median

from ipexctl.model.answers.tune import TriedLaunch
from ipexctl.model.events import CandidateTried, StudyStarted, describe_values
from ipexctl.model.run_state import RunState
from ipexctl.model.text import group_pairs

# The first of them that is printed counts, unless the user names a figure.
RATES = {"pace": "steps/s", "samples_s": "samples/s", "tokens_s": "tokens/s", "losses": "losses/s"}
_NEAR = 6  # measurements of the default that a rate is compared with
_LEAST_NOISE = 0.005
_GREATEST = 70.0  # of the logarithm of a rate, 1e30: a script may print any number
_SPAN = 1e-6, 1e9  # seconds: a saved study may say any; between others there is no line
WARM_UP = 3  # steps that do not count
_LEAST_TIME = 2.0  # seconds from which steps say how many are done in a second


class RateReader:
    """Notes the steps and the figures of each rank as they come; one of its steps counts as ``scale``."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._warm: dict[tuple[str, int], tuple[float, float]] = {}  # the steps and seconds of a rank's first ones
        self._counted: dict[tuple[str, int], tuple[float, float]] = {}  # and of all after them
        self._values: dict[tuple[str, int], array[float]] = defaultdict(lambda: array("d"))  # of a figure on a rank
        self._names, self._most = set[str](), 0  # of these figures, and how many values one has at most

    def read_state(self, state: RunState, rank: int) -> None:
        """Reads what the last event, output of this rank, has brought."""
        if rank >= len(state.ranks):
            return
        for each in state.values:
            values = self._values[each.name, each.rank]
            values.append(each.value)
            self._names.add(each.name)
            self._most = max(self._most, len(values))
        known = state.ranks[rank]
        name, steps, seconds = "pace", known.steps, known.seconds
        if known.counter is None:  # of a script that prints no steps, each loss counts
            name, steps, seconds = "losses", len(self._values.get(("loss", rank), ())), known.at
        if steps >= WARM_UP:
            first = self._warm.setdefault((name, rank), (steps, seconds))
            self._counted[name, rank] = (steps - first[0], seconds - first[1])

    @property
    def steps(self) -> int:
        """Steps after the first ones, of the rank that is furthest; 0 while they took too little time to say a rate."""
        if self._counted:
            return int(max(steps if seconds >= _LEAST_TIME else 0 for steps, seconds in self._counted.values()))
        return max(self._most - WARM_UP, 0)

    def has_any(self, names: Collection[str]) -> bool:
        """Returns whether one of these figures has a rate, without computing it: this is asked at each output."""
        counted = (name for (name, _), times in self._counted.items() if all(times))
        return not self._names.isdisjoint(names) or any(name in names for name in counted)

    @property
    def rates(self) -> Mapping[str, float]:
        """Each figure, of all ranks the median; ``pace`` is counted where steps are printed, else ``losses``."""
        every: dict[str, list[float]] = defaultdict(list)
        for (name, _), values in self._values.items():
            every[name] += values[WARM_UP:] or values[-1:]
        counted = [(name, times) for (name, _), times in self._counted.items() if all(times)]
        every |= group_pairs((name, steps / seconds) for name, (steps, seconds) in counted)
        return {name: self._scale * median(values) for name, values in every.items()}


class Ranking:
    """The launches of a study that were ``tried`` so far."""

    def __init__(self, started: StudyStarted, tried: Sequence[CandidateTried]) -> None:
        self._tried, self._sign = tried, -1.0 if started.minimize else 1.0
        printed = next((each.rates for each in tried if each.rates), {})
        self.metric = started.metric or next((name for name in RATES if name in printed), "")
        defaults = ((each.at, self.read_rate(each.rates)) for each in tried if not each.values)
        self._defaults = [(at, rate) for at, rate in defaults if rate is not None]
        self._by_time = sorted(self._defaults, key=itemgetter(0))

    def read_rate(self, rates: Mapping[str, float]) -> float | None:
        """The logarithm of the figure that counts, the greater the better; None without it."""
        rate = rates.get(self.metric, 0.0)
        return self._sign * _bound(log(rate)) if 0 < rate < inf else None

    @cached_property
    def noise(self) -> float:
        """The error of one measurement, as a share, from those of the default that follow each other."""
        steps = [(after[1] - before[1]) ** 2 for before, after in pairwise(self._defaults)]
        return max(sqrt(fmean(steps) / 2) if steps else 0.0, _LEAST_NOISE)

    def compare(self, rates: Mapping[str, float], at: float) -> float | None:
        """The logarithm of how many times these figures are better than the default's at that time."""
        rate, place = self.read_rate(rates), bisect(self._by_time, at, key=itemgetter(0))
        around = self._by_time[max(place - _NEAR, 0) : place + _NEAR]
        near = sorted(around, key=lambda each: abs(each[0] - at))[:_NEAR]
        if rate is None or not near:
            return None
        times, values = [when - at for when, _ in near], [value for _, value in near]
        expected = (
            linear_regression(times, values).intercept if _SPAN[0] < max(times) - min(times) < _SPAN[1] else values[0]
        )
        return _bound(rate - expected)

    def list_launches(self, least: int = 2) -> tuple[TriedLaunch, ...]:
        """Each launch with what is known of it, the best first. Bounds need ``least`` runs of it and of the default,
        since nothing but the scatter between runs says how far a rate is off."""
        groups = group_pairs((describe_values(each.values), each) for each in self._tried)
        rows = [self._summarize(name, runs, least) for name, runs in groups.items()]
        return tuple(sorted(rows, key=lambda row: (row.dropped, -(row.ratio or 0.0))))

    def _summarize(self, name: str, runs: Sequence[CandidateTried], least: int) -> TriedLaunch:
        scores = [score for each in runs if (score := self.compare(each.rates, each.at)) is not None]
        rates = [each.rates[self.metric] for each in runs if self.read_rate(each.rates) is not None]
        mean, error = (fmean(scores), self.noise / sqrt(len(scores))) if scores else (None, 0.0)
        low, ratio, high = (None if mean is None else exp(mean + side * error) for side in (-1, 0, 1))
        if min(len(scores), len(self._defaults)) < least:
            low = high = None
        return TriedLaunch(
            name, runs[0].values, len(runs), median(rates) if rates else None, ratio, low, high,
            all(each.outcome == "dropped" for each in runs), next((each.why for each in runs if each.why), ""),
            runs[0].changes,
        )  # fmt: skip


def _bound(logarithm: float) -> float:
    return min(max(logarithm, -_GREATEST), _GREATEST)
