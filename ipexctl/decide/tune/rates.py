"""What a launch does in a second once it is warm, from the state of its run."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from ipexctl.model.run_state import RunState

WARM_UP = 3  # steps that do not count
_LEAST_TIME = 2.0  # seconds from which steps say how many are done in a second


class RateReader:
    """Notes the steps and the figures of each rank as they come; one of its steps counts as ``scale``."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._warm: dict[int, tuple[float, float]] = {}  # the steps and seconds of a rank's first ones
        self._counted: dict[int, tuple[float, float]] = {}  # and of all after them
        self._values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def read_state(self, state: RunState, rank: int) -> None:
        """Reads what the last event, output of this rank, has brought."""
        for each in state.values:
            self._values[each.name][each.rank].append(each.value)
        if rank < len(state.ranks) and state.ranks[rank].steps >= WARM_UP:
            steps, seconds = state.ranks[rank].steps, state.ranks[rank].seconds
            first = self._warm.setdefault(rank, (steps, seconds))
            self._counted[rank] = (steps - first[0], seconds - first[1])

    @property
    def steps(self) -> int:
        """Steps after the first ones, of the rank that is furthest; 0 while they took too little time to say a rate."""
        values = [len(each) - WARM_UP for ranks in self._values.values() for each in ranks.values()]
        if self._counted and max(seconds for _, seconds in self._counted.values()) < _LEAST_TIME:
            return 0
        return max([int(steps) for steps, _ in self._counted.values()] or values, default=0)

    @property
    def rates(self) -> Mapping[str, float]:
        """Each figure, of all ranks the median; ``pace`` is counted where steps are printed."""
        counted = [steps / seconds for steps, seconds in self._counted.values() if steps and seconds]
        every = {name: [value for each in ranks.values() for value in each[WARM_UP:] or each[-1:]]
                 for name, ranks in self._values.items()} | ({"pace": counted} if counted else {})  # fmt: skip
        return {name: self._scale * median(values) for name, values in every.items()}
