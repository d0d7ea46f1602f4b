from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.stats import zero_count_upper
from nafaudit.stats.coverage import Bonferroni
from nafaudit.stats.rates import (
    design_effect,
    detectable_rate,
    detection_chance,
    trajectories_for_mean,
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
    assert detection_chance(detectable_rate(20), 20) == pytest.approx(0.95)
    assert detection_chance(0.5, 2) == pytest.approx(0.75)
    assert detection_chance(1.0, 1) == 1
    assert detection_chance(0.3, 0) == 0
    # 10 trajectories a prompt at the paper's correlation of 0.215: 1500 are worth about 510.
    assert 1500 / design_effect(10, 0.215) == pytest.approx(511, abs=1)


# What no bound can beat, as published: limit, R, typical, n at 0.05 and at 0.0033.
@pytest.mark.parametrize(
    ("limit", "high", "typical", "loose", "strict"),
    [
        (594, 720, 190, 3, 4),
        (594, 1188, 190, 6, 12),
        (594, 2352, 190, 15, 28),
        (594, 5115, 190, 36, 67),
        (994, 5115, 190, 17, 33),
        (194, 2352, 160, 192, 366),
    ],
)
def test_least_n_for_a_mean(
    limit: float, high: float, typical: float, loose: int, strict: int
) -> None:
    assert trajectories_for_mean(typical, limit, high, 0.05) == loose
    assert trajectories_for_mean(typical, limit, high, 0.0033) == strict
    assert high - 0.05 ** (1 / loose) * (high - typical) <= limit
    assert trajectories_for_mean(typical, high, high) == 1


def test_nonsense_is_refused() -> None:
    for call in (
        lambda: trajectories_for_rate(0.0),
        lambda: trajectories_for_rate(1.0),
        lambda: trajectories_for_rate(0.1, math.nan),
        lambda: detectable_rate(0),
        lambda: detection_chance(1.5, 3),
        lambda: trajectories_for_mean(5.0, 4.0, 10.0),
        lambda: design_effect(0, 0.2),
        lambda: design_effect(2, 1.2),
        lambda: Bonferroni(0.05, 0),
        lambda: Bonferroni(0.0, 3),
        lambda: Bonferroni(0.05, 3).adjusted(1.2),
    ):
        with pytest.raises(InputError):
            call()


def test_everything_looked_at_pays() -> None:
    assert Bonferroni(0.05, 12).each == 0.05 / 12
    assert Bonferroni(0.05, 12).adjusted(0.01) == pytest.approx(0.12)
    assert Bonferroni(0.05, 12).adjusted(0.5) == 1
