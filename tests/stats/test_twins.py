"""Every bound against a slow twin written from its definition, and its inequality at equality."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, ksone, t

from nafaudit.core.errors import InputError
from nafaudit.stats import (
    BOUNDS,
    Sample,
    anytime_rate,
    bound,
    clopper_pearson,
    e_values,
    prpl_sequence,
    zero_count_upper,
)

UNIT = st.lists(st.floats(0, 1), min_size=1, max_size=9)
LEVEL = st.sampled_from([0.3, 0.05, 0.0033, 1e-6])
GRID = [1.0] + [0.01 * math.exp(i / 14 * math.log(90)) for i in range(15)]
SHARE = [0.25] + [0.05] * 15


def value(name: str, values: list[float], delta: float, high: float = 1.0) -> float:
    return bound(name, Sample.of(values, high, map(str, range(len(values)))), delta).value


def capital(values: list[float], m: float) -> float:
    """Against the mean m of values in [0, 1], as the definition has it."""
    products = [math.prod(1 + g * (m - x) / (1 - m) for x in values) for g in GRID]
    return sum(w * p for w, p in zip(SHARE, products, strict=True))


def capital_below(values: list[float], m: float) -> float:
    products = [math.prod(1 + g * (x / m - 1) for x in values) for g in GRID]
    return sum(w * p for w, p in zip(SHARE, products, strict=True))


@given(UNIT, LEVEL)
def test_betting_is_the_smallest_refuted_mean(values: list[float], delta: float) -> None:
    upper = value("betting", values, delta)
    assert sum(values) / len(values) - 1e-12 <= upper <= 1
    slack = 1e-9 * (1 - upper)
    if slack > 1e-15:
        assert capital(values, upper + slack) >= 1 / delta
        assert capital(values, upper - slack) < 1 / delta
    assert value("betting-prompts", values, delta) == upper
    assert value("betting", [7 * x for x in values], delta, 7.0) == pytest.approx(7 * upper)


@given(st.lists(st.floats(0, 1e3) | st.just(0.0), min_size=1, max_size=9), LEVEL)
def test_betting_lower_is_the_largest_refuted_mean(values: list[float], delta: float) -> None:
    lower = value("betting-lower", values, delta)
    assert 0 <= lower <= sum(values) / len(values) * (1 + 1e-12)
    if not any(values):
        assert lower == 0
    elif lower > 1e-200:
        assert capital_below(values, lower * (1 - 1e-9)) >= 1 / delta
        assert capital_below(values, lower * (1 + 1e-9)) < 1 / delta


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=9), st.floats(0.1, 1e3))
def test_e_values_after_each_value(values: list[float], limit: float) -> None:
    found = e_values(Sample.of(values), limit)
    slow = [capital_below(values[: i + 1], limit) for i in range(len(values))]
    assert found.tolist() == pytest.approx(slow, rel=1e-9, abs=1e-300)


def test_what_an_e_value_is_not_for() -> None:
    with pytest.raises(InputError, match="at least 0"):
        e_values(Sample.of([1.0, -1.0]), 1.0)
    with pytest.raises(InputError, match="above 0"):
        e_values(Sample.of([1.0]), 0.0)
    with pytest.raises(InputError, match="not independent"):
        e_values(Sample.of([1.0, 1.0], clusters=["p", "p"]), 1.0)


def slow_prpl(values: list[float], delta: float) -> float:
    level, mean, var = math.log(1 / delta), 0.5, 0.25
    bets = costs = weighted = 0.0
    seen, squares = 0.5, 0.25
    for i, x in enumerate(values, start=1):
        bet = min(math.sqrt(2 * level / (var * i * math.log(1 + i))), 0.75)
        costs += 4 * (x - mean) ** 2 * (-math.log(1 - bet) - bet) / 4
        bets += bet
        weighted += bet * x
        seen += x
        mean = seen / (i + 1)
        squares += (x - mean) ** 2
        var = squares / (i + 1)
    return min(1.0, (weighted + level + costs) / bets)


@given(UNIT, LEVEL)
def test_prpl(values: list[float], delta: float) -> None:
    upper = slow_prpl(values, delta)
    assert value("prpl-eb", values, delta) == pytest.approx(upper, abs=1e-12)
    if 2 * delta < 1:
        low, top = prpl_sequence(Sample.of(values, 1.0), 2 * delta)
        assert top[-1] == pytest.approx(upper, abs=1e-12)
        assert low[-1] == pytest.approx(1 - slow_prpl([1 - x for x in values], delta), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "printed"),
    [(4, "1.0"), (20, "0.26285"), (300, "0.01756"), (1000, "0.005267"), (1500, "0.003512")],
)
def test_printed_prpl_of_zeros(n: int, printed: str) -> None:
    top = prpl_sequence(Sample.of([0.0] * n, 1.0), 0.05)[1][-1]
    digits = len(printed.split(".")[1])
    assert f"{top:.{digits}f}" == printed


@given(UNIT, LEVEL)
def test_anderson_is_the_area_above_a_band(values: list[float], delta: float) -> None:
    n = len(values)
    gap = float(ksone.isf(delta, n))
    edges = sorted({0.0, 1.0, *values})
    area = sum(
        (b - a) * max(0.0, sum(x <= a for x in values) / n - gap)
        for a, b in itertools.pairwise(edges)
    )
    assert value("anderson", values, delta) == pytest.approx(1 - area, abs=1e-9)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=9), LEVEL)
def test_hoeffding_bentkus_is_the_smallest_refuted_mean(values: list[float], delta: float) -> None:
    n, mean = len(values), sum(values) / len(values)

    def p_value(m: float) -> float:
        kl = mean * math.log(mean / m) if mean else 0.0
        kl += (1 - mean) * math.log((1 - mean) / (1 - m)) if mean < 1 else 0.0
        tail = math.e * float(binom.cdf(math.ceil(n * mean), n, m))
        return min(math.exp(-n * kl), tail) if m > mean else 1.0

    upper = value("hoeffding-bentkus", values, delta)
    assert upper >= mean
    if upper < 1 - 1e-9:
        assert p_value(upper + 1e-9) <= delta
        assert p_value(upper - 1e-9) > delta


@given(st.integers(1, 40), st.data(), LEVEL)
def test_clopper_pearson_leaves_exactly_delta(n: int, data: st.DataObject, delta: float) -> None:
    events = data.draw(st.integers(0, n))
    lower, upper = clopper_pearson(events, n, delta)
    assert value("clopper-pearson", [1.0] * events + [0.0] * (n - events), delta) == upper
    if events == n:
        assert upper == 1
    else:
        chance = sum(math.comb(n, i) * upper**i * (1 - upper) ** (n - i) for i in range(events + 1))
        assert chance == pytest.approx(delta, rel=1e-6)
    if events == 0:
        assert lower == 0
        assert upper == pytest.approx(zero_count_upper(n, delta))
    else:
        assert float(binom.sf(events - 1, n, lower)) == pytest.approx(delta, rel=1e-6)


@settings(max_examples=40)
@given(st.integers(1, 30), st.data(), st.sampled_from([0.3, 0.05, 0.0033]))
def test_anytime_rate_is_the_smallest_refuted_rate(
    n: int, data: st.DataObject, delta: float
) -> None:
    events = data.draw(st.integers(0, n - 1))

    def evidence(u: float) -> float:
        # With p = u sin^2(a) the weight's pole at 0 is gone.
        def weight(a: float) -> float:
            return 2 * u * math.sin(a) * math.cos(a) / math.sqrt(p(a) * (1 - p(a)))

        def p(a: float) -> float:
            return max(u * math.sin(a) ** 2, 1e-300)

        def ratio(a: float) -> float:
            return (p(a) / u) ** events * ((1 - p(a)) / (1 - u)) ** (n - events)

        top = quad(lambda a: ratio(a) * weight(a), 0, math.pi / 2, epsabs=0, epsrel=1e-10)[0]
        return float(top / quad(weight, 0, math.pi / 2, epsabs=0, epsrel=1e-10)[0])

    upper = anytime_rate(events, n, delta)
    assert evidence(upper) == pytest.approx(1 / delta, rel=1e-6)
    # Evidence only grows beyond the limit, so everything beyond it is refuted.
    ahead = [evidence(upper + (1 - upper) * share) for share in (0.1, 0.3, 0.6, 0.9)]
    assert ahead == sorted(ahead)
    assert upper > clopper_pearson(events, n, delta)[1]


def test_the_price_of_looking_at_any_time() -> None:
    """0 of 20, 100, 1500 at 95 %: 13.9, 3.0, 0.20 % once; 17.2, 3.7, 0.25 % at any time."""
    found = [f"{100 * anytime_rate(0, n, 0.05):.2f}" for n in (20, 100, 1500)]
    assert found == ["17.21", "3.72", "0.25"]
    once = [f"{100 * clopper_pearson(0, n, 0.05)[1]:.2f}" for n in (20, 100, 1500)]
    assert once == ["13.91", "2.95", "0.20"]
    assert anytime_rate(20, 20, 0.05) == 1


def test_counts_must_be_counts() -> None:
    for events, n in [(-1, 5), (6, 5), (0, 0)]:
        with pytest.raises(InputError, match="need 0 <= events <= n"):
            clopper_pearson(events, n, 0.05)
        with pytest.raises(InputError, match="need 0 <= events <= n"):
            anytime_rate(events, n, 0.05)
    with pytest.raises(InputError, match="0 or 1"):
        value("clopper-pearson", [0.0, 0.5], 0.05)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=9), LEVEL)
def test_cluster_t_on_prompt_means(values: list[float], delta: float) -> None:
    twice = Sample.of(
        [x for value in values for x in (value / 2, value * 1.5)],
        clusters=[f"p{i}" for i in range(len(values)) for _ in range(2)],
    )
    found = bound("cluster-t", twice, delta)
    means = np.array(values)
    error = means.std(ddof=1) / math.sqrt(len(values))
    expected = means.mean() + float(t.ppf(1 - delta, len(values) - 1)) * error
    assert found.value == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert found.n == len(values)
    assert f"{2 * len(values)} values of {len(values)} prompts; approximate" in found.note


def test_published_widths_of_the_default() -> None:
    """The tables of bounds at N = 20 were simulated elsewhere; ours agree to 2 %."""
    rng = np.random.default_rng(1)
    spends = np.clip(rng.gamma(22.0, 8.05, (300, 20)), 0, 594)
    published = {"betting": 256, "anderson": 299, "hoeffding": 340, "hoeffding-bentkus": 337}
    published |= {"prpl-eb": 300, "maurer-pontil": 470, "ebb": 529}
    for name, mean in published.items():
        assert BOUNDS[name].rows(spends, 594.0, 0.05).mean() == pytest.approx(mean, rel=0.02)
