from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from nafaudit.checks import sampler
from nafaudit.checks.sampler import BINS, SHARES, contrast_p, likelihood_p, pit_p, repeats


def test_the_level_is_spent_once() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_an_e_process_is_judged_by_its_largest_mean() -> None:
    steps = np.log([[2.0, 1.0], [3.0, 0.1], [0.01, 1.0]])
    # After two of three trajectories: the products, and each alone, the third not yet played.
    largest = 0.8 * (6 + 0.1) / 2 + 0.2 * (1.5 + 1.55 + 1) / 3
    assert likelihood_p(steps) == pytest.approx(1 / largest)
    assert likelihood_p(-np.abs(steps)) == 1.0


def test_one_faulty_trajectory_of_many_is_not_drowned_by_the_sound_ones() -> None:
    sound = np.full((60, 2), -3.0)
    assert likelihood_p(sound) == 1.0
    for at in (0, 30, 59):
        faulty = sound.copy()
        faulty[at, 1] = 30.0
        assert likelihood_p(faulty) < 1e-9


def test_an_e_process_keeps_its_level() -> None:
    """Gaussian steps against shifted means; Ville's bound is 0.05 of 4,000 audits of 20."""
    draw = np.random.default_rng(3)
    x, shifts = draw.normal(size=(4000, 20, 1)), np.array([-1.0, 0.3, 2.0])
    alarms = int((likelihood_p(x * shifts - shifts**2 / 2) <= 0.05).sum())
    # Flakiness budget: none, the seed is fixed; above 250 with probability 3e-4 at most.
    assert 0 < alarms <= 250


def test_contrasts_have_the_tails_of_skewed_sums() -> None:
    # 60 exponential variables: skewness 2 / sqrt(60). The exact law of the sum is a gamma.
    n, x = 60, 60 + 4.5 * math.sqrt(60)
    sums = np.array([[x - n, n, 2.0 * n, n]])
    exact = stats.gamma(n).sf(x)
    assert contrast_p(sums) == pytest.approx(2 * exact, rel=1e-6)
    assert stats.norm.sf(4.5) < exact / 10  # the plain z test would cry wolf ten times as often
    assert contrast_p(sums * [-1, 1, -1, 1]) == pytest.approx(2 * exact, rel=1e-6)
    # Towards the short tail it is the normal law that is larger.
    assert contrast_p(sums * [-1, 1, 1, 1]) == pytest.approx(2 * stats.norm.sf(4.5), rel=1e-6)
    assert contrast_p(sums * [1, 1, 1, 0.4]) == 1.0  # too few steps to say anything
    assert contrast_p(np.zeros((3, 4))) == 1.0


def test_a_chi_square_needs_tokens() -> None:
    flat = np.full((4, BINS), 10.0)
    assert pit_p(flat) == pytest.approx(1.0)
    tilted = flat * np.linspace(0.5, 1.5, BINS)
    expected = stats.chisquare(tilted.sum(axis=0)).pvalue
    assert pit_p(tilted) == pytest.approx(expected)
    assert pit_p(tilted / 100) == 1.0


def test_repeats_are_shared_beginnings_within_a_prompt() -> None:
    a = np.array([1, 2, 3, 4], np.int32)
    b = np.array([1, 2, 9], np.int32)
    c = np.array([7, 2, 9], np.int32)
    logp = [np.full(x.size, -5.0) for x in (a, b, c, a)]
    found = repeats(["p", "p", "p", "q"], [a, b, c, a], logp)
    assert (found.first, found.second, found.length) == (0, 1, 2)
    assert found.p == pytest.approx(3 * math.exp(-10))
    assert repeats(["p", "q"], [a, a], logp[:2]).p == 1.0  # other prompts may repeat


def test_shared_noise_is_seen_and_independence_is_not() -> None:
    draw = np.random.default_rng(5)
    # Flakiness budget: none, the seed is fixed; 400 audits at level 0.05 give 20 alarms at most
    # in the mean, and more than 40 with probability 3e-5.
    free = draw.random((400, 12, 30))
    free[:, :, 20:][draw.random((400, 12, 10)) < 0.5] = np.nan
    assert (sampler.shared_noise_p(free) <= 0.05).sum() <= 40
    common = draw.random((50, 1, 30)) + draw.normal(0, 0.05, (50, 12, 30))
    assert (sampler.shared_noise_p(np.clip(common, 0, 1)) <= 1e-4).all()
