from __future__ import annotations

import math

import pytest

from nafaudit.core.finding import CheckWord, Witness
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Key, Logged, Trajectory
from nafaudit.measures.checks import opening
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import measure
from tests.records import ask, trajectory

KEY = Key("p", "anchored", 2.0, 0)
FACTS = RunContext(Banking())


def opened(key: Key, debt: float, theta: list[float]) -> Trajectory:
    return trajectory(key, [0.0] * len(theta), debt=debt, theta=theta)


@pytest.mark.parametrize(
    "debt, predicted", [(0.0, 0), (1.9, 0), (2.0, 1), (5.9, 2), (6.0, 3), (99.0, 5)]
)
def test_the_prediction_is_debt_over_k_within_the_own_length(debt: float, predicted: int) -> None:
    row = measure(opened(KEY, debt, [1.0] * 5), FACTS)
    assert row.opening_due == predicted == min(5, math.floor(debt / 2.0))


def test_hand_computed_openings() -> None:
    records = [
        trajectory(Key("p", "m", 2.0, 0), [0.0] * 4, debt=5.0, theta=[0, 0, 0.5, 1]),
        trajectory(Key("p", "m", 2.0, 1), [0.0] * 4, debt=1.0, theta=[0, 1, 0, 1]),
    ]
    finding = ask(opening, records, FACTS)
    assert finding.verdict == CheckWord.FINE  # longer than it must be is no harm
    assert finding.value == 0.5
    assert finding.numbers["observed_mean"] == 1.5
    assert finding.numbers["observed_max"] == 2
    assert finding.numbers["predicted_mean"] == 1.0
    assert finding.numbers["debt_mean"] == finding.numbers["debt_median"] == 3.0
    assert finding.text == (
        "debt mean 3.000, median 3.000, max 5.000 nats; the safe model writes the first 1.50 "
        "tokens (mean, max 2), as the debt predicts in 1 of 2 trajectories"
    )


def test_serving_before_the_debt_is_paid_is_suspect() -> None:
    finding = ask(opening, [opened(KEY, 5.0, [0, 0.1, 1, 1])], FACTS)
    assert finding.verdict == CheckWord.SUSPECT
    assert "1 begin before their debt is paid" in finding.text
    assert finding.witness == Witness(KEY, 1)


def test_weights_of_a_foreign_log_are_rounded() -> None:
    rounded = trajectory(KEY, [0.0] * 3, debt=5.0, theta=[1e-8, 1e-8, 1])
    assert ask(opening, [rounded], RunContext(Banking(), foreign=True)).verdict == CheckWord.FINE
    assert ask(opening, [rounded], FACTS).verdict == CheckWord.SUSPECT


def test_without_weights_or_grants_only_the_debt_is_told() -> None:
    for finding in (
        ask(opening, [opened(KEY, 5.0, [math.nan] * 3)], FACTS),
        ask(opening, [trajectory(KEY, [0.0], debt=5.0, theta=[0.0])], RunContext(None)),
        ask(opening, [trajectory(KEY, [], debt=5.0, logged=Logged(spend=1.0))], FACTS),
    ):
        assert finding.verdict == CheckWord.UNKNOWN
        assert finding.text.startswith("debt mean 5.000")
        assert "no step records both" in finding.text
    assert ask(opening, [], FACTS).text.startswith("no step records both")
