"""What is kept of a run in bounded memory: series in so many points, the first and the last of each rank's output; and
the pace that straggles."""

from collections.abc import Sequence
from math import isfinite
from statistics import median

from ipexctl.model.events import Stream
from ipexctl.model.run_state import OutputLog, Points, Series

_LATEST = 1e17  # Unix seconds, before or after 1970
_COLUMN_LIMIT = 40_000  # columns of all curves of one figure together


def count_columns(members: int) -> int:
    """Columns of each of so many curves."""
    return min(max(_COLUMN_LIMIT // max(members, 1), 60), 500)


def add_point(series: Series, at: float, value: float) -> None:
    """One more point; what is no number, or at no time, is left out. Columns double in width as time grows."""
    if not (abs(at) < _LATEST and isfinite(value)):
        return
    if not series.count:
        series.begin = at
    series.count += 1
    series.last = (at, value)
    column = max(int((at - series.begin) / series.width), 0)
    while column >= series.columns:
        extremes, series.extremes = series.extremes, {}
        series.width *= 2
        for old, points in extremes.items():
            for point in points:
                _add_to_column(series, old // 2, point)
        column = max(int((at - series.begin) / series.width), 0)
    _add_to_column(series, column, (at, series.count, value))


def _add_to_column(series: Series, column: int, point: tuple[float, int, float]) -> None:
    extremes = series.extremes.get(column)
    if extremes is None:
        series.extremes[column] = [point, point]
        return
    if point[2] < extremes[0][2]:
        extremes[0] = point
    if point[2] > extremes[1][2]:
        extremes[1] = point


def list_points(series: Series, shift: float = 0.0) -> Points:
    """The points in order of time, ``shift`` seconds later; those of one moment in the order in which they came."""
    every = {point for extremes in series.extremes.values() for point in extremes}
    every |= {(series.last[0], series.count, series.last[1])} if series.last else set()
    return tuple((at + shift, value) for at, _, value in sorted(every))


SLOW_SHARE = 0.9  # of the median of all: a pace below it is a straggler's


def find_stragglers(paces: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Ranks whose pace is below `SLOW_SHARE` times the median of all, and their share of it. Two ranks have no median
    that says which of them is the slow one."""
    if len(paces) < 3:
        return {}
    middle = median(pace for _, pace in paces)
    return {rank: pace / middle for rank, pace in paces if middle > 0 and pace < SLOW_SHARE * middle}


_LINE_COST = 32  # bytes of the limit that a line takes beside its own: in a page, and in what that is made of


def _measure(text: bytes) -> int:
    return len(text) + text.count(b"\n") * _LINE_COST


def add_lines(log: OutputLog, at: float, stream: Stream, text: bytes) -> None:
    """Adds whole lines that ended at this moment."""
    quarter, room = log.limit // 4, log.limit * 3 // 4
    if log.head_size < quarter and not log.tail:
        most = quarter // _LINE_COST
        lines = text[:quarter].split(b"\n", most)
        kept = b"\n".join([*lines[:most], b""] if len(lines) > most else lines)
        log.head.append((at, stream, kept))
        log.head_size += _measure(text)
        log.omitted += len(text) - len(kept)
        return
    most = room // _LINE_COST + 1
    kept = b"\n".join(text[-room:].rsplit(b"\n", most)[-most:])
    log.tail.append((at, stream, kept))
    log.omitted += len(text) - len(kept)
    log.tail_size += _measure(kept)
    while log.tail_size > room and len(log.tail) > 1:
        dropped = log.tail.popleft()[2]
        log.tail_size -= _measure(dropped)
        log.omitted += len(dropped)
