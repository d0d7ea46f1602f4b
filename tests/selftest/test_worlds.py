from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from nafaudit.core.debt import DebtRule
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Request, debt_of
from nafaudit.selftest.faults.tools import divergence
from nafaudit.selftest.worlds import ToyWorld, toy_prompts, toy_world, truth


def small(seed: int, stop: float = 0.2, zeros: float = 0.0) -> ToyWorld:
    return toy_world(seed, size=4, contexts=11, gap=2.0, stop=stop, zeros=zeros)


@hypothesis_settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    k=st.sampled_from([0.0, 0.05, 0.3, 1.0, math.inf]),
    stop=st.sampled_from([0.0, 0.3]),
)
def test_chain_rule_and_identity(seed: int, k: float, stop: float) -> None:
    world = small(seed, stop)
    prompt = toy_prompts(world, seed, 2)[seed % 2]
    found = truth(AnchoredDecoder(world), Request(prompt, k, 0, 4))
    assert found.mean(lambda leaf: 1.0) == pytest.approx(1.0, abs=1e-12)
    assert math.fsum(math.exp(leaf.safe) for leaf in found.leaves) == pytest.approx(1.0, abs=1e-12)
    spend = found.mean(lambda leaf: leaf.spend)
    assert spend == pytest.approx(found.divergence, abs=1e-10)
    assert found.mean(lambda leaf: leaf.true_spend) == pytest.approx(spend, abs=1e-10)
    for leaf in found.leaves:
        assert leaf.spend <= leaf.budget + 1e-12 or k == math.inf


def test_the_budget_is_nearly_spent_on_some_path() -> None:
    # The bound on every path is tight: lowered by 1 % it would be false.
    found = truth(AnchoredDecoder(small(3, stop=0.0)), Request((1, 2, 3), 0.1, 0, 5))
    assert any(leaf.spend > 0.99 * leaf.budget > 0 for leaf in found.leaves)


def test_debt_lowers_the_divergence() -> None:
    world = small(5)
    owing = truth(AnchoredDecoder(world), Request(toy_prompts(world, 5, 2)[1], 0.5, 0, 4))
    free = truth(_Debtless(world), Request(toy_prompts(world, 5, 2)[1], 0.5, 0, 4))
    assert owing.divergence < free.divergence


def test_truth_agrees_with_sampling() -> None:
    world = small(7)
    request = Request((1, 2, 3), 0.3, 0, 3)
    found = truth(AnchoredDecoder(world), request)
    draws = [Request((1, 2, 3), 0.3, seed, 3) for seed in range(4000)]
    outputs = [tuple(o.tokens) for o in AnchoredDecoder(world).decode(draws)]
    for leaf in found.leaves:
        p = math.exp(leaf.served)
        # Fixed seeds: repeats exactly. For other seeds 5.5 standard errors, at most 85 outputs:
        # flakiness below 4e-6.
        slack = 5.5 * math.sqrt(p * (1 - p) / 4000) + 1e-3
        assert abs(outputs.count(leaf.tokens) / 4000 - p) < slack


def test_a_decoder_that_samples_another_law_is_seen_through() -> None:
    world = small(9)
    found = truth(_RiskySampler(world), Request((1, 2, 3), 0.05, 0, 4))
    assert found.mean(lambda leaf: leaf.true_spend) == pytest.approx(found.divergence, abs=1e-10)
    assert found.divergence > 2 * found.mean(lambda leaf: leaf.spend)


def test_a_law_that_one_model_excludes() -> None:
    world = small(11, zeros=0.4)
    found = truth(AnchoredDecoder(world), Request((1, 1), 0.5, 0, 4))
    assert found.mean(lambda leaf: leaf.spend) == pytest.approx(found.divergence, abs=1e-10)
    assert divergence(np.log([0.5, 0.5]), np.array([0.0, -np.inf])) == math.inf


def test_draws_are_those_of_the_seed() -> None:
    world = small(13)
    (output,) = AnchoredDecoder(world).decode([Request((1,), math.inf, 17, 1)])
    law = world.laws([(1,)])[1][0]
    noise = np.random.Generator(np.random.Philox(key=17)).gumbel(size=4)
    assert output.tokens[0] == int(np.argmax(law + noise))


class _Debtless(AnchoredDecoder):
    def debt(self, request: Request) -> float:
        return 0.0


class _RiskySampler(AnchoredDecoder):
    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return risky


@dataclass(frozen=True, eq=False)
class _Cooled(ToyWorld):
    """A world at a temperature, which still knows the laws of its models."""

    own: tuple[Law, Law] = field(default=(np.empty(0), np.empty(0)), repr=False)

    def prefix_laws(self, tokens: Sequence[int], *, raw: bool = False) -> tuple[Law, Law]:
        warmed = replace(self, safe=self.own[0], risky=self.own[1]) if raw else self
        return ToyWorld.prefix_laws(warmed, tokens)


def test_a_debt_counted_in_other_laws_breaks_no_promise() -> None:
    """Summed over every output: within K less the debt, whichever laws the debt is counted in."""
    over = 0
    for seed in range(12):
        world = small(seed, stop=0.0)
        own = (world.safe, world.risky)
        safe, risky = (np.asarray(log_softmax(law / 0.6, axis=1)) for law in own)
        cooled = _Cooled(safe, risky, debt=DebtRule(5, "official"), own=own)
        raw = replace(cooled, debt=cooled.debt.other)
        prompt = toy_prompts(world, seed, 2)[1]
        k, length = 0.5, 4
        debts = [debt_of(one, prompt) for one in (cooled, raw)]
        assert debts[1] == debt_of(replace(world, debt=cooled.debt), prompt)
        found = truth(AnchoredDecoder(raw), Request(prompt, k, 0, length))
        # Both are divergences from the cooled safe model.
        assert found.divergence <= max(0.0, k * length - debts[1]) + 1e-12 <= k * length + 1e-12
        assert all(leaf.spend <= leaf.budget + 1e-12 for leaf in found.leaves)
        over += found.divergence > max(0.0, k * length - debts[0])
    assert over >= 3
