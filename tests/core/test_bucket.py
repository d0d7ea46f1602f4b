from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.auditor.shadow import shadow_account
from nafaudit.core.design import Decoding, Identity
from nafaudit.core.ledger import (
    KL,
    NONE,
    REALISED,
    Banking,
    Bucket,
    Ledger,
    Payment,
    characters,
    currency_of,
    ledger_of,
    recorded_currency,
)
from nafaudit.core.ledger import most_granted as most

PIECES = (b"a", b" the", "été".encode(), b"\xa9", None)
NATS = st.floats(0, 20)
CAPS = st.just(math.inf) | st.floats(0, 20)


def pay(charge: float, token: int = 0) -> Payment:
    return Payment(charge, charge, token)


@given(
    k=NATS,
    debt=NATS,
    cap=CAPS,
    bank=NATS,
    refill=st.sampled_from(["token", "character"]),
    steps=st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 4)), min_size=1, max_size=40),
)
def test_a_bucket_never_lets_more_through_than_it_grants(
    k: float, debt: float, cap: float, bank: float, refill: str, steps: list[tuple[float, int]]
) -> None:
    bucket = Bucket(cap, bank, refill).of_pieces(PIECES)  # type: ignore[arg-type]
    account, shadow = bucket.open(k, debt), shadow_account(bucket, k, debt)
    tokens = np.array([token for _, token in steps], np.int32)
    granted, spent, window = bucket.accrued(k, debt, tokens), 0.0, []
    for step, (share, token) in enumerate(steps):
        allowance = account.allowance()
        assert shadow.allowance() == pytest.approx(allowance, rel=1e-9, abs=1e-9)
        # A negative share is a pathwise charge that gives something back.
        charge = share * (allowance if share > 0 else k)
        spent += charge
        window.append(charge)
        assert allowance <= cap
        assert spent <= max(0.0, granted[step]) + 1e-9
        account.pay(pay(charge, token))
        shadow.pay(pay(charge, token))
    if refill == "token":
        for width in (1, 3, 7):
            for start in range(len(window) - width + 1):
                limit = cap + (width - 1) * k
                assert sum(max(0.0, a) for a in window[start : start + width]) <= limit + 1e-9 or (
                    min(window) < 0
                )
    assert granted[-1] <= most(bucket, k, debt, len(steps)) + 1e-9


@given(k=NATS, debt=NATS, charges=st.lists(st.floats(0, 5), min_size=1, max_size=30))
def test_a_bucket_without_options_is_the_bank(k: float, debt: float, charges: list[float]) -> None:
    bank, bucket = Banking(), Bucket()
    one, other = bank.open(k, debt), bucket.open(k, debt)
    for charge in charges:
        assert one.allowance() == pytest.approx(other.allowance(), abs=1e-9)
        one.pay(pay(charge))
        other.pay(pay(charge))
    tokens = np.zeros(len(charges), np.int32)
    assert bucket.accrued(k, debt, tokens) == pytest.approx(bank.accrued(k, debt, tokens), abs=1e-9)


def test_characters_earn_once_they_are_written() -> None:
    assert [characters(piece) for piece in PIECES] == [1, 4, 3, 0, 0]
    bucket = Bucket(refill="character").of_pieces(PIECES)
    account = bucket.open(0.5, 1.0)
    assert account.allowance() == 0
    account.pay(pay(0.0, 1))
    assert account.allowance() == 1.0  # four characters less the debt
    assert bucket.accrued(0.5, 1.0, np.array([1, 2, 0], np.int32)).tolist() == [-1, 1, 2.5]
    assert most(bucket, 0.5, 0.0, 3) == 4.0  # two tokens of four characters earn before the third


@pytest.mark.parametrize(
    "ledger", [Banking(), Bucket(20.0, 0.5), Bucket(math.inf, 2.0), Bucket(refill="character")]
)
def test_a_ledger_is_found_again(ledger: Ledger) -> None:
    assert ledger_of(ledger.spec, PIECES) == ledger
    assert ledger_of("bucket:cap=x") is None
    assert ledger_of(Bucket(refill="character").spec) is None  # nobody can count characters


def paid(bucket: Ledger, k: float, debt: float, prices: list[float]) -> str:
    """Which tokens a bucket can pay for, if it pays in full or not at all."""
    account, found = bucket.open(k, debt), ""
    for price in prices:
        affordable = price <= account.allowance()
        found += "FT"[affordable]
        account.pay(pay(price if affordable else 0.0))
    return found


def test_golden_token_bucket() -> None:
    # Printed in the follow-up findings, 4.1.
    for ledger in (Banking(), Bucket()):
        assert paid(ledger, 2.0, 0.0, [1, 1, 1, 10, 1, 1]) == "TTTFTT"
        assert paid(ledger, 1.0, 2.5, [1] * 5) == "FFFTT"
    runs = [len(run) for run in ["TTT", "TT"]]
    assert sum(run for run in runs if run >= 3) / 6 == 3 / 6


def identity(currency: str, ledger: str = "banking") -> Identity:
    return Identity({}, "m", ledger, Decoding(), "w", 64, 0, currency=currency)


def test_what_a_charge_is_counted_in_is_recorded_where_it_is_not_kl() -> None:
    plain = identity(KL).to_json()
    assert "currency" not in plain and recorded_currency(plain).is_kl
    whole = identity("whole", "whole:20").to_json()
    assert "currency" not in whole and recorded_currency(whole).order == math.inf
    for spec in (REALISED, NONE, "renyi:4", "peanuts"):
        data = identity(spec).to_json()
        assert recorded_currency(data) == currency_of(spec)
        assert identity(spec).hash != identity(KL).hash
    assert currency_of(REALISED).signed and not currency_of(NONE).promised
    assert currency_of("renyi:inf").order == math.inf and not currency_of("renyi:4").is_kl
