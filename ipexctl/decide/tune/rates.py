"""The rates of a launch after its first steps, from the state of its run."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from statistics import median, quantiles

from ipexctl.model.run_state import RunState

WARM_UP = 3  # steps that do not count
_LEAST_TIME = 2.0  # seconds from which steps say how many are done in a second
PREFERRED = ("pace", "samples_s", "tokens_s")


class RateReader:
    """Notes the steps and the figures of each rank as they come. `rates` has the median rank's."""

    def __init__(self) -> None:
        self._steps: dict[int, list[tuple[float, float]]] = defaultdict(list)  # rank → (time, step)
        self._values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def read_state(self, state: RunState, rank: int) -> None:
        """Reads what the last event, output of this rank, has brought."""
        for value in state.values:
            self._values[value.name][value.rank].append(value.value)
        step = state.ranks[rank].figures.get("step") if rank < len(state.ranks) else None
        steps = self._steps[rank]
        if step is not None and (not steps or step > steps[-1][1]):
            steps.append((state.at, step))

    @property
    def steps(self) -> int:
        """Steps after the first ones, of the rank that is furthest."""
        counts = [int(steps[-1][1] - steps[0][1]) for steps in self._list_steps()]
        values = [len(each) - WARM_UP for ranks in self._values.values() for each in ranks.values()]
        return max(counts or values, default=0)

    @property
    def lasted(self) -> bool:
        """Whether enough time has passed since the first steps."""
        steps = self._list_steps()
        return not steps or max(each[-1][0] - each[0][0] for each in steps) >= _LEAST_TIME

    def _list_steps(self) -> list[list[tuple[float, float]]]:
        """Of each rank the steps after the first ones, two at least."""
        warm = ([each for each in steps if each[1] >= steps[0][1] + WARM_UP] for steps in self._steps.values() if steps)
        return [steps for steps in warm if len(steps) > 1 and steps[-1][0] > steps[0][0]]

    @property
    def rates(self) -> Mapping[str, float]:
        """Each figure; ``pace`` is counted where steps are printed."""
        rates = {name: median(self._list_values(name)) for name in self._values}
        counted = [(steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0]) for steps in self._list_steps()]
        return rates | ({"pace": median(counted)} if counted else {})

    def find_quartiles(self, name: str) -> tuple[float, float]:
        """Between which the middle half of a figure lies."""
        values = [
            (after[1] - before[1]) / (after[0] - before[0])
            for steps in (self._list_steps() if name == "pace" else [])
            for before, after in pairwise(steps)
            if after[0] > before[0]
        ]
        values = values or (self._list_values(name) if name in self._values else [])
        low, _, high = (
            quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values, *values, *values] or [0.0] * 3
        )
        return low, high

    def _list_values(self, name: str) -> list[float]:
        """The values of all ranks after the first steps, where there are as many."""
        return [value for each in self._values[name].values() for value in (each[WARM_UP:] or each[-1:])]
