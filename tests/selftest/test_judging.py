"""How a decoder that shows what it served is judged: the table of outcomes, line by line.

Each audit is of 24 outputs at each of two budgets in a small world, with seeds fixed. What is
decided here is decided by arithmetic, but for the lies about weights, which tokens show; there a
sound decoder would be accused with chance 1e-3.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from nafaudit.core.finding import Fault, Kept
from nafaudit.core.promise import Promise
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law
from nafaudit.selftest import careful
from nafaudit.selftest.battery import AuditAnswer, AuditedOutput, audit, examine
from nafaudit.selftest.faults import accounts, banks, sampling, serving
from nafaudit.selftest.faults.tools import shown, silent
from nafaudit.selftest.power import BATCH, AuditSetup
from nafaudit.selftest.worlds import toy_prompts

SETUP = AuditSetup(length=40, prompts=12, size=20, stop=0.01, sizes=(24,))
# The models are further apart there, so that tokens say more.
LONGER = replace(SETUP, gap=3.0, budgets=(0.2, 0.5), stop=0.002, sizes=(60,))


def judged(
    kind: type[AnchoredDecoder],
    setup: AuditSetup = SETUP,
    promise: Promise = Promise.BANKED,
    seed: int = 4,
) -> AuditAnswer:
    world = setup.world(seed)
    (asked,) = setup.stages(toy_prompts(world, seed, setup.prompts), seed)
    decoder, outputs = kind(world), []
    for start in range(0, len(asked), BATCH):
        outputs += decoder.decode([one.request for one in asked[start : start + BATCH]])
    return audit(world, examine(world, asked, outputs), setup.length, promise=promise)


def named(kind: type[AnchoredDecoder]) -> str:
    return kind.__name__


@pytest.mark.parametrize(
    "kind",
    [AnchoredDecoder, careful.SpendsNineTenths, careful.SpendsFourFifths, careful.Arithmetic],
    ids=named,
)
def test_what_keeps_its_budget_by_what_it_shows_is_within(kind: type[AnchoredDecoder]) -> None:
    found = judged(kind)
    assert found.overall.verdict == Kept.WITHIN and not found.noted
    assert "by what the decoder shows" in found.overall.why
    if kind is not AnchoredDecoder:
        assert found.conforms.startswith("conforms to anchored: NO")


@pytest.mark.parametrize(
    "kind",
    [
        banks.FifteenPercentMore,
        banks.BankReset,
        banks.BankRefilled,
        accounts.OneStepAhead,
        banks.FirstRowsBudget,
        banks.TwiceTheBudget,
        accounts.PooledBudget,
        banks.HotPrompts,
    ],
    ids=named,
)
def test_what_overspends_by_what_it_shows_is_violated(kind: type[AnchoredDecoder]) -> None:
    found = judged(kind)
    assert found.overall.verdict == Kept.VIOLATED
    assert found.overall.why.startswith("budget: the promise was broken at k = ")
    assert not [name for name in found.noted if name.startswith("bookkeeping: ")]


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        (banks.ClipsItsCharge, "charge"),
        (banks.BooksLate, "charge"),
        (accounts.ReverseDivergence, "charge"),
        (banks.NeighboursDebt, "debt"),
        (accounts.NoDebtStated, "debt"),
        (accounts.DebtHalved, "debt"),
        (accounts.DebtOfTheBatch, "debt"),
        (banks.BooksTheDraw, "spend"),
    ],
)
def test_a_false_claim_is_named_beside_what_is_overspent(
    kind: type[AnchoredDecoder], claim: str
) -> None:
    found = judged(kind)
    assert found.overall.verdict == Kept.VIOLATED
    assert f"bookkeeping: {claim}" in found.noted


@pytest.mark.parametrize(
    "kind",
    [sampling.ThetaRoundedUp, sampling.ThetaPlusTwentieth, sampling.ArithmeticServed],
    ids=named,
)
def test_claims_that_contradict_each_other_are_set_aside(kind: type[AnchoredDecoder]) -> None:
    """The served probability is not that of the claimed weight: it is judged as if silent."""
    found = judged(kind)
    assert found.overall.verdict != Kept.WITHIN
    assert "bookkeeping: served" in found.noted
    assert all(arm.silent for arm in found.arms)
    assert found.judged is not None and not found.judged.open


@pytest.mark.parametrize(
    "kind",
    [serving.DeniesEveryTenth, serving.DeniesTheFirst, serving.DeniesTheLast],
    ids=named,
)
def test_lies_about_weights_are_seen_by_the_tokens(kind: type[AnchoredDecoder]) -> None:
    found = judged(kind, LONGER)
    assert found.overall.verdict == Kept.REFUTED
    assert "sampling: claims" in found.by


@pytest.mark.parametrize(
    "kind", [sampling.Tempered, sampling.Heated, serving.TopK, serving.EpsilonCut], ids=named
)
def test_what_acts_after_the_solve_is_seen_by_the_tokens_of_what_is_shown(
    kind: type[AnchoredDecoder],
) -> None:
    """Such tokens also look as if draws depended on each other: that excuses nothing."""
    found = judged(kind, replace(SETUP, sizes=(60,)))
    assert found.overall.verdict in (Kept.REFUTED, Kept.VIOLATED)
    assert "sampling: claims" in found.by


def test_a_weight_that_is_claimed_alone_may_be_a_little_off() -> None:
    """Not caught: its tokens are too close to those of the weight that it claims."""
    found = judged(shown(sampling.ThetaPlusTwentieth, "theta"))
    assert found.overall.verdict == Kept.WITHIN


def test_the_probability_of_a_token_alone_shows_no_spend() -> None:
    """It gives no divergence, so that the tokens judge, as of a silent decoder."""
    found = judged(shown(AnchoredDecoder, "served"))
    assert all(arm.silent for arm in found.arms)
    assert not found.accused


@pytest.mark.parametrize("kind", [banks.BooksTheDraw, accounts.ChargesTheDraw], ids=named)
def test_the_mean_of_a_prompt_may_be_kept_where_a_prefix_is_not(
    kind: type[AnchoredDecoder],
) -> None:
    """What the token realises has the divergence for its mean: Eq. 1 holds, prefixes do not."""
    assert judged(kind).overall.verdict == Kept.VIOLATED
    found = judged(kind, promise=Promise.K_NAF)
    assert not found.accused, found.overall.why


def test_eq_1_is_refuted_by_a_bound_of_the_mean_alone() -> None:
    """Two answers of a prompt bound no mean; sixty, each at twice the budget, do."""
    few = judged(banks.TwiceTheBudget, promise=Promise.K_NAF)
    assert few.overall.verdict == Kept.INCONCLUSIVE and "above K in the mean" in few.overall.why
    many = replace(SETUP, prompts=2, sizes=(120,), budgets=(0.4,))
    found = judged(banks.TwiceTheBudget, many, Promise.K_NAF)
    assert found.overall.verdict == Kept.VIOLATED
    assert judged(AnchoredDecoder, many, Promise.K_NAF).overall.verdict == Kept.WITHIN


class PaysForGreed(careful.Metered):
    """Serves a geometric mixture of which a tenth is its own likeliest token, and pays for it."""

    def mixed(self, safe: Law, risky: Law, theta: NDArray[np.float64]) -> Law:
        law = super().mixed(safe, risky, theta)
        rows, best = np.arange(len(law)), law.argmax(axis=1)
        law = law + math.log(0.9)
        law[rows, best] = np.logaddexp(law[rows, best], math.log(0.1))
        return careful.normalised(law)


class PaysForCooling(careful.Metered):
    """Serves a geometric mixture at temperature 0.87, and pays for it."""

    def mixed(self, safe: Law, risky: Law, theta: NDArray[np.float64]) -> Law:
        return careful.normalised(super().mixed(safe, risky, theta) / 0.87)


class PaysForCut(careful.Metered):
    """Serves the likeliest 99 % of a geometric mixture, and pays for it."""

    def mixed(self, safe: Law, risky: Law, theta: NDArray[np.float64]) -> Law:
        law = super().mixed(safe, risky, theta)
        ordered = -np.sort(-law, axis=1)
        mass = np.exp(ordered)
        count = (np.cumsum(mass, axis=1) - mass < 0.99).sum(axis=1)
        last = np.take_along_axis(ordered, count[:, None] - 1, axis=1)
        return careful.normalised(np.where(law >= last, law, -np.inf))


@pytest.mark.parametrize("kind", [PaysForGreed, PaysForCooling, PaysForCut], ids=named)
def test_a_shape_that_is_paid_for_is_not_taken_for_one_that_is_not(
    kind: type[AnchoredDecoder],
) -> None:
    """The list has the unpaid shape, and the paid one at other strengths.

    Before these were looked at, such decoders were refuted, silent, in 2 to 8 of 8 audits.
    """
    setup = AuditSetup(budgets=(0.5, 1.0), sizes=(60,))
    for seed in (0, 1):
        assert not judged(silent(kind), setup, seed=seed).accused


def test_draws_that_are_shared_accuse_nobody_of_spending() -> None:
    """Every answer is the same text: that is said, and nothing of the spend."""
    for shows in (sampling.NoiseReused, silent(sampling.NoiseReused)):
        found = judged(shows)
        assert found.overall.why.startswith("sampling: ")
        assert not any(name.startswith("budget: ") for name in found.by)


class OneStream(careful.Arithmetic):
    """Is sound answer by answer, and draws every answer with the same noise."""

    def draw(self, row: ReferenceRow, law: Law) -> int:
        noise = np.random.default_rng([1, row.step]).gumbel(size=len(law))
        return int(np.argmax(law + noise))


def test_a_rule_that_is_not_known_and_shares_its_draws_is_not_said_to_overspend() -> None:
    """Evidence of answers that depend on each other may not be multiplied, whatever the law."""
    for seed in (0, 1):
        found = judged(silent(OneStream), AuditSetup(sizes=(60,)), seed=seed)
        assert not any(name.startswith("budget: ") for name in found.by)


def test_tokens_of_a_decoder_that_lost_outputs_refute_nothing() -> None:
    """The answers that came were chosen, by a time limit say; what is shown is arithmetic."""
    world = SETUP.world(4)
    (asked,) = SETUP.stages(toy_prompts(world, 4, SETUP.prompts), 4)
    for kind, verdict in (
        (silent(banks.TwiceTheBudget), Kept.INCONCLUSIVE),
        (banks.TwiceTheBudget, Kept.VIOLATED),
    ):
        outputs = kind(world).decode([one.request for one in asked])
        found = examine(world, asked, outputs)
        lost = Fault("hang", "no answer", found[0].key, lost=True)
        found[0] = AuditedOutput(found[0].key, (lost,))
        assert audit(world, found, SETUP.length).overall.verdict == verdict


def test_what_a_silent_decoder_spends_is_not_said_under_eq_1() -> None:
    found = judged(silent(banks.FifteenPercentMore), SETUP, Promise.K_NAF)
    said = " ".join(one.text for one in found.findings)
    assert "nats in the mean of" not in said and "would have been refuted" not in said
