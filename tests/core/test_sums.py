"""Sums of many pieces have the bits of exactly rounded sums of each."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.trajectory import total, totals

# From the smallest number above 0 to far more than is ever charged, of both signs.
FLOATS = st.floats(-1e250, 1e250, allow_subnormal=True) | st.sampled_from(
    [0.0, -0.0, 5e-324, -5e-324, 1e-300, 0.1, 1.0, 2.0**53, -(2.0**53), 1e16, 1e250, -1e250]
)


@given(st.lists(st.lists(FLOATS, min_size=1, max_size=20), max_size=8))
def test_sums_of_pieces_are_exactly_rounded(pieces: list[list[float]]) -> None:
    starts = np.cumsum([0, *map(len, pieces)])[:-1]
    values = np.array([value for piece in pieces for value in piece], np.float64)
    assert totals(values, starts) == [total(piece) for piece in pieces]


def test_long_pieces_of_very_different_numbers_are_exactly_rounded() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=50_000) * 10.0 ** rng.integers(-40, 40, 50_000)
    starts = np.array([0, 1, 3, 4_096, 40_000])
    found = totals(values, starts)
    assert found == [math.fsum(piece) for piece in np.split(values, starts[1:])]
    # A plain sum has other digits, so that the test can fail.
    assert found != np.add.reduceat(values, starts).tolist()
