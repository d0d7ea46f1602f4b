from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.auditor.shadow import (
    ShadowAnchored,
    ShadowOrder,
    shadow_account,
    shadow_debt,
    shadow_of,
)
from nafaudit.core.debt import DebtRule, prefix_debt
from nafaudit.core.ledger import Banking, Payment
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.divergences import Pathwise, Renyi
from nafaudit.mechanisms.registry import Guarded, mechanism
from nafaudit.protocols import Mechanism, Rule
from nafaudit.selftest.faults import tools
from tests.exact import largest_theta


def random_laws(seed: int, rows: int = 12, size: int = 9, holes: float = 0.0) -> torch.Tensor:
    """Two stacks of laws, of very different sharpness, some tokens forbidden on one side."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 1, (2, rows, size)) * 10 ** draw.uniform(-3, 1.5, (2, rows, 1))
    logits[draw.random(logits.shape) < holes] = -np.inf
    logits[..., 0] = np.where(np.isinf(logits).all(-1), 0.0, logits[..., 0])
    return torch.from_numpy(logits).log_softmax(-1)


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.2, 0.7]), st.floats(-12, 2))
def test_the_shadow_is_the_twin(seed: int, holes: float, log10_allowance: float) -> None:
    safe, risky = random_laws(seed, holes=holes)
    allowance = torch.full((len(safe),), 10.0**log10_allowance, dtype=torch.float64)
    allowance[0], allowance[1] = 0.0, math.inf
    served = ShadowAnchored().serve([()] * len(safe), safe, risky, allowance)
    for row in range(len(safe)):
        anchor, other, limit = safe[row].numpy(), risky[row].numpy(), float(allowance[row])
        theta = largest_theta(anchor, other, limit)
        law = tools.mixture(anchor, other, theta)
        charge = tools.divergence(law, anchor)
        assert float(served.charge[row]) == pytest.approx(charge, rel=1e-9, abs=2e-11)
        assert (served.theta[row] == 1) == (theta == 1)
        assert (served.theta[row] == 0) == (theta == 0)
        truly = tools.divergence(served.law[row].numpy(), anchor)
        assert float(served.charge[row]) == pytest.approx(truly, rel=1e-9, abs=2e-11)
        assert float(torch.exp(served.law[row]).sum()) == pytest.approx(1, abs=1e-12)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3]))
def test_a_claimed_weight_is_charged_truly(seed: int, holes: float) -> None:
    safe, risky = random_laws(seed, holes=holes)
    draw = np.random.default_rng(seed)
    theta = torch.from_numpy(draw.choice([0.0, 1.0, *draw.random(3)], len(safe)))
    cost = torch.tensor(
        [tools.divergence(r.numpy(), s.numpy()) for s, r in zip(safe, risky, strict=True)],
        dtype=torch.float64,
    )
    charge = ShadowAnchored().charge_at(safe, risky, theta, cost)
    for row in range(len(safe)):
        anchor, other = safe[row].numpy(), risky[row].numpy()
        if 0 < theta[row] < 1 and not ((anchor > -np.inf) & (other > -np.inf)).any():
            assert math.isnan(charge[row])  # there is no such mixture
            continue
        true = tools.divergence(tools.mixture(anchor, other, float(theta[row])), anchor)
        assert float(charge[row]) == pytest.approx(true, rel=1e-9, abs=1e-11)


def test_rows_at_128k_tokens_agree_with_the_solver() -> None:
    safe, risky = random_laws(5, rows=3, size=128_256)
    allowance = torch.tensor([0.3, 1e-3, 2.0], dtype=torch.float64)
    ours = ShadowAnchored().serve([()] * 3, safe, risky, allowance)
    theirs = Anchored().serve([()] * 3, safe, risky, allowance)
    assert torch.allclose(ours.charge, theirs.charge, rtol=1e-7, atol=1e-9)


@given(
    st.lists(st.floats(-5, 5), max_size=12),
    st.integers(0, 7),
    st.sampled_from(["positives", "official"]),
)
def test_the_shadow_debt_is_the_debt(ratios: list[float], n: int, definition: str) -> None:
    rule = DebtRule(n, definition)  # type: ignore[arg-type]
    known = prefix_debt(np.array(ratios), np.ones(len(ratios), bool), rule)
    assert shadow_debt(ratios, rule) == pytest.approx(known, abs=1e-12)


@given(st.floats(0, 5), st.floats(0, 20), st.lists(st.floats(0, 9), max_size=20))
def test_the_shadow_account_is_the_account(k: float, debt: float, charges: list[float]) -> None:
    mine, theirs = shadow_account(Banking(), k, debt), Banking().open(k, debt)
    assert type(mine) is not type(theirs)
    for charge in charges:
        assert mine.allowance() == pytest.approx(theirs.allowance(), abs=1e-9)
        mine.pay(Payment(charge, 0.0, 0))
        theirs.pay(Payment(charge, 0.0, 0))


@pytest.mark.parametrize(
    ("spec", "shadow"),
    [
        ("anchored", ShadowAnchored()),
        ("anchored:refill=character,bank=1", ShadowAnchored()),
        ("renyi:1", ShadowAnchored()),
        ("renyi:1.3", ShadowOrder(1.3)),
        ("renyi:inf", ShadowOrder(math.inf)),
        ("pathwise", ShadowOrder(math.inf, realised=True)),
    ],
)
def test_shipped_rules_have_a_second_implementation(spec: str, shadow: Rule) -> None:
    assert shadow_of(mechanism(spec, DebtRule())) == shadow


@pytest.mark.parametrize("spec", ["cp-delta", "cp-fuse", "memfree", "tokenswap"])
def test_other_rules_are_asked_again(spec: str) -> None:
    made = mechanism(spec, DebtRule())
    assert not made.shadow and shadow_of(made) is made.rule


class MyAnchored(Anchored):
    """A subclass may serve anything."""

    shadow = "kl"


class MyRenyi(Renyi):
    shadow = "renyi:4"

    def __init__(self) -> None:
        super().__init__(4.0)


class MyPathwise(Pathwise):
    shadow = "pathwise"


class MyMechanism(Mechanism):
    """A whole mechanism that would like to be recomputed as the shipped one."""

    def __init__(self) -> None:
        super().__init__("anchored", Anchored(), Banking(), DebtRule(), shadow="kl")


@pytest.mark.parametrize("plugin", [MyAnchored, MyRenyi, MyPathwise, MyMechanism])
def test_a_plugin_does_not_choose_its_shadow(plugin: type) -> None:
    made = mechanism(f"{__name__}:{plugin.__name__}", DebtRule())
    assert made.shadow == "" and shadow_of(made) is made.rule
    assert isinstance(made.rule, Guarded)


def test_an_unknown_shadow_is_refused() -> None:
    with pytest.raises(ValueError, match="no second implementation is called 'mine'"):
        shadow_of(Mechanism("m", Anchored(), Banking(), DebtRule(), shadow="mine"))
