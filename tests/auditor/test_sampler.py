from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from nafaudit.auditor import sampler
from nafaudit.auditor.sampler import (
    BINS,
    SHARES,
    contrast_p,
    likelihood_p,
    pit_p,
    repeats,
    some_outputs_p,
)


def test_the_level_is_spent_once() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_an_e_process_is_judged_by_its_largest_mean() -> None:
    steps = np.log([[2.0, 1.0], [3.0, 0.1], [0.01, 1.0]])
    assert likelihood_p(steps) == pytest.approx(1 / ((6 + 0.1) / 2))
    assert likelihood_p(-np.abs(steps)) == 1.0


def test_one_faulty_trajectory_of_many_is_not_drowned_by_the_sound_ones() -> None:
    sound = np.full((60, 2), -3.0)
    assert some_outputs_p(sound) == 1.0
    for at in (0, 30, 59):
        faulty = sound.copy()
        faulty[at, 1] = 30.0
        assert some_outputs_p(faulty) < 1e-9


def test_an_e_process_keeps_its_level() -> None:
    """Gaussian steps against shifted means; Ville's bound is 0.05 of 4,000 audits of 20."""
    draw = np.random.default_rng(3)
    x, shifts = draw.normal(size=(4000, 20, 1)), np.array([-1.0, 0.3, 2.0])
    for process in (likelihood_p, some_outputs_p):
        alarms = int((process(x * shifts - shifts**2 / 2) <= 0.05).sum())
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


def test_bets_on_some_steps_and_some_outputs_are_fair() -> None:
    draw = np.random.default_rng(11)
    # Log-ratios of a fair bet: normal with mean -s^2 / 2, so that exp has mean 1.
    ratios = draw.normal(-0.18, 0.6, (2000, 8, 12, 3))
    # Flakiness budget: none, the seed is fixed; 2000 audits at level 0.05 give at most 100 alarms
    # in the mean, and more than 150 with probability 1e-6.
    assert (sampler.some_steps_p(ratios.sum(axis=1)) <= 0.05).sum() <= 150
    assert (sampler.some_outputs_p(ratios.sum(axis=2)) <= 0.05).sum() <= 150


def test_a_bet_on_some_steps_is_the_mean_over_stretches() -> None:
    # Three steps, one alternative: stretches of 1, 2 and 4 steps, each length a third.
    places = np.log([[1.0], [8.0], [0.5]])
    by_length = [(1 + 8 + 0.5) / 3, (8 + 0.5) / 2, 4.0]
    assert sampler.some_steps_p(places) == pytest.approx(1 / np.mean(by_length))
    # Sixteen nats at one step of forty are seen although every other step speaks against it.
    places = np.full((40, 5), -9.0)
    places[7, 2] = 16.0
    assert sampler.some_steps_p(places) < 1e-3
    assert sampler.some_steps_p(np.minimum(places, 0.0)) == 1.0


def test_one_output_of_many_is_enough() -> None:
    ratios = np.full((60, 4), -30.0)
    ratios[50] = 20.0
    assert likelihood_p(ratios) == 1.0  # the others hide it
    assert sampler.some_outputs_p(ratios) < 1e-4
