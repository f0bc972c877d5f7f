"""What a launch does in a second once it is warm, from the state of its run."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from ipexctl.model.run_state import RunState

WARM_UP = 3  # steps that do not count
_LEAST_TIME = 2.0  # seconds from which steps say how many are done in a second

_Points = list[tuple[float, float]]  # (time, value)


class RateReader:
    """Notes the steps and the figures of each rank as they come; one of its steps counts as ``scale``."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._steps: dict[int, _Points] = defaultdict(list)
        self._values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def read_state(self, state: RunState, rank: int) -> None:
        """Reads what the last event, output of this rank, has brought."""
        for each in state.values:
            self._values[each.name][each.rank].append(each.value)
        step = state.ranks[rank].figures.get("step") if rank < len(state.ranks) else None
        steps = self._steps[rank]
        if step is not None and (not steps or step > steps[-1][1]):
            steps.append((state.at, step))

    def _list_runs(self) -> list[tuple[float, float]]:
        """Returns, of each rank that prints its steps, how many it did after the first ones, and their seconds."""
        warm = ([each for each in steps if each[1] >= steps[0][1] + WARM_UP] for steps in self._steps.values() if steps)
        return [(each[-1][1] - each[0][1], each[-1][0] - each[0][0]) for each in warm if len(each) > 1]

    @property
    def steps(self) -> int:
        """Steps after the first ones, of the rank that is furthest; 0 while they took too little time to say a rate."""
        runs = self._list_runs()
        values = [len(each) - WARM_UP for ranks in self._values.values() for each in ranks.values()]
        if runs and max(seconds for _, seconds in runs) < _LEAST_TIME:
            return 0
        return max([int(count) for count, _ in runs] or values, default=0)

    @property
    def rates(self) -> Mapping[str, float]:
        """Each figure, of all ranks the median; ``pace`` is counted where steps are printed."""
        counted = [count / seconds for count, seconds in self._list_runs() if seconds > 0]
        every = {name: [value for each in ranks.values() for value in each[WARM_UP:] or each[-1:]]
                 for name, ranks in self._values.items()} | ({"pace": counted} if counted else {})  # fmt: skip
        return {name: self._scale * median(values) for name, values in every.items()}
