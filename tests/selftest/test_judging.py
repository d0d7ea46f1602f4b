"""How a decoder that shows what it served is judged: the table of outcomes, line by line.

Each audit is of 24 outputs at each of two budgets in a small world, with seeds fixed. What is
decided here is decided by arithmetic, but for the lies about weights, which tokens show; there a
sound decoder would be accused with chance 1e-3.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nafaudit.core.finding import Kept
from nafaudit.core.promise import Promise
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.selftest import careful
from nafaudit.selftest.battery import AuditAnswer, audit, examine
from nafaudit.selftest.faults import accounts, banks, sampling, serving
from nafaudit.selftest.faults.tools import shown
from nafaudit.selftest.power import BATCH, AuditSetup
from nafaudit.selftest.worlds import toy_prompts

SETUP = AuditSetup(length=40, prompts=12, size=20, stop=0.01, sizes=(24,))
# The models are further apart there, so that tokens say more.
LONGER = replace(SETUP, gap=3.0, budgets=(0.2, 0.5), stop=0.002, sizes=(60,))


def judged(
    kind: type[AnchoredDecoder], setup: AuditSetup = SETUP, promise: Promise = Promise.BANKED
) -> AuditAnswer:
    world = setup.world(4)
    (asked,) = setup.stages(toy_prompts(world, 4, setup.prompts), 4)
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
