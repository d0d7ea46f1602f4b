from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.core.finding import own_tolerance
from nafaudit.core.ledger import Banking, Payment, as_budget, most_granted


def _pay(charge: float) -> Payment:
    return Payment(charge, 0.0, 0)


@given(
    st.floats(0, 10),
    st.floats(0, 30),
    st.lists(st.floats(0, 1), min_size=1, max_size=60),
)
def test_spending_shares_of_the_allowance_never_exceeds_what_was_granted(
    k: float, debt: float, shares: list[float]
) -> None:
    account = Banking().open(k, debt)
    spent = 0.0
    granted = Banking().accrued(k, debt, np.zeros(len(shares), np.int32))
    for t, share in enumerate(shares):
        allowance = account.allowance()
        assert allowance == max(0.0, (t + 1) * k - spent - debt)
        charge = share * allowance
        account.pay(_pay(charge))
        spent += charge
        assert spent <= max(0.0, granted[t]) * (1 + 1e-12) + 1e-12


def test_an_overspend_shows() -> None:
    account = Banking().open(1.0, 0.0)
    account.pay(_pay(1.5))
    assert account.allowance() == 0.5


def test_risky_only_has_no_limit_even_after_an_infinite_charge() -> None:
    account = Banking().open(as_budget(-1), 3.0)
    account.pay(_pay(math.inf))
    assert account.allowance() == math.inf


@pytest.mark.parametrize("k", [-0.5, -2, math.nan])
def test_bad_budgets_are_refused(k: float) -> None:
    with pytest.raises(InputError, match="k must be at least 0"):
        as_budget(k)


def paid(surprisals: list[float], debt: float, k: float) -> str:
    """Which tokens a bank can pay for that pays for nothing else."""
    account, answers = Banking().open(k, debt), ""
    for surprisal in surprisals:
        able = account.allowance() >= surprisal
        account.pay(Payment(surprisal if able else 0.0, 0.0, 0))
        answers += "FT"[able]
    return answers


def test_golden_token_buckets() -> None:
    assert paid([1, 1, 1, 10, 1, 1], 0.0, 2.0) == "TTTFTT"
    assert paid([1] * 5, 2.5, 1.0) == "FFFTT"
    runs = [run for run in ["TTT", "TT"] if len(run) >= 3]
    assert sum(map(len, runs)) / 6 == 3 / 6


@given(st.floats(0), st.floats(0), st.integers(1, 300))
def test_the_most_that_is_granted_is_the_last_that_is_accrued(
    k: float, debt: float, length: int
) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        last = Banking().accrued(k, debt, np.zeros(length, np.int32))[-1]
    assert np.float64(most_granted(Banking(), k, debt, length)).tobytes() == last.tobytes() or (
        math.isnan(last) and math.isnan(most_granted(Banking(), k, debt, length))
    )


@given(st.lists(st.floats()))
def test_the_slack_of_our_own_records(limits: list[float]) -> None:
    wanted = [1e-6 * (1.0 + (limit if math.isfinite(limit) else 0.0)) for limit in limits]
    assert own_tolerance(np.array(limits, np.float64)).tolist() == wanted
