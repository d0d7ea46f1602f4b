"""What each card promises, held against every output of small worlds; no statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.debt import DebtRule
from nafaudit.core.ledger import Account, Payment
from nafaudit.mechanisms.cards import CARDS, card, parse
from nafaudit.mechanisms.registry import mechanism
from nafaudit.protocols import Law, Mechanism, Request
from nafaudit.selftest.worlds import ToyWorld, Truth, toy_prompts, toy_world
from tests.exact import truth_of_mechanism

# One specification or more of every step-level mechanism with a promise, with the order of what
# its budget bounds.
PROMISES = {
    "anchored": 1.0,
    "anchored:cap=0.4,bank=0.3": 1.0,
    "renyi:1": 1.0,
    "renyi:1.5": 1.5,
    "renyi:4": 4.0,
    "renyi:inf": math.inf,
    "pathwise": math.inf,
    "pathwise:cap=0.5": math.inf,
    "cp-delta": math.inf,
    "cp-delta:kl": 1.0,
}


def small(seed: int, stop: float = 0.2, zeros: float = 0.0, gap: float = 2.0) -> ToyWorld:
    return toy_world(seed, size=4, contexts=11, gap=gap, stop=stop, zeros=zeros)


def found_in(world: ToyWorld, spec: str, k: float, prompt: tuple[int, ...], length: int) -> Truth:
    return truth_of_mechanism(world, mechanism(spec, world.debt), Request(prompt, k, 0, length))


def test_every_promise_is_tried() -> None:
    step_level = {c.name for c in CARDS if c.promise.divergence != "none"}
    chosen = {"best-of-n", "blockwise", "cp-k", "hybrid"}  # tests/mechanisms/test_choosing.py
    assert {s.partition(":")[0] for s in PROMISES} | chosen == step_level
    for spec, order in PROMISES.items():
        said = card(spec.partition(":")[0]).promise
        assert (said.divergence == "max") == (order == math.inf) or ":" in spec


@pytest.mark.parametrize("spec", PROMISES)
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    k=st.sampled_from([0.05, 0.3, 1.0]),
    stop=st.sampled_from([0.0, 0.3]),
    zeros=st.sampled_from([0.0, 0.2]),
)
def test_the_promise_is_kept_over_every_output(
    spec: str, seed: int, k: float, stop: float, zeros: float
) -> None:
    world = small(seed, stop, zeros)
    prompt = toy_prompts(world, seed, 2)[seed % 2]
    found = found_in(world, spec, k, prompt, 4)
    assert found.mean(lambda leaf: 1.0) == pytest.approx(1.0, abs=1e-9)
    most = max(leaf.budget for leaf in found.leaves)
    assert found.renyi(PROMISES[spec]) <= most + 1e-9
    for leaf in found.leaves:
        assert leaf.spend <= leaf.budget + 1e-9
        if PROMISES[spec] == math.inf:
            assert leaf.ratio <= leaf.budget + 1e-9
    # What the divergence says of an event, for the likeliest gain there is.
    order = PROMISES[spec]
    if order > 1:
        share = 1.0 if order == math.inf else (order - 1) / order
        for leaf in found.leaves:
            assert leaf.served <= share * (most + leaf.safe) + 1e-9


@pytest.mark.parametrize("spec", [s for s in PROMISES if not s.startswith("cp-delta")])
def test_the_promise_is_tight(spec: str) -> None:
    # Two models so far apart that every step spends all it may: 1 % less would be too little.
    far = np.log(np.array([[1e-9, 1.0], [1.0, 1e-9]]) / (1 + 1e-9))
    world = ToyWorld(np.repeat(far[:1], 3, 0), np.repeat(far[1:], 3, 0), debt=DebtRule(0))
    found = found_in(world, spec, 0.3, (1, 1), 4)
    most = max(leaf.budget for leaf in found.leaves)
    assert 0.99 * most < found.renyi(PROMISES[spec]) <= most * (1 + 1e-9)


@pytest.mark.parametrize("divergence", ["max", "kl"])
def test_cp_delta_reaches_its_budget_where_its_price_is_k(divergence: str) -> None:
    # Two models that share one token, as likely as makes each step cost just under k.
    k = 0.3
    shared = math.exp(-k * (1 - 1e-9))
    if divergence == "max":
        safe, risky = [shared, 1 - shared, 0.0], [shared, 0.0, 1 - shared]
    else:
        safe, risky = [shared, 1 - shared, 0.0], [1.0, 0.0, 0.0]
    with np.errstate(divide="ignore"):
        anchor, other = (np.log(np.array([law])) for law in (safe, risky))
    found = found_in(
        ToyWorld(anchor, other, debt=DebtRule(0)), f"cp-delta:{divergence}", k, (0, 0), 4
    )
    most = max(leaf.budget for leaf in found.leaves)
    order = math.inf if divergence == "max" else 1.0
    assert 0.99 * most < found.renyi(order) <= most + 1e-9


@pytest.mark.parametrize("divergence", ["max", "kl"])
def test_cp_delta_costs_what_the_paper_says(divergence: str) -> None:
    world = small(5, stop=0.0)
    prompt = (1, 2, 3)
    safe, risky = (np.exp(law[0]) for law in world.laws([prompt]))
    free = replace(mechanism(f"cp-delta:{divergence}", DebtRule(0)), debt=DebtRule(0))
    found = truth_of_mechanism(world, free, Request(prompt, 50.0, 0, 1))
    if divergence == "max":
        common = np.minimum(safe, risky)
        bound = -math.log(1 - np.abs(safe - risky).sum() / 2)
        assert found.renyi(math.inf) == pytest.approx(bound, rel=1e-12)  # reached, not only kept
    else:
        common = np.sqrt(safe * risky)
        bound = -2 * math.log(common.sum())
        law = common / common.sum()
        both = found.divergence + float((law * np.log(law / risky)).sum())
        assert both == pytest.approx(bound, rel=1e-12)  # the two divergences share it
    served = {leaf.tokens[0]: math.exp(leaf.served) for leaf in found.leaves}
    assert [served[t] for t in range(4)] == pytest.approx(list(common / common.sum()))


def test_kl_does_not_bound_what_pathwise_bounds() -> None:
    # The control: the same k, and some output of KL-anchored decoding goes beyond K.
    world = small(3, stop=0.0, gap=3.0)
    kl, path = (found_in(world, spec, 0.3, (1, 2, 3), 5) for spec in ("anchored", "pathwise"))
    most = max(leaf.budget for leaf in kl.leaves)
    assert kl.renyi(math.inf) > most >= path.renyi(math.inf) - 1e-9
    # And pathwise is rule-relative: its KL charges may exceed what its own ledger grants.
    assert any(leaf.true_spend > leaf.budget for leaf in path.leaves)


def test_pathwise_gives_back_what_a_token_saves() -> None:
    world = small(3, stop=0.0, gap=3.0)
    rule = mechanism("pathwise", DebtRule(0))
    account = rule.ledger.open(0.5, 0.0)
    found = truth_of_mechanism(world, rule, Request((1, 2, 3), 0.5, 0, 3))
    assert any(leaf.spend < 0 for leaf in found.leaves)
    assert account.allowance() == 0.5


def test_order_one_is_the_kl_rule_bit_by_bit() -> None:
    world = small(11)
    prompt = toy_prompts(world, 11, 2)[1]
    one, other = (found_in(world, spec, 0.3, prompt, 4) for spec in ("anchored", "renyi:1"))
    assert one == other


def _charge(
    world: ToyWorld, made: Mechanism, prefix: tuple[int, ...], account: Account, token: int
) -> float:
    safe, risky = (torch.from_numpy(np.array(law)) for law in world.laws([prefix]))
    allowance = torch.tensor([account.allowance()], dtype=torch.float64)
    charge = float(made.rule.serve([prefix], safe, risky, allowance).charge[0])
    account.pay(Payment(charge, 0.0, token))
    return charge


class Late(ToyWorld):
    """Two models that agree for some tokens, then not at all."""

    def laws(self, prefixes: Sequence[Sequence[int]]) -> tuple[Law, Law]:
        places = [int(len(prefix) > 7) for prefix in prefixes]
        return self.safe[places], self.risky[places]


def test_a_cap_bounds_every_window() -> None:
    # cap + (W-1) k, reached by a law that saves first and then spends; the bank alone has no such.
    calm = np.log(np.array([0.5, 0.5]))
    wild = np.log(np.array([1 - 1e-9, 1e-9]))
    late = Late(np.stack([calm, wild[::-1]]), np.stack([calm, wild]), debt=DebtRule(0))
    for cap, bounded in ((1.0, True), (math.inf, False)):
        made = mechanism("anchored" if math.isinf(cap) else "anchored:cap=1", DebtRule(0))
        account, charges = made.ledger.open(0.4, 0.0), []
        for step in range(8):
            prefix = (1, 1, 1, *[0] * step)
            charges.append(_charge(late, made, prefix, account, 0))
        burst = max(sum(charges[i : i + 3]) for i in range(6))
        assert (burst <= 1.0 + 2 * 0.4 + 1e-9) is bounded
        if bounded:
            assert burst > 0.99 * (1.0 + 2 * 0.4)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("renyi", "needs alpha"),
        ("renyi:1.001", "alpha must be 1 or at least 1.01"),
        ("renyi:alpah=4", "did you mean 'alpha'"),
        ("reny:4", "unknown mechanism 'reny:4'; did you mean 'renyi'"),
        ("anchored:refill=char", "refill must be token or character .* did you mean 'character'"),
        ("anchored:cap=1,cap=2", "cap is given twice"),
        ("best-of-n:n=65", "n must be a whole number from 1 to 64 .*, got '65'"),
        ("memfree:list=nowhere.txt", "list must be a file"),
        ("cp-fuse:3", "cp-fuse has no option '3'. It takes none"),
        ("anchored:cap=nan", "cap must be a number of at least 0"),
    ],
)
def test_a_wrong_specification_says_what_is_allowed(spec: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        mechanism(spec, DebtRule())


@given(
    alpha=st.floats(1.01, 50) | st.just(math.inf),
    cap=st.floats(0, 100) | st.just(math.inf),
    bank=st.floats(0, 100),
)
def test_a_specification_is_read_back(alpha: float, cap: float, bank: float) -> None:
    found = parse(f"renyi:{alpha!r},cap={cap!r},bank={bank!r}")
    assert found is not None
    again = parse(found.name)
    assert again is not None and again.values == found.values and again.name == found.name
