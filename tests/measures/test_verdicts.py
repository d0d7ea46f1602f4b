from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from nafaudit.core import finding as words
from nafaudit.core.errors import StoreError
from nafaudit.core.finding import (
    Finding,
    Kept,
    Overall,
    Witness,
)
from nafaudit.core.ledger import NONE, REALISED, Banking, currency_of
from nafaudit.core.trajectory import Key, Logged, Trajectory, theta_as_recorded, total
from nafaudit.measures.checks import Use, utilisation
from nafaudit.measures.classes import class_table
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import measure, with_admission
from nafaudit.measures.table import Measures
from nafaudit.measures.verdicts import invariant, overall_of
from nafaudit.measures.verdicts import judge as judge_rows
from nafaudit.stats import zero_count_upper
from tests.records import judge, many, trajectory

KEY = Key("p", "anchored", 1.0, 0)
FACTS = RunContext(Banking())
FOREIGN = RunContext(None, foreign=True)


def rows(*trajectories: Trajectory, context: RunContext = FACTS) -> Measures:
    return Measures.of(trajectories, context)


def kept(*trajectories: Trajectory, context: RunContext = FACTS) -> Finding:
    return invariant(rows(*trajectories, context=context))


def acted(*trajectories: Trajectory, context: RunContext = FACTS) -> Finding:
    return judge_rows(rows(*trajectories, context=context))[0].finding("regime")


def violations(*trajectories: Trajectory) -> int:
    return sum(row.violated for row in rows(*trajectories))


def test_sound_trajectories_are_within() -> None:
    finding = kept(*many(20))
    assert finding.verdict == Kept.WITHIN
    assert "true rate below 13.91% at 95 %" in finding.text


def test_fewer_than_twenty_say_nothing() -> None:
    assert kept(*many(19)).verdict == Kept.INCONCLUSIVE
    assert kept().verdict == Kept.INCONCLUSIVE


@pytest.mark.parametrize("excess, violated", [(1e-3, True), (1e-5, True), (1e-8, False)])
def test_a_step_above_its_allowance(excess: float, violated: bool) -> None:
    charge = [0.5, 1.5 + excess, 0.1]  # 0.5 was saved, so the second step may spend 1.5
    found = kept(*many(30), trajectory(KEY, charge))
    assert (found.verdict == Kept.VIOLATED) == violated
    if violated:
        assert found.witness == Witness(KEY, 1)


def test_a_prefix_above_its_budget_although_every_step_claims_room() -> None:
    lying = trajectory(KEY, [1.0, 1.0, 1.0], allowance=[9.0, 9.0, 9.0], debt=0.5)
    found = kept(lying)
    assert found.verdict == Kept.VIOLATED
    assert "worst by 0.5 nats" in found.text


def test_nothing_may_be_spent_before_the_debt_is_paid() -> None:
    assert violations(trajectory(KEY, [0.0, 0.0], debt=5.0)) == 0
    assert violations(trajectory(KEY, [0.0, 1e-3], debt=5.0, allowance=[0, 1])) == 1


def test_an_infinite_charge_violates_any_budget_but_none() -> None:
    risky = Key("p", "anchored", math.inf, 0)
    assert violations(trajectory(risky, [math.inf], allowance=[math.inf])) == 0
    assert violations(trajectory(KEY, [math.inf])) == 1


def test_a_nan_neither_hides_a_violation_nor_counts_as_within() -> None:
    nan = math.nan
    assert violations(trajectory(KEY, [nan, 50.0], allowance=[1, 1])) == 1
    found = kept(*many(30), trajectory(KEY, [nan, 0.1], allowance=[1, 1]))
    assert found.verdict == Kept.INCONCLUSIVE
    assert "1 of 31 trajectories cannot be judged" in found.text
    hidden = trajectory(KEY, [-50.0, 40.0], allowance=[1, 60])
    assert kept(*many(30), hidden).verdict == Kept.INCONCLUSIVE


def test_without_its_ledger_a_run_is_judged_step_by_step() -> None:
    unknown = RunContext(None)
    assert "by the log's own numbers" in kept(*many(20), context=unknown).text
    over = kept(*many(20), trajectory(KEY, [2.0]), context=unknown)
    assert over.verdict == Kept.VIOLATED
    assert math.isnan(measure(trajectory(KEY, [0.5]), unknown).utilisation)


def test_no_count_of_the_debt_is_told_where_the_spend_is_not_known() -> None:
    counts = "1 within the promised budget would be over it"
    assert invariant(rows(*many(20)), counts=counts).text.endswith(counts)
    refuted = invariant(rows(*many(20)), refuted="sampler: likelihood", counts=counts)
    assert counts not in refuted.text
    assert "what 20 trajectories spent is not known" in refuted.text


def test_totals_of_a_foreign_log_are_judged_with_its_tolerance() -> None:
    facts = RunContext(None, foreign=True)
    for over, verdict in ((0.0009, Kept.WITHIN), (0.0011, Kept.VIOLATED)):
        logged = Logged(spend=5.0 + over, budget=5.0)
        keys = (Key(f"p{i}", "x", 1.0, 0) for i in range(25))
        found = kept(*(trajectory(key, [], logged=logged) for key in keys), context=facts)
        assert found.verdict == verdict
    broke = trajectory(KEY, [], logged=Logged(spend=1e-6, budget=-9.0))
    assert not measure(broke, facts).violated


def foreign_verdict(
    one: Trajectory, *, ledger: bool = True, limit: int = 10, sound: int = 24
) -> str:
    """The verdict on one trajectory among sound ones."""
    context = RunContext(Banking() if ledger else None, foreign=True, max_new_tokens=limit)
    granted = Logged(granted=np.arange(1.0, 6.0))
    others = [replace(other, logged=granted) for other in many(sound)]
    return kept(*others, one, context=context).verdict


def test_what_a_log_leaves_out_cannot_make_it_look_kept() -> None:
    nan, inf = math.nan, math.inf
    ten = [5.0] * 10
    # Ten times the budget, by allowances of its own making and without a debt.
    assert foreign_verdict(trajectory(KEY, ten, debt=nan, allowance=ten)) == Kept.VIOLATED
    endless = trajectory(KEY, ten, debt=nan, allowance=[inf] * 10)
    assert foreign_verdict(endless) == Kept.VIOLATED
    modest = trajectory(KEY, [0.1] * 10, debt=nan, allowance=[1] * 10)
    assert foreign_verdict(modest) == Kept.INCONCLUSIVE
    assert foreign_verdict(trajectory(KEY, [0.1], allowance=[inf])) == Kept.INCONCLUSIVE
    # A negative debt is no gift, and more tokens than T earn no more than K.
    gift = trajectory(KEY, ten, debt=-50.0, allowance=[60.0] * 10)
    assert foreign_verdict(gift) == Kept.VIOLATED
    long = trajectory(KEY, [0.9] * 20)
    assert foreign_verdict(long) == Kept.VIOLATED
    assert foreign_verdict(long, limit=20) == Kept.WITHIN


@pytest.mark.parametrize(
    ("logged", "debt", "verdict"),
    [
        (Logged(spend=400, budget=480, length=50), 2.0, Kept.VIOLATED),  # K is 50
        (Logged(spend=40, budget=48, length=10), 2.0, Kept.VIOLATED),  # own B is 8
        (Logged(spend=7, budget=48, length=10), 2.0, Kept.WITHIN),
        (Logged(spend=900, budget=1000), 2.0, Kept.VIOLATED),  # kT - debt is 48
        (Logged(spend=500, budget=math.inf), math.nan, Kept.VIOLATED),
        (Logged(spend=5, length=10), 2.0, Kept.WITHIN),  # no budget claimed: own B is 8
        (Logged(spend=9, length=10), 2.0, Kept.VIOLATED),
        (Logged(spend=5), math.nan, Kept.INCONCLUSIVE),
        (Logged(spend=-5, budget=10), math.nan, Kept.INCONCLUSIVE),
    ],
)
def test_a_claimed_budget_cannot_exceed_what_k_and_length_grant(
    logged: Logged, debt: float, verdict: Kept
) -> None:
    one = replace(trajectory(KEY, [], debt=debt), logged=logged)
    assert foreign_verdict(one, limit=50) == verdict


def test_without_its_rule_a_claimed_budget_must_at_least_be_finite() -> None:
    endless = replace(trajectory(KEY, []), logged=Logged(spend=500, budget=math.inf))
    assert foreign_verdict(endless, ledger=False) == Kept.INCONCLUSIVE


def test_a_logs_own_sums_and_totals_speak_against_it() -> None:
    quiet = trajectory(KEY, [0.0] * 5)
    told = Logged(cumulative=np.array([0, 0, 50.0, 50.0, 50.0]))
    assert foreign_verdict(replace(quiet, logged=told)) == Kept.VIOLATED
    assert foreign_verdict(replace(quiet, logged=Logged(500.0, 8.0))) == Kept.INCONCLUSIVE


def test_float32_sums_of_a_large_budget_are_forgiven() -> None:
    wide = Key("p", "m", 10.0, 0)
    for over, verdict in ((0.008, Kept.WITHIN), (0.012, Kept.VIOLATED)):
        charge = [10.0] * 999 + [10.0 + over]
        one = trajectory(wide, charge, allowance=[20.0] * 1000)
        assert foreign_verdict(one, limit=1000) == verdict


def test_a_trajectory_recorded_twice_is_refused() -> None:
    with pytest.raises(StoreError, match="recorded twice"):
        judge([*many(2), *many(1)], FACTS)


def test_a_baseline_has_no_utilisation() -> None:
    arms = judge([trajectory(Key("p", "m", math.inf, 0), [5.0])], FACTS)
    assert math.isnan(arms[0].utilisation.mean)
    assert arms[0].spend.mean == 5.0
    assert arms[0].finding("utilisation").verdict == words.CheckWord.UNKNOWN


def test_regime_counts_and_the_debts_share() -> None:
    theta = [0, 0, 0.4, 1, 1]
    allowance = [0.0, 0.0, 0.5, 1, 1]
    one = trajectory(KEY, [0, 0, 0.5, 0.2, 0.2], debt=2.5, theta=theta, allowance=allowance)
    row = measure(one, FACTS)
    assert (row.forced, row.active, row.free, row.opening) == (2, 1, 2, 2)
    numbers = acted(one).numbers
    assert (numbers["forced"], numbers["active"], numbers["free"]) == (0.4, 0.2, 0.4)


def test_regime_counts_trajectories_that_acted() -> None:
    weights: list[list[float]] = [[0, 0.4, 0.6], [1, 1, 1], [0, 1, 1], [math.nan] * 3]
    found = acted(
        *(
            trajectory(Key("p", "m", 1.0, i), [0.1] * 3, theta=theta)
            for i, theta in enumerate(weights)
        ),
        context=FOREIGN,
    )
    assert found.numbers["trajectories_active"] == 1 / 3
    assert "1 of 3 trajectories have an active step" in found.text
    assert "3 steps record no weight" in found.text


def test_nothing_is_kept_where_nothing_is_promised() -> None:
    free = replace(FACTS, currency=currency_of(NONE))
    arm = judge([trajectory(Key("p", "m", 1.0, i), [0.5, 2.0 + i]) for i in range(30)], free)[0]
    assert arm.kept == Kept.INCONCLUSIVE and not arm.violations
    # 2.5 nats for two tokens is more than k a token, and so is whatever follows.
    assert "promises no budget" in arm.finding("invariant").text
    assert arm.finding("invariant").value == 30
    cheap = judge([trajectory(KEY, [0.5, 0.1])], free)[0]
    assert cheap.finding("invariant").value == 0
    assert arm.worth == words.Worth.UNKNOWN


def test_what_is_given_back_is_judged_where_it_may_be() -> None:
    rows = [trajectory(Key("p", "m", 1.0, i), [0.5, -0.4, 1.0]) for i in range(30)]
    allowed = judge(rows, replace(FACTS, currency=currency_of(REALISED)))[0]
    assert allowed.kept == Kept.WITHIN
    assert judge(rows, FACTS)[0].kept == Kept.INCONCLUSIVE  # a KL is never negative


def test_a_rule_without_weights_acted_where_it_served_neither_model() -> None:
    served = [-1.0, -2.0, -0.5, math.nan]  # the safe model's is -2, the risky one's -0.5
    theta = [math.nan] * 4
    one = trajectory(KEY, [0.1] * 4, theta=theta, served=served)
    for context, seen in ((FACTS, (1, 3)), (FOREIGN, (0, 4))):
        row = measure(one, context)
        assert (row.active, row.unweighted) == seen


def test_weights_of_a_foreign_log_are_read_to_six_digits() -> None:
    row = measure(trajectory(KEY, [0.1] * 3, theta=[1e-7, 0.5, 1 - 1e-7]), FOREIGN)
    assert (row.forced, row.active, row.free) == (1, 1, 1)


def test_a_weight_inside_stays_inside_when_recorded() -> None:
    for theta in (1 - 1e-12, 1e-300, 0.3):
        assert 0 < theta_as_recorded(theta) < 1
    assert theta_as_recorded(0.0) == 0
    assert theta_as_recorded(1.0) == 1


def test_utilisation_is_against_the_own_length() -> None:
    broke = trajectory(Key("q", "anchored", 1.0, 0), [0.0, 0.0], debt=4.0)
    found = rows(trajectory(KEY, [0.5, 0.5, 1.0]), broke)
    assert [row.utilisation for row in found if row.has_budget] == [2 / 3]
    assert utilisation(Use.of(found)).numbers["ended_in_debt"] == 1
    assert "1 ended before" in utilisation(Use.of(found)).text
    (arm,) = judge([trajectory(KEY, [0.5, 0.5, 1.0]), broke], FACTS)
    assert arm.spend.mean == 1.0


def test_a_spend_that_is_not_known_is_left_out_of_every_utilisation() -> None:
    known, other, lost = (
        trajectory(Key(prompt, "anchored", 1.0, 0), [charge] * 4)
        for prompt, charge in (("p", 0.25), ("q", 0.15), ("r", math.nan))
    )
    (arm,) = judge([known, other, lost], FACTS)
    use = arm.finding("utilisation")
    assert arm.utilisation.max == use.value == use.numbers["max"] == 0.25
    assert arm.utilisation.mean == use.numbers["mean"] == pytest.approx(0.2)
    assert use.numbers["unknown"] == 1 and "the spend of 1 is not known" in use.text
    (row,) = class_table(rows(known, other, lost)).rows
    assert row.utilisation.max == 0.25 and row.utilisation.mean == arm.utilisation.mean
    assert row.unknown == 1


def test_without_any_known_spend_there_is_no_utilisation() -> None:
    lost = trajectory(KEY, [math.nan] * 4)
    (arm,) = judge([lost], FACTS)
    use = arm.finding("utilisation")
    assert use.verdict == words.CheckWord.UNKNOWN and math.isnan(use.value)
    assert use.text == "no trajectory has a known spend; the spend of 1 is not known"
    assert all(map(math.isnan, (arm.utilisation.mean, arm.utilisation.p95, arm.utilisation.max)))
    (row,) = class_table(rows(lost)).rows
    assert math.isnan(row.utilisation.max)


def test_findings_do_not_depend_on_the_order_of_records() -> None:
    rng = random.Random(0)
    records = [
        trajectory(
            Key(f"p{i % 7}", "anchored", float(k), i),
            [rng.random() * k for _ in range(9)],
            debt=0.1,
        )
        for i in range(40)
        for k in (1, 3)
    ]
    expected = [[arm.k, arm.findings] for arm in judge(records, FACTS)]
    for _ in range(5):
        rng.shuffle(records)
        assert [[arm.k, arm.findings] for arm in judge(records, FACTS)] == expected


def test_no_verdict_rests_on_a_check_that_is_no_verdict() -> None:
    copied = [
        trajectory(Key("p", "anchored", 1.0, i), [0.5] * 60, allowance=[9.0] * 60)
        for i in range(30)
    ]
    arm = judge(copied, FACTS)[0]
    suspect = {f.check for f in arm.findings if f.verdict == words.CheckWord.SUSPECT}
    assert suspect == {"accounting", "duplicates"}
    assert arm.kept == Kept.WITHIN


def test_every_check_answers_in_the_words_it_may() -> None:
    verdicts = {*words.Kept, *words.Tested, *words.CheckWord}
    for arm in judge([*many(20), *many(20, k=3.0), *many(20, k=0.0)], FACTS):
        names = [finding.check for finding in arm.findings]
        assert len(set(names)) == len(names)
        assert {finding.verdict for finding in arm.findings} <= verdicts
        assert all(finding.text for finding in arm.findings)


def test_sums_do_not_depend_on_order() -> None:
    assert total([1e16, 1.0, -1e16]) == total([1e16, -1e16, 1.0]) == 1.0
    assert total([math.inf, 1.0]) == math.inf
    assert math.isnan(total([math.inf, -math.inf]))
    assert total([1e308, 1e308]) == math.inf


def test_zero_count_limit() -> None:
    assert zero_count_upper(1500) == pytest.approx(0.0020, abs=5e-5)
    assert (1 - zero_count_upper(37, 0.01)) ** 37 == pytest.approx(0.01)
    for bad in ((0, 0.05), (5, 0.0), (5, 1.0)):
        with pytest.raises(ValueError, match="must be"):
            zero_count_upper(*bad)


def failed(check: str, k: float) -> dict[str, object]:
    """A finding of a verification that contradicts a record."""
    return {"check": check, "verdict": "FAILED", "value": 1.0, "k": k, "witness": None, "text": ""}


@pytest.mark.parametrize("where", [0.0, 1.0, math.inf])
def test_one_program_one_suspicion(where: float) -> None:
    context = RunContext(Banking(), foreign=True, failed=[failed("sampler: gain", where)])
    every = [
        trajectory(Key(f"p{i}", "box", k, 0), [0.0])
        for k in (0.0, 0.5, 1.0, 2.0)
        for i in range(20)
    ]
    every += [trajectory(Key(f"p{i}", "box", math.inf, 0), [0.0]) for i in range(20)]
    arms = judge_rows(Measures.of(every, context))
    assert {arm.kept for arm in arms} == {Kept.REFUTED}
    assert all("sampler: gain" in arm.refuted for arm in arms)
    assert all(math.isnan(arm.spend.mean) and math.isnan(arm.utilisation.max) for arm in arms)
    assert overall_of(arms) == Overall(
        Kept.REFUTED, "a replay refutes what was written or claimed (sampler: gain)", 1
    )
    # What is broken stays broken.
    arms = judge_rows(Measures.of([*every, trajectory(Key("q", "box", 2.0, 0), [9.0])], context))
    assert overall_of(arms).verdict == Kept.VIOLATED
    assert "sampler: gain" in next(a for a in arms if a.k == 2).finding("invariant").text


def test_a_decoder_is_not_suspected_for_another_in_the_same_log() -> None:
    finding = failed("sampler: gain", 1.0) | {"mechanism": "bad"}
    context = RunContext(Banking(), foreign=True, failed=[finding])
    rows = [
        trajectory(Key(f"p{i}", name, k, 0), [0.0])
        for name in ("bad", "good")
        for k in (1.0, 2.0)
        for i in range(20)
    ]
    arms = judge_rows(Measures.of(rows, context))
    words = {(arm.mechanism, arm.k): arm.kept for arm in arms}
    assert words == {
        ("bad", 1.0): Kept.REFUTED,
        ("bad", 2.0): Kept.REFUTED,
        ("good", 1.0): Kept.WITHIN,
        ("good", 2.0): Kept.WITHIN,
    }
    assert overall_of(arms).verdict == Kept.REFUTED


def test_an_admission_counts_only_where_no_weight_is_claimed() -> None:
    nan = np.full(3, math.nan)
    truth = trajectory(KEY, [0.5, 0.5, 0.5])
    claimed = replace(truth, steps=replace(truth.steps, charge=np.array([2.0, 0.5, 0.5])))
    row = measure(truth, FACTS)
    frank = replace(claimed, steps=replace(claimed.steps, theta=nan.astype(np.float32)))
    weighted = replace(claimed, steps=replace(claimed.steps, theta=np.ones(3, np.float32)))
    found = with_admission(row, frank, truth, FACTS)
    assert found.violated and found.admitted and found.excess_step == 0
    assert found.spend == 3.0 and math.isclose(found.excess, 1.0)
    assert with_admission(row, weighted, truth, FACTS) == row
    silent = replace(frank, steps=replace(frank.steps, charge=nan))
    assert with_admission(row, silent, truth, FACTS) == row
