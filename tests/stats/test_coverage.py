"""Every bound keeps its level, and would not if it were a little smaller.

Soundness and tightness are computed exactly where the laws can be enumerated: on values 0 and 1
the chance of a miss is a sum over counts or sequences. No randomness, so no flakiness.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from nafaudit.core.errors import InputError
from nafaudit.stats import BOUNDS
from nafaudit.stats.bound import BoundSpec
from nafaudit.stats.coverage import NULLS, Miss, Null, applies, miss_rate

DELTA, N = 0.05, 9
LAW = {null.name: null for null in NULLS}
# How much of each width is needed: with this share of it, some law breaks the bound.
NEEDED = {
    "ebb": 0.42,
    "maurer-pontil": 0.46,
    "hoeffding": 0.89,
    "hoeffding-bentkus": 0.999,
    "anderson": 0.999,
    "betting": 0.955,
    "betting-prompts": 0.955,
    "betting-lower": 0.955,
    "clopper-pearson": 0.999,
}
# The same for bounds that may be looked at at any time: at this multiple of delta they break.
FACTOR = {
    "prpl-eb": 4.5,
    "betting": 2.5,
    "betting-lower": 2.5,
    "betting-prompts": 2.5,
    "anytime-rate": 2.0,
}
SEQUENCES = np.array(list(itertools.product([0.0, 1.0], repeat=N)))


def all_miss_rates(
    specs: list[BoundSpec], n: int, *, samples: int, seed: int = 0
) -> Iterator[Miss]:
    """Miss rates of every bound on every law that keeps its assumptions."""
    for spec in specs:
        for null in NULLS:
            if applies(spec, null):
                yield miss_rate(spec, null, n, DELTA, samples=samples, seed=seed)


def worst_miss(spec: BoundSpec, n: int, share: float) -> float:
    """Largest exact chance of a miss over all rates of 0-or-1 values, widths scaled by share."""
    counts = np.arange(n + 1)
    rows = (np.arange(n)[None, :] < counts[:, None]).astype(float)
    means = counts / n
    limits = means + share * (spec.rows(rows, 1.0, DELTA) - means)
    sign = 1 if spec.side == "upper" else -1
    worst = 0.0
    for limit in limits:
        # The chance jumps where the rate passes a limit.
        rate = limit + sign * 1e-9
        if 0 < rate < 1:
            missed = limits < rate if sign > 0 else limits > rate
            worst = max(worst, float(binom.pmf(counts, n, rate)[missed].sum()))
    return worst


@pytest.mark.parametrize("name", NEEDED)
def test_sound_and_tight_by_enumeration(name: str) -> None:
    sizes = (2, 12, 40) if name.startswith("betting") else (2, 5, 12, 400)
    assert max(worst_miss(BOUNDS[name], n, 1.0) for n in sizes) <= DELTA * (1 + 1e-6)
    assert max(worst_miss(BOUNDS[name], n, NEEDED[name]) for n in sizes) > DELTA


def ever_missed(spec: BoundSpec, rate: float, delta: float) -> float:
    """Exact chance that a bound looked at after every value misses the rate at least once."""
    assert spec.missed is not None
    missed = spec.missed(SEQUENCES, rate, 1.0, delta).any(axis=1)
    ones = SEQUENCES.sum(axis=1)
    return float((rate**ones * (1 - rate) ** (N - ones))[missed].sum())


def test_every_proven_bound_is_measured() -> None:
    proven = {name for name in BOUNDS if BOUNDS[name].proven}
    assert set(FACTOR) == {name for name in proven if BOUNDS[name].anytime}
    assert proven - set(NEEDED) - set(FACTOR) == {"cluster-t"}


@pytest.mark.parametrize("name", FACTOR)
def test_looking_after_every_value_costs_nothing(name: str) -> None:
    rates = np.linspace(0.02, 0.98, 33)
    worst = max(ever_missed(BOUNDS[name], float(rate), DELTA) for rate in rates)
    assert worst <= DELTA
    factor = FACTOR[name]
    bold = max(ever_missed(BOUNDS[name], float(rate), factor * DELTA) for rate in rates)
    assert bold > DELTA


@pytest.mark.parametrize("name", FACTOR)
def test_the_path_and_the_bound_agree(name: str) -> None:
    spec = BOUNDS[name]
    assert spec.missed is not None
    rows = np.random.default_rng(3).permutation(SEQUENCES)[:200]
    if spec.about == "mean":
        rows = np.clip(rows + np.random.default_rng(4).uniform(-0.2, 0.2, rows.shape), 0, 1)
    for n in (1, 5, N):
        for mean in (0.1, 0.37, 0.8):
            limits = spec.rows(rows[:, :n], 1.0, DELTA)
            wrong = limits < mean if spec.side == "upper" else limits > mean
            assert (spec.missed(rows, mean, 1.0, DELTA)[:, n - 1] == wrong).all()


def test_a_fixed_n_bound_breaks_under_peeking() -> None:
    """Why looking early is refused: at nominal 5 % Clopper-Pearson misses far more, ever."""
    spec = BOUNDS["clopper-pearson"]
    rates = np.linspace(0.05, 0.95, 19)
    worst = 0.0
    for rate in rates:
        paths = [spec.rows(SEQUENCES[:, :n], 1.0, DELTA) < rate for n in range(1, N + 1)]
        missed: NDArray[np.bool_] = np.any(paths, axis=0)
        ones = SEQUENCES.sum(axis=1)
        worst = max(worst, float((rate**ones * (1 - rate) ** (N - ones))[missed].sum()))
    assert worst > 1.5 * DELTA


def test_cluster_t_is_exact_for_normal_prompt_means() -> None:
    # 100,000 samples: the rate's standard error is 0.0007. Both sides at 5 errors: 6e-7.
    found = miss_rate(BOUNDS["cluster-t"], LAW["normal"], 20, DELTA, samples=100_000)
    assert abs(found.rate - DELTA) < 0.0035


def two_regimes(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    return np.where(rng.random(shape) < 0.2, 591.0, 36.0)


def test_the_papers_proxy_misses_two_times_in_five() -> None:
    # The chance of seeing only zeros is 0.8^4 = 0.41; 10,000 samples, 5 errors: 6e-7.
    regimes = Null("two regimes in nats", 147.0, two_regimes, 594.0)
    found = miss_rate(BOUNDS["ebb-reff"], regimes, 4, DELTA)
    assert abs(found.rate - 0.8**4) < 0.025
    assert not found.sound


def test_every_bound_keeps_its_level_on_every_law() -> None:
    # `sound` allows each of some 60 counts 1e-6, and the seed is fixed.
    proven = [spec for spec in BOUNDS.values() if spec.proven]
    found = list(all_miss_rates(proven, 24, samples=2_000))
    assert {miss.bound for miss in found} == {spec.name for spec in proven}
    assert [miss for miss in found if not miss.sound] == []


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in BOUNDS if BOUNDS[name].proven])
def test_miss_rates_over_ten_thousand_samples(name: str) -> None:
    # `sound` allows each of at most 10 counts 1e-6, and the seed is fixed.
    found = list(all_miss_rates([BOUNDS[name]], 40, samples=10_000, seed=1))
    assert found
    assert [miss for miss in found if not miss.sound] == []


def test_pooling_prompts_breaks_what_their_means_keep() -> None:
    """30 prompts x 10 with all of the spread between prompts: units are prompts."""
    rng = np.random.default_rng(5)
    prompts = rng.random((400, 30)).repeat(10, axis=1)
    pooled = BOUNDS["betting"].rows(prompts, 1.0, DELTA) < 0.5
    units = BOUNDS["betting-prompts"].rows(prompts[:, ::10], 1.0, DELTA) < 0.5
    # Pooled misses over 10 % of 400 with chance far above 1 - 1e-6 (its rate is near 25 %).
    assert pooled.mean() > 0.1
    assert units.mean() <= DELTA


def test_a_law_that_breaks_an_assumption_is_refused() -> None:
    with pytest.raises(InputError, match="breaks an assumption of bound 'hoeffding'"):
        miss_rate(BOUNDS["hoeffding"], LAW["heavy tail"], 20, DELTA)
    assert not applies(BOUNDS["clopper-pearson"], LAW["uniform"])
    with pytest.raises(InputError, match="need n >= 2"):
        miss_rate(BOUNDS["ebb"], LAW["uniform"], 1, DELTA)


def test_laws_have_the_means_they_claim() -> None:
    for null in NULLS:
        values = null.draw(np.random.default_rng(6), (1000, 200))
        # 200,000 values, 6 standard errors: 2e-9 each.
        error = values.std() / np.sqrt(values.size)
        assert abs(values.mean() - null.mean) < 6 * error
        assert values.max() <= null.high


def test_too_many_misses_are_unsound() -> None:
    assert Miss("b", "law", 20, 0.05, 10_000, 560).sound
    assert not Miss("b", "law", 20, 0.05, 10_000, 650).sound
