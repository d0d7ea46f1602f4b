from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from nafaudit.core.finding import CheckWord, Finding, Witness
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Key, Logged, Trajectory
from nafaudit.measures.context import RunContext
from nafaudit.measures.records import hygiene
from tests.records import ask, many, trajectory

KEY = Key("z", "anchored", 1.0, 0)
OWN = RunContext(Banking(), max_new_tokens=5)
FOREIGN = RunContext(Banking(), foreign=True, max_new_tokens=5)


def said(*trajectories: Trajectory, facts: RunContext = OWN) -> Finding:
    return ask(hygiene, trajectories, facts)


def test_sound_records_have_no_flaw() -> None:
    finding = said(*many(20))
    assert (finding.verdict, finding.value) == (CheckWord.FINE, 0)
    assert finding.text == "no flaw in 20 trajectories"


def test_longer_than_the_limit() -> None:
    finding = said(*many(4), trajectory(KEY, [0.1] * 6))
    assert finding.verdict == CheckWord.SUSPECT
    assert finding.text == "longer than the limit in 1 of 5"
    assert finding.witness == Witness(KEY, 5)
    claims = trajectory(KEY, [], logged=Logged(length=208.5))
    assert said(claims, facts=FOREIGN).verdict == CheckWord.SUSPECT


def padded(steps: int, token: int = 3, k: float = 1.0, sure: float = -1e-4) -> Trajectory:
    """Two steps, then a tail as left by a batch that ran on."""
    return trajectory(
        Key("z", "anchored", k, 0),
        [0.5] * 2 + [0.0] * steps,
        allowance=[1.0, 1.5] + [0.0] * steps,
        theta=[1.0, 1.0] + [0.0] * steps,
        token=[1, 2] + [token] * steps,
        served=[-1.0] * 2 + [sure] * steps,
        safe=[-2.0] * 2 + [sure] * steps,
    )


@pytest.mark.parametrize("facts", [OWN, FOREIGN, RunContext(None, foreign=True)])
def test_a_pad_tail_is_counted(facts: RunContext) -> None:
    finding = said(padded(3), facts=facts)
    assert finding.verdict == CheckWord.SUSPECT
    assert finding.numbers["pad_steps"] == 3
    assert "60.0% of all steps are padding" in finding.text
    assert finding.witness is not None
    assert finding.witness.step == 2


def test_what_looks_like_padding_but_is_not() -> None:
    assert said(padded(1)).verdict == CheckWord.FINE  # one step is none
    assert said(padded(3, sure=math.log(0.99))).verdict == CheckWord.FINE  # real forced steps
    repeats = trajectory(
        KEY,
        [0.0] * 4,
        debt=9.0,
        theta=[0.0] * 4,
        token=[3] * 4,
        served=[-1e-5] * 4,
        safe=[-1e-5] * 4,
    )
    assert said(repeats).verdict == CheckWord.FINE  # its debt is not paid yet
    safe_only = replace(repeats, key=KEY._replace(k=0.0))
    assert said(safe_only).verdict == CheckWord.FINE


def test_missing_numbers() -> None:
    nan = math.nan
    finding = said(*many(3), trajectory(KEY, [0.1, nan, 0.1], allowance=[1, 1, 1]))
    assert "missing numbers among recorded ones in 1 of 4" in finding.text
    assert finding.witness == Witness(KEY, 1)
    silent = trajectory(KEY, [0.1, 0.1], served=[nan, nan])
    assert said(silent).text == "not recorded: served"
    assert said(silent).verdict == CheckWord.SUSPECT
    foreign = said(silent, facts=FOREIGN)
    assert (foreign.verdict, foreign.text) == (
        CheckWord.FINE,
        "no flaw in 1 trajectories; not recorded: served",
    )
    uneven = said(silent, *many(3), facts=FOREIGN)
    assert uneven.text == "only some trajectories record served"
    assert "record debt" in said(*many(3), trajectory(KEY, [0.1], debt=nan)).text


def test_a_mechanism_of_ours_may_have_no_weight() -> None:
    assert said(trajectory(KEY, [0.1, 0.1], theta=[math.nan, 1.0])).verdict == CheckWord.FINE


@pytest.mark.parametrize("column, value", [("served", 0.5), ("safe", 2.0), ("theta", 1.5)])
def test_impossible_numbers(column: str, value: float) -> None:
    sound = trajectory(KEY, [0.1, 0.1])
    steps = replace(sound.steps, **{column: np.array([0.0, value], np.float32)})  # type: ignore[arg-type]
    finding = said(replace(sound, steps=steps))
    assert "above 0 or a weight outside 0 and 1 in 1 of 1" in finding.text


def test_totals_only_and_nothing() -> None:
    totals = trajectory(KEY, [], logged=Logged(spend=1.0, length=5.0))
    assert said(totals, facts=FOREIGN).text.endswith("only totals are logged, no steps")
    assert said().verdict == CheckWord.UNKNOWN
