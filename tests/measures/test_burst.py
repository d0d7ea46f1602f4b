from __future__ import annotations

import math

import pytest

from nafaudit.core.finding import CheckWord, Witness
from nafaudit.core.trajectory import Key
from nafaudit.measures.checks import burst
from nafaudit.measures.measure import WINDOW
from tests.records import ask, trajectory

KEY = Key("p", "m", 0.5, 0)


def test_a_saved_budget_spent_at_once() -> None:
    charge = [0.0] * 30 + [1.0] * 15 + [0.0] * 10
    finding = ask(burst, [trajectory(KEY, charge)])
    assert finding.verdict == CheckWord.INFO
    assert finding.value == pytest.approx(15 / (WINDOW * 0.5))  # 1.5 times what 20 steps earn
    assert finding.witness == Witness(KEY, 25)  # the first window that holds all of it
    assert finding.numbers["bank_max"] == 15.5  # 31 steps earned, none spent
    assert "up to 1.50 times the 20 k" in finding.text


def test_an_even_spender_never_bursts() -> None:
    finding = ask(burst, [trajectory(KEY, [0.5] * 50)])
    assert finding.value == 1.0
    assert finding.numbers["above_2"] == 0


def test_a_short_trajectory_is_one_window() -> None:
    assert ask(burst, [trajectory(KEY, [2.0, 3.0])]).value == pytest.approx(0.5)


def test_without_charges_or_budget_it_is_unknown() -> None:
    holes = trajectory(KEY, [0.1, math.nan])
    assert "no trajectory records the charge" in ask(burst, [holes]).text
    for k in (0.0, math.inf):
        finding = ask(burst, [trajectory(Key("p", "m", k, 0), [0.0])])
        assert finding.verdict == CheckWord.UNKNOWN
        assert "no budget per step" in finding.text
    mixed = ask(burst, [holes, trajectory(Key("q", "m", 0.5, 0), [0.5])])
    assert "1 trajectories without charges left out" in mixed.text
