from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.auditor.replay import ReplayTask, replay
from nafaudit.auditor.shadow import ShadowOrder, shadow_of
from nafaudit.core.debt import DebtRule
from nafaudit.core.ledger import Payment
from nafaudit.core.trajectory import Key
from nafaudit.mechanisms.divergences import Renyi, renyi
from nafaudit.mechanisms.laws import kl
from nafaudit.mechanisms.registry import mechanism
from nafaudit.protocols import booked
from nafaudit.selftest.faults import tools
from tests.auditor.test_shadow import random_laws

ORDERS = [1.01, 1.5, 4.0, 32.0, math.inf]


def slow(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """D_alpha by its definition, one row."""
    inside = p > -np.inf
    if np.any(q[inside] == -np.inf):
        return math.inf
    ratio = p[inside] - q[inside]
    if alpha == math.inf:
        return max(0.0, float(ratio.max()))
    x = p[inside] + (alpha - 1) * ratio
    top = float(x.max())
    return max(0.0, (top + math.log(math.fsum(np.exp(x - top)))) / (alpha - 1))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    holes=st.sampled_from([0.0, 0.2, 0.7]),
    log10=st.floats(-9, 2),
    alpha=st.sampled_from(ORDERS),
)
def test_the_largest_weight_that_fits(seed: int, holes: float, log10: float, alpha: float) -> None:
    safe, risky = random_laws(seed, rows=4, holes=holes)
    allowance = torch.full((4,), 10.0**log10, dtype=torch.float64)
    allowance[0] = 0.0
    served = Renyi(alpha).serve([()] * 4, safe, risky, allowance)
    shadow = ShadowOrder(alpha).serve([()] * 4, safe, risky, allowance)
    assert (served.charge <= allowance).all()
    for row in range(4):
        anchor, other = safe[row].numpy(), risky[row].numpy()
        limit, theta = float(allowance[row]), float(served.theta[row])
        law = served.law[row].numpy()
        charge = float(served.charge[row])
        assert charge == pytest.approx(slow(law, anchor, alpha), rel=1e-9, abs=1e-12)
        # More does not fit, where there is more and a law to serve.
        if 0 < theta < 1 and theta + 1e-3 < 1 and limit >= 1e-6:
            more = slow(tools.mixture(anchor, other, theta + 1e-3), anchor, alpha)
            assert more > limit
        assert float(shadow.charge[row]) == pytest.approx(charge, rel=1e-6, abs=1e-7)
        assert (shadow.theta[row] == 1) == (theta == 1)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), theta=st.floats(0, 1), more=st.floats(0, 1))
def test_charges_grow_with_order_and_weight(seed: int, theta: float, more: float) -> None:
    safe, risky = random_laws(seed, rows=1)
    low, high = sorted((theta, more))
    anchor = safe[0].numpy()
    laws = [
        torch.from_numpy(tools.mixture(anchor, risky[0].numpy(), weight))[None]
        for weight in (low, high)
    ]
    slack = 1e-9
    for alpha in ORDERS:
        one, other = (float(renyi(law, safe, alpha)) for law in laws)
        assert one <= other * (1 + slack) + slack
    spectrum = [float(kl(laws[1], safe)), *(float(renyi(laws[1], safe, a)) for a in ORDERS)]
    assert all(b >= a * (1 - slack) - 1e-7 for a, b in itertools.pairwise(spectrum))


def test_the_identities_of_psi() -> None:
    safe, risky = random_laws(8, rows=1, size=30)
    ratio = risky - safe
    psi = [float(torch.logsumexp(safe + u * ratio, -1)) for u in (0, 1)]
    assert psi == pytest.approx([0, 0], abs=1e-12)


@pytest.mark.parametrize("spec", ["renyi:4", "pathwise"])
def test_a_replay_finds_every_number_again(spec: str) -> None:
    made = mechanism(spec, DebtRule(0))
    assert isinstance(shadow_of(made), ShadowOrder)
    safe, risky = random_laws(12, rows=30, size=7)
    account, draw = made.ledger.open(0.4, 0.0), np.random.default_rng(0)
    allowances, charges, thetas, tokens = [], [], [], []
    for step in range(30):
        allowance = torch.tensor([account.allowance()], dtype=torch.float64)
        served = made.rule.serve([()], safe[step : step + 1], risky[step : step + 1], allowance)
        mass = served.law[0].exp().numpy()
        token = int(draw.choice(7, p=mass / mass.sum()))
        ratio = float(served.law[0, token] - safe[step, token])
        charge = booked(made.rule, float(served.charge[0]), ratio)
        account.pay(Payment(charge, ratio, token))
        allowances.append(float(allowance[0]))
        charges.append(charge)
        thetas.append(float(served.theta[0]))
        tokens.append(token)
    key = Key("p", made.name, 0.4, 0)
    claimed = np.array(thetas)
    task = ReplayTask(key, (1,), np.array(tokens, np.int32), theta=claimed, debt=0.0)
    again = replay(made, task, safe, risky)
    steps = again.trajectory.steps
    assert steps.charge == pytest.approx(charges, abs=1e-6)
    assert steps.allowance == pytest.approx(allowances, abs=1e-5)
    assert again.implied == pytest.approx(charges, abs=1e-6)
    if spec == "pathwise":
        assert min(charges) < 0 and np.cumsum(charges).max() <= 0.4 * 30
