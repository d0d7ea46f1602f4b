from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.stats.certificate import (
    PATHWISE,
    binary_kl,
    binary_renyi,
    cap,
    certify,
    critical_k,
    log_cap,
    queries_left,
    vacuous,
)

SURPRISAL = st.floats(1e-3, 1e5)
ORDER = st.sampled_from([1.0, 1.5, 2.0, 10.0, PATHWISE])


@pytest.mark.parametrize(
    ("surprisal", "printed"),
    [
        (132.981, {20: "0.153623", 30: "0.229648", 50: "0.380991", 100: "0.756164", 200: "1"}),
        (177.369, {20: "0.114768", 30: "0.171725", 50: "0.285269", 100: "0.567653", 200: "1"}),
        (159.83, {100: "0.629788"}),
    ],
)
def test_printed_caps(surprisal: float, printed: dict[int, str]) -> None:
    for budget, text in printed.items():
        digits = len(text.partition(".")[2])
        assert f"{float(cap(surprisal, budget)):.{digits}f}" == text


def slow_kl(log_p: Decimal, surprisal: Decimal) -> Decimal:
    """d(p || e^-S) with as many digits as it takes."""
    p, q = log_p.exp(), (-surprisal).exp()
    rest = (1 - p) * ((1 - p) / (1 - q)).ln() if p < 1 else Decimal(0)
    return p * (log_p + surprisal) + rest


def digits(surprisal: float) -> int:
    """Enough for e^-S beside 1."""
    return 60 + int(surprisal / math.log(10))


@settings(max_examples=40)
@given(st.floats(1e-3, 2000), st.floats(1e-6, 1 - 1e-6))
def test_binary_kl_against_a_twin_with_all_digits(surprisal: float, share: float) -> None:
    log_p = -surprisal * (1 - share)
    with localcontext() as context:
        context.prec = digits(surprisal)
        slow = float(slow_kl(Decimal(log_p), Decimal(surprisal)))
    # p itself comes from a sum of S and ln p, which has float64's error.
    assert float(binary_kl(log_p, surprisal)) == pytest.approx(slow, rel=1e-8, abs=1e-300)


@settings(max_examples=40)
@given(st.floats(1e-2, 2000), st.floats(1e-6, 1 - 1e-6))
def test_the_cap_costs_exactly_the_budget(surprisal: float, share: float) -> None:
    """Tight: the law that writes the passage with the cap's chance has KL K; more has more."""
    budget = surprisal * share
    found = float(log_cap(surprisal, budget))
    assert -surprisal < found < 0
    with localcontext() as context:
        context.prec = digits(surprisal)
        s, y = Decimal(surprisal), Decimal(found)
        over = slow_kl(min(y * Decimal(1 - 1e-7), y + Decimal("1e-7")), s)
        under = slow_kl(max(y * Decimal(1 + 1e-7), y - Decimal("1e-7")), s)
    assert under < Decimal(budget) < over


@pytest.mark.parametrize("surprisal", [1e3, 1e4, 1e5])
@pytest.mark.parametrize("share", [1e-8, 0.01, 0.5, 0.999])
def test_long_passages(surprisal: float, share: float) -> None:
    """Far beyond e^-745: between K/S and (K + ln 2)/S, and at equality as S p + entropy."""
    budget = share * surprisal
    found = float(cap(surprisal, budget))
    assert budget / surprisal <= found <= (budget + math.log(2)) / surprisal
    entropy = found * math.log(found) + (1 - found) * math.log1p(-found)
    assert found * surprisal + entropy == pytest.approx(budget, rel=1e-9)


@given(SURPRISAL, st.floats(0, 2e5), ORDER)
def test_vacuous_iff_the_budget_reaches_the_surprisal(
    surprisal: float, budget: float, order: float
) -> None:
    found = float(log_cap(surprisal, budget, order))
    assert (found == 0) == (surprisal <= budget) == bool(vacuous(surprisal, budget))
    assert -surprisal <= found <= 0
    assert float(log_cap(surprisal, surprisal, order)) == 0


@settings(max_examples=25)
@given(SURPRISAL, st.floats(0, 1), st.floats(0, 1))
def test_more_budget_and_a_weaker_divergence_allow_more(
    surprisal: float, one: float, two: float
) -> None:
    budgets = np.sort([one * surprisal, two * surprisal])
    both = [log_cap(surprisal, budgets, order) for order in (1.0, 1.5, 2.0, 10.0, PATHWISE)]
    assert all(small <= large for small, large in both)
    caps = [float(small) for small, _ in both]
    assert all(a >= b - 1e-9 * surprisal - 1e-6 for a, b in itertools.pairwise(caps))


@settings(max_examples=40)
@given(st.floats(0.1, 600), st.floats(0.01, 0.99), st.sampled_from([1.2, 2.0, 8.0]))
def test_the_renyi_cap_costs_the_budget_and_beats_the_closed_form(
    surprisal: float, share: float, order: float
) -> None:
    budget = surprisal * share
    found = float(log_cap(surprisal, budget, order))
    assert float(binary_renyi(found, surprisal, order)) == pytest.approx(budget, rel=1e-6)
    assert found <= min(0.0, (budget - surprisal) * (order - 1) / order) + 1e-12
    near_one = float(log_cap(surprisal, budget, 1 + 1e-7))
    assert near_one == pytest.approx(float(log_cap(surprisal, budget)), abs=1e-3)


def test_hand_computed_renyi() -> None:
    # Safe 1/2 against 3/4: D_2 = ln((9/16)/(1/2) + (1/16)/(1/2)) = ln(5/4).
    assert float(binary_renyi(math.log(0.75), math.log(2), 2.0)) == pytest.approx(math.log(1.25))
    assert float(cap(math.log(2), math.log(1.25), 2.0)) == pytest.approx(0.75)
    assert float(log_cap(159.83, math.log(64), PATHWISE)) == pytest.approx(-155.671, abs=1e-3)


@settings(max_examples=80)
@given(
    st.lists(st.floats(0.01, 1), min_size=3, max_size=6),
    st.lists(st.floats(0.01, 1), min_size=3, max_size=6),
    ORDER,
)
def test_no_law_beats_its_certificate(safe: list[float], served: list[float], order: float) -> None:
    """Sound: whatever law is served, its own divergence certifies each of its outputs."""
    size = min(len(safe), len(served))
    p, q = np.array(safe[:size]), np.array(served[:size])
    p, q = p / p.sum(), q / q.sum()
    ratio = np.log(q / p)
    if order == 1:
        budget = float((q * ratio).sum())
    elif math.isinf(order):
        budget = float(ratio.max())
    else:
        budget = float(np.log((q * np.exp((order - 1) * ratio)).sum()) / (order - 1))
    caps = cap(-np.log(p), max(budget, 0.0), order)
    assert (q <= caps * (1 + 1e-6) + 1e-7).all()


def test_tables_of_passages_and_budgets() -> None:
    table = cap(np.array([10.0, 50.0, math.inf])[:, None], np.array([0.0, 20.0, math.inf]))
    assert table.shape == (3, 3)
    assert table[:, 2].tolist() == [1.0, 1.0, 1.0]
    assert table[0, 1] == 1.0
    assert table[0, 0] == pytest.approx(math.exp(-10))
    assert table[2, 1] == 0.0


def test_everything_about_one_passage() -> None:
    found = certify(159.83, 100.0)
    assert (found.queries, found.vacuous) == (1, False)
    assert f"{found.probability:.4f}" == "0.6298"
    assert found.log10_draws == pytest.approx(59.83 / math.log(10))
    best = certify(159.83, math.log(64), PATHWISE)
    assert (best.queries, f"{best.log_probability:.1f}") == (38, "-155.7")
    nothing = certify(10.0, 10.0)
    assert (nothing.vacuous, nothing.probability, nothing.queries) == (True, 1.0, 0)
    assert nothing.log10_draws == 0
    assert certify(10.0, 0.0).queries == math.inf
    assert certify(10.0, math.inf).log10_draws == 0


def test_printed_orders_of_magnitude() -> None:
    budgets = [20, 30, 50, 100, 200, 600, 1000]
    found = [f"{certify(1.0, budget).log10_equal:.1f}" for budget in budgets]
    assert found == ["8.7", "13.0", "21.7", "43.4", "86.9", "260.6", "434.3"]


@given(st.floats(1e-3, 1e5), st.floats(1e-3, 1e5))
def test_queries_left_is_the_most_that_still_says_something(s: float, budget: float) -> None:
    n = queries_left(s, budget)
    assert n * budget < s
    assert (n + 1) * budget >= s * (1 - 1e-12)


def test_the_k_from_which_nothing_is_said() -> None:
    k = critical_k(204.7, 200)
    assert bool(vacuous(204.7, k * 200 * (1 + 1e-12)))
    assert not bool(vacuous(204.7, k * 200 * (1 - 1e-12)))


def test_bad_numbers_are_refused() -> None:
    for call in (
        lambda: log_cap(math.nan, 1.0),
        lambda: log_cap(1.0, -1.0),
        lambda: log_cap(-1.0, 1.0),
        lambda: log_cap(1.0, 1.0, 0.5),
        lambda: log_cap(1.0, 1.0, math.nan),
        lambda: queries_left(-1.0, 1.0),
        lambda: critical_k(1.0, 0),
        lambda: critical_k(math.nan, 5),
    ):
        with pytest.raises(InputError):
            call()
