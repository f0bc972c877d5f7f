"""Series of any length in a bounded number of points."""

from collections.abc import Sequence
from math import isfinite
from statistics import median

from ipexctl.model.page import Points

_FINEST = 0.05  # seconds: the width of a column in the beginning
_Point = tuple[float, int, float]  # time, number, value


class Series:
    """Points as they come, as the least and the greatest value of each of at most ``columns`` columns of time, which
    is what a chart of so many pixels can show. Columns double their width when time outgrows them."""

    __slots__ = ("_begin", "_columns", "_extremes", "_width", "count", "last")

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._begin = 0.0
        self._width = _FINEST
        self._extremes: dict[int, list[_Point]] = {}  # column → its least and greatest point
        self.count = 0
        self.last: tuple[float, float] | None = None

    def add_point(self, at: float, value: float) -> None:
        """One more point; what is not finite is left out."""
        if not (isfinite(at) and isfinite(value)):
            return
        if not self.count:
            self._begin = at
        self.count += 1
        self.last = (at, value)
        column = max(int((at - self._begin) / self._width), 0)
        while column >= self._columns:
            self._double_width()
            column = max(int((at - self._begin) / self._width), 0)
        self._add_to_column(column, (at, self.count, value))

    def _add_to_column(self, column: int, point: _Point) -> None:
        extremes = self._extremes.get(column)
        if extremes is None:
            self._extremes[column] = [point, point]
            return
        if point[2] < extremes[0][2]:
            extremes[0] = point
        if point[2] > extremes[1][2]:
            extremes[1] = point

    def _double_width(self) -> None:
        extremes, self._extremes = self._extremes, {}
        self._width *= 2
        for column, points in extremes.items():
            for point in points:
                self._add_to_column(column // 2, point)

    def points(self, shift: float = 0.0) -> Points:
        """The points in order of time, ``shift`` seconds later; those of one moment in the order in which they came."""
        every = {point for extremes in self._extremes.values() for point in extremes}
        every |= {(self.last[0], self.count, self.last[1])} if self.last else set()
        return tuple((at + shift, value) for at, _, value in sorted(every))


def thin_points(points: Points, columns: int) -> Points:
    """The least and greatest of as many columns, if there are more."""
    if len(points) <= 2 * columns:
        return points
    series = Series(columns)
    for at, value in points:
        series.add_point(at, value)
    return series.points()


SLOW = 0.9  # of the median of all: a pace below it is a straggler's


def find_stragglers(paces: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Ranks whose pace is below `SLOW` times the median of all, and their share of it. Two ranks have no median that
    says which of them is the slow one."""
    if len(paces) < 3:
        return {}
    middle = median(pace for _, pace in paces)
    return {rank: pace / middle for rank, pace in paces if middle > 0 and pace < SLOW * middle}
