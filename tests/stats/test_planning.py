from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.stats import zero_count_upper
from nafaudit.stats.coverage import Bonferroni
from nafaudit.stats.rates import (
    detectable_rate,
    trajectories_for_rate,
)


@given(st.floats(1e-6, 0.99), st.sampled_from([0.05, 0.01, 1e-4]))
def test_the_fewest_trajectories_for_a_rate(rate: float, delta: float) -> None:
    n = trajectories_for_rate(rate, delta)
    assert zero_count_upper(n, delta) <= rate
    assert n == 1 or zero_count_upper(n - 1, delta) > rate


def test_hand_computed() -> None:
    assert trajectories_for_rate(0.05) == 59
    assert trajectories_for_rate(0.01) == 299
    assert f"{100 * detectable_rate(20):.1f}" == "13.9"


def test_nonsense_is_refused() -> None:
    for call in (
        lambda: trajectories_for_rate(0.0),
        lambda: trajectories_for_rate(1.0),
        lambda: trajectories_for_rate(0.1, math.nan),
        lambda: detectable_rate(0),
        lambda: Bonferroni(0.05, 0),
        lambda: Bonferroni(0.0, 3),
    ):
        with pytest.raises(InputError):
            call()


def test_everything_looked_at_pays() -> None:
    assert Bonferroni(0.05, 12).each == 0.05 / 12
