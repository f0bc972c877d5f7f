"""Figures of any length in a bounded number of points."""

import math

from hypothesis import given
from hypothesis import strategies as st

from ipexctl.decide.run.series import add_point, find_stragglers, list_points
from ipexctl.model.run_state import Series

POINTS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e9, 1e9)), min_size=1, max_size=300)


@given(points=POINTS, columns=st.integers(2, 40))
def test_the_extremes_and_the_last_point_are_kept(points: list[tuple[float, float]], columns: int) -> None:
    points = sorted(points)
    series = Series(columns)
    for at, value in points:
        add_point(series, at, value)
    kept = list_points(series)
    assert len(kept) <= 2 * columns + 1
    assert set(kept) <= set(points)
    assert list(kept) == sorted(kept)
    values = [value for _, value in points]
    assert min(value for _, value in kept) == min(values)
    assert max(value for _, value in kept) == max(values)
    assert kept[-1][0] == points[-1][0]


def test_what_is_not_a_number_is_left_out() -> None:
    series = Series(10)
    for value in (1.0, math.nan, math.inf, -1e308, 1e308, 2.0):
        add_point(series, value, value)
    assert list_points(series) == ((1.0, 1.0), (2.0, 2.0))


def test_stragglers_are_below_the_median_of_all_and_two_ranks_have_none() -> None:
    assert find_stragglers([(0, 1.0), (1, 1.0), (2, 0.5), (3, 0.95)]) == {2: 0.5 / 0.975}
    assert find_stragglers([(0, 1.0), (1, 0.1)]) == {}
    assert find_stragglers([(0, 0.0), (1, 0.0), (2, 0.0)]) == {}


def test_points_of_one_moment_stay_in_the_order_in_which_they_came() -> None:
    """Several lines may be read at once."""
    series = Series(10)
    for at, value in [(0.0, 3.0), (1.0, 2.0), (1.0, 1.0), (2.0, 0.5)]:
        add_point(series, at, value)
    assert list_points(series) == ((0.0, 3.0), (1.0, 2.0), (1.0, 1.0), (2.0, 0.5))
