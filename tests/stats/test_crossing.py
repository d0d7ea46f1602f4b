from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.stats.rates import crossing, first_crossing, resampled

CURVES = st.lists(
    st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=6
)  # fmt: skip
GRID = np.array([0.0, 1.0, 5.0, 20.0])


def slow(curve: list[float], target: float) -> float:
    """Walks along one curve."""
    for i, value in enumerate(curve):
        if value >= target:
            if i == 0:
                return float(GRID[0])
            share = (target - curve[i - 1]) / (value - curve[i - 1])
            return float(GRID[i - 1] + share * (GRID[i] - GRID[i - 1]))
    return math.inf


@given(CURVES, st.floats(0.01, 0.99))
def test_a_crossing_is_where_a_walk_along_the_curve_finds_it(
    curves: list[list[float]], target: float
) -> None:
    found = first_crossing(GRID, np.array(curves), target)
    assert found == pytest.approx([slow(curve, target) for curve in curves], rel=1e-9, abs=1e-9)


@given(CURVES, st.floats(0.01, 0.99))
def test_the_estimate_lies_after_its_bracket_and_between_its_limits_or_beyond(
    curves: list[list[float]], target: float
) -> None:
    found = crossing(GRID, curves, target, resamples=50)
    assert found.low <= found.high
    assert found.at == pytest.approx(slow(np.mean(curves, axis=0).tolist(), target), rel=1e-6)
    if math.isfinite(found.at) and found.at > 0:
        assert found.below < found.at
    # Resamples that do not cross are beyond the grid; they are not left out.
    assert (found.high == math.inf) == (found.none > 0.025)
    assert found.units == len(curves)


def test_no_crossing_widens_the_interval_instead_of_vanishing() -> None:
    """Two of five passages decide: conditioning on a crossing would hide the other resamples."""
    curves = [[0, 0, 0, 1.0]] * 2 + [[0, 0, 0, 0.0]] * 3
    found = crossing(GRID, curves, 0.39)
    # P(at most one of the two kinds in five draws) = 0.6^5 + 5 * 0.4 * 0.6^4 = 0.337.
    assert found.none == pytest.approx(0.337, abs=0.05)  # 4.7 sigma of 2,000: fails 1 in 4e5
    assert found.high == math.inf and math.isfinite(found.low)
    assert math.isfinite(found.at)
    assert crossing(GRID, curves, 0.39) == found


def test_weights_of_resamples_are_counts() -> None:
    weights = resampled(7, 30, seed=3)
    assert np.allclose(weights.sum(axis=1), 1)
    assert np.allclose(weights * 7, np.round(weights * 7))
    # Expected weight 1/7 each: of 30 x 7 draws one unit has none with chance (6/7)^210 < 1e-13.
    assert (weights.sum(axis=0) > 0).all()


@pytest.mark.parametrize("grid", [[0.0, 0.0, 1.0, 2.0], [0.0, 1.0]])
def test_what_is_no_grid_is_refused(grid: list[float]) -> None:
    with pytest.raises(ValueError, match="grid"):
        crossing(grid, [[0.0, 0.1, 0.2, 0.3]], 0.1)
