from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nafaudit.core.finding import CheckWord, Finding, Witness
from nafaudit.core.ledger import Account, Banking, Ledger, allowances
from nafaudit.core.trajectory import Key, Logged, Trajectory
from nafaudit.measures.context import RunContext
from nafaudit.measures.records import accounting
from tests.records import ask, many, trajectory

KEY = Key("p", "anchored", 1.0, 0)
OWN = RunContext(Banking(), max_new_tokens=4, stops=frozenset({9}))
FOREIGN = RunContext(Banking(), foreign=True)


def said(facts: RunContext, *trajectories: Trajectory) -> Finding:
    return ask(accounting, trajectories, facts)


def test_sound_records_add_up() -> None:
    finding = said(RunContext(Banking()), *many(5))
    assert finding.verdict == CheckWord.FINE
    assert finding.text == (
        "everything adds up in 5 of 5 trajectories: allowances against the ledger"
    )


@pytest.mark.parametrize("k", [0.0, math.inf])
def test_baselines_add_up(k: float) -> None:
    one = trajectory(Key("p", "m", k, 0), [0.0, 0.0], allowance=[k, k], debt=2.0)
    assert said(RunContext(Banking()), one).verdict == CheckWord.FINE
    wrong = trajectory(Key("p", "m", k, 0), [0.0, 0.0], allowance=[k, 1.0], debt=2.0)
    assert said(RunContext(Banking()), wrong).verdict == CheckWord.SUSPECT


def test_an_allowance_that_forgets_the_debt() -> None:
    forgets = trajectory(KEY, [0.25, 0.5, 0.5], allowance=[1.0, 1.75, 2.25], debt=0.5)
    finding = said(RunContext(Banking()), *many(3), forgets)
    assert finding.verdict == CheckWord.SUSPECT
    assert finding.value == 1
    assert "1 of 4 trajectories do not add up" in finding.text
    assert "(by up to 0.5 nats)" in finding.text
    assert finding.witness == Witness(KEY, 0)


@pytest.mark.parametrize("facts, gap, fires", [(OWN, 1e-5, True), (FOREIGN, 9e-4, False)])
def test_the_tolerance_is_that_of_the_source(facts: RunContext, gap: float, fires: bool) -> None:
    finding = said(facts, trajectory(KEY, [0.5] * 4, allowance=[1, 1.5, 2 + gap, 2.5]))
    assert (finding.verdict == CheckWord.SUSPECT) == fires


@pytest.mark.parametrize(
    "logged, words",
    [
        (Logged(spend=1.25), "logged spend against the steps in 1 (by up to 0.25 nats)"),
        (Logged(budget=4.0), "logged budget against that of its own length in 1 (by up to 2 nats)"),
        (Logged(length=4.0), "logged length against the steps in 1 (by up to 2 steps)"),
        (Logged(granted=np.array([1.0, 2.5])), "logged grants against the ledger in 1"),
        (Logged(cumulative=np.array([0.5, 1.1])), "logged cumulative charges against the steps"),
        (Logged(cumulative=np.array([0.5])), "(by up to inf nats)"),
    ],
)
def test_claims_of_a_log_are_added_up(logged: Logged, words: str) -> None:
    finding = said(FOREIGN, trajectory(KEY, [0.5, 0.5], logged=logged))
    assert finding.verdict == CheckWord.SUSPECT
    assert words in finding.text


def test_true_claims_pass_and_a_stop_token_need_not_be_counted() -> None:
    true = Logged(1.0005, 2.0, 1.0, np.array([1.0, 2.0]), np.array([0.5, 1.0]))
    assert said(FOREIGN, trajectory(KEY, [0.5, 0.5], stopped=True, logged=true)).value == 0


@pytest.mark.parametrize(
    "token, stopped, words",
    [
        ([1, 9, 1, 1], False, "nothing after a stop token in 1 (by up to 2 steps)"),
        ([1, 1, 1, 1, 1], False, "no more steps than the limit in 1 (by up to 1 steps)"),
        ([1, 1, 1, 1], True, "a stop token at the end"),
        ([1, 1, 1, 9], False, "a stop token at the end"),
        ([1, 1], False, "a stop token at the end"),
        ([1, 9], True, ""),
        ([1, 1, 1, 1], False, ""),
    ],
)
def test_how_a_row_ends(token: list[int], stopped: bool, words: str) -> None:
    finding = said(OWN, trajectory(KEY, [0.5] * len(token), token=token, stopped=stopped))
    assert (finding.verdict == CheckWord.SUSPECT) == bool(words)
    assert words in finding.text


def test_what_is_missing_is_named() -> None:
    assert "ledger is not known" in said(RunContext(None), *many(3)).text
    no_debt = trajectory(KEY, [0.5], debt=math.nan)
    totals = trajectory(KEY, [], logged=Logged(spend=1.0))
    for one in (no_debt, totals):
        finding = said(RunContext(Banking()), one)
        assert finding.verdict == CheckWord.UNKNOWN
        assert "no steps with charges, allowances and debt" in finding.text


def test_after_an_unknown_charge_nothing_is_compared() -> None:
    charge, allowance = [0.5, math.nan, 0.5], [1.0, 1.5, 77.0]
    finding = said(RunContext(Banking()), trajectory(KEY, charge, allowance=allowance))
    assert finding.verdict == CheckWord.FINE


@dataclass(frozen=True)
class Slow:
    """The banking ledger, asked step by step."""

    spec: str = "slow"

    def open(self, k: float, debt: float) -> Account:
        return Banking().open(k, debt)

    def accrued(self, k: float, debt: float, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        return Banking().accrued(k, debt, tokens)


@given(
    st.sampled_from([0.0, 0.3, 1.0, math.inf]),
    st.floats(0, 9),
    st.lists(st.floats(0, 3), min_size=1, max_size=30),
)
def test_the_fast_replay_is_the_slow_one_bit_for_bit(
    k: float, debt: float, charge: list[float]
) -> None:
    steps = trajectory(KEY, charge).steps
    slow: Ledger = Slow()
    assert (allowances(Banking(), k, debt, steps) == allowances(slow, k, debt, steps)).all()
