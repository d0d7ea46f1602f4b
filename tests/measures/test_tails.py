from __future__ import annotations

import math

import pytest

from nafaudit.core.finding import CheckWord, Witness
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.measures.checks import tails
from nafaudit.measures.context import RunContext
from tests.records import ask, trajectory

FACTS = RunContext(Banking(), max_new_tokens=3)


def with_ratios(number: int, *ratios: float, k: float = 1.0) -> Trajectory:
    safe = [-9.0] * len(ratios)
    served = [-9.0 + ratio for ratio in ratios]
    key = Key("p", "m", k, number)
    return trajectory(key, [0.0] * len(ratios), served=served, safe=safe)


def test_hand_computed_tail() -> None:
    records = [with_ratios(i, 0.5, i - 0.5) for i in range(5)]  # L = 0, 1, 2, 3, 4; K = 3
    finding = ask(tails, records, FACTS)
    assert finding.verdict == CheckWord.INFO
    assert finding.value == 4.0
    assert finding.numbers == {
        "mean": 2.0,
        "p50": 2.0,
        "p90": pytest.approx(3.6),
        "p95": pytest.approx(3.8),
        "p99": pytest.approx(3.96),
        "max": 4.0,
        "step_max": 3.5,
        "above_K": 1,
        "above_half_K": 3,
    }
    assert finding.text.endswith("; 1 above K = 3, 3 above K/2")
    assert finding.witness == Witness(Key("p", "m", 1.0, 4), 1)


def test_none_above_its_promise() -> None:
    finding = ask(tails, [with_ratios(0, 1.0, 0.25)], FACTS)
    assert "0 above K = 3, 0 above K/2" in finding.text


def test_a_token_that_the_safe_model_forbids_is_infinitely_likelier() -> None:
    forbidden = trajectory(Key("p", "m", 1.0, 9), [0.0], safe=[-math.inf])
    finding = ask(tails, [with_ratios(0, 0.5), forbidden], FACTS)
    assert finding.value == math.inf
    assert finding.numbers["above_K"] == 1


def test_without_a_limit_there_is_no_k_to_compare_with() -> None:
    assert "K is not known" in ask(tails, [with_ratios(0, 1.0)], RunContext(None)).text
    assert "there is no K" in ask(tails, [with_ratios(0, 1.0, k=math.inf)], FACTS).text


def test_without_log_probabilities_it_is_unknown() -> None:
    silent = trajectory(Key("p", "m", 1.0, 1), [0.5, 0.5], safe=[math.nan, -1.0])
    finding = ask(tails, [silent], FACTS)
    assert finding.verdict == CheckWord.UNKNOWN
    assert "no trajectory records served and safe" in finding.text
    assert "; 1 record no log-prob" in ask(tails, [silent, with_ratios(0, 1.0)], FACTS).text
    assert ask(tails, [], FACTS).verdict == CheckWord.UNKNOWN
