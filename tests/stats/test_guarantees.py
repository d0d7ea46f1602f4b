from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.stats.guarantees import (
    affordable,
    best_of_kl,
    block_budget,
    bucket_k,
    forced_opening,
    freedman,
    rejection_threshold,
    share_in_runs,
)


def test_printed_best_of_n() -> None:
    found = [f"{best_of_kl(n):.4f}" for n in (2, 4, 8, 16, 32, 64)]
    assert found == ["0.1931", "0.6363", "1.2044", "1.8351", "2.4970", "3.1745"]


@given(st.integers(1, 12), st.lists(st.floats(0.05, 1), min_size=2, max_size=5))
def test_best_of_n_keeps_both_promises_on_every_law(n: int, weights: list[float]) -> None:
    """Exactly: the best of n draws is x if all are at most x and not all are below."""
    safe = np.array(weights) / sum(weights)
    upto = np.cumsum(safe)
    served = upto**n - np.concatenate([[0.0], upto[:-1]]) ** n
    served = np.maximum(served, 1e-300)
    assert (served <= n * safe * (1 + 1e-9)).all()
    assert float((served * np.log(served / safe)).sum()) <= best_of_kl(n) + 1e-9


def test_printed_rejection_thresholds() -> None:
    budgets = {4.1589: "-0.0157", 33.271: "29.1121", 83.178: "79.0191", 159.83: "155.6711"}
    for budget, printed in budgets.items():
        kappa = rejection_threshold(budget, 64)
        assert f"{kappa:.4f}" == printed
        assert np.logaddexp(0.0, math.log(64) + kappa) == pytest.approx(budget)
    assert rejection_threshold(5000.0, 64) == pytest.approx(5000 - math.log(64))


@pytest.mark.parametrize(
    ("n", "block", "window", "whole"),
    [
        (64, 10, "24.95", "83.18"),
        (64, 25, "12.48", "33.27"),
        (64, 50, "8.32", "16.64"),
        (64, 200, "4.16", "4.16"),
        (8, 100, "4.16", "4.16"),
        (4, 67, "2.77", "4.16"),
        (2, 34, "2.08", "4.16"),
    ],
)
def test_printed_block_budgets(n: int, block: int, window: str, whole: str) -> None:
    assert f"{block_budget(n, block, 200, 50):.2f}" == window
    assert f"{block_budget(n, block, 200):.2f}" == whole


@pytest.mark.parametrize(
    ("variance", "step", "printed"),
    [
        (236.16, 19.02, ["0.8463", "0.4530", "0.1044", "0.0032"]),
        (413.74, 18.87, ["0.9004", "0.5785", "0.1797", "0.0083"]),
    ],
)
def test_printed_freedman(variance: float, step: float, printed: list[str]) -> None:
    assert [f"{freedman(x, variance, step):.4f}" for x in (10, 25, 50, 100)] == printed


def test_freedman_holds_for_a_fair_coin() -> None:
    """Exactly: 60 steps of +-1, V = 60, b = 1; with a third of the variance it would not."""
    chances = [math.comb(60, heads) / 2**60 for heads in range(61)]
    for excess in (4, 10, 20, 30):
        tail = sum(chances[heads] for heads in range(61) if 2 * heads - 60 >= excess)
        assert tail <= freedman(excess, 60, 1)
    assert sum(chances[40:]) > freedman(20, 20, 1)


def test_printed_token_buckets() -> None:
    paid = affordable([1, 1, 1, 10, 1, 1], 2)
    assert paid.tolist() == [True, True, True, False, True, True]
    assert share_in_runs(paid, 3) == 3 / 6
    assert affordable([1] * 5, 1, 2.5).tolist() == [False, False, False, True, True]
    assert share_in_runs([], 3) != share_in_runs([], 3)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=12), st.floats(0, 10))
def test_from_the_critical_k_on_everything_is_paid(prices: list[float], debt: float) -> None:
    k = bucket_k(prices, debt)
    assert affordable(prices, k * (1 + 1e-9) + 1e-9, debt).all()
    if k > 1e-6:
        assert not affordable(prices, k * (1 - 1e-6) - 1e-9, debt).all()


@given(st.floats(0, 30), st.floats(0.01, 5), st.integers(0, 200))
def test_the_opening_is_what_the_debt_leaves_unfunded(debt: float, k: float, length: int) -> None:
    slow = sum((t + 1) * k <= debt for t in range(length))
    assert forced_opening(debt, k, length) == slow


def test_openings_at_the_ends() -> None:
    assert forced_opening(6.0, 3.0, 200) == 2
    assert forced_opening(0.3, 0.1, 200) in (2, 3)
    assert forced_opening(1.0, 0.0, 7) == 7
    assert forced_opening(0.0, math.inf, 7) == 0


def test_nonsense_is_refused() -> None:
    for call in (
        lambda: best_of_kl(0),
        lambda: block_budget(2, 0, 10),
        lambda: block_budget(2, 5, 10, 0),
        lambda: rejection_threshold(0.0, 4),
        lambda: rejection_threshold(1.0, 0),
        lambda: freedman(0.0, 1.0, 1.0),
        lambda: freedman(1.0, 0.0, 0.0),
        lambda: forced_opening(-1.0, 1.0, 5),
        lambda: forced_opening(1.0, math.nan, 5),
        lambda: bucket_k([]),
    ):
        with pytest.raises(InputError):
            call()
