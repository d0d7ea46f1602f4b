from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nafaudit.core.ledger import Banking, Payment
from nafaudit.mechanisms import anchored
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.laws import geodesic, kl, log_law
from nafaudit.protocols import Served
from nafaudit.selftest.faults import tools
from tests.conftest import golden
from tests.exact import largest_theta

SAFE = torch.tensor([[0.70, 0.20, 0.08, 0.02]], dtype=torch.float64).log()
RISKY = torch.tensor([[0.05, 0.15, 0.20, 0.60]], dtype=torch.float64).log()


def serve(safe: Tensor, risky: Tensor, allowance: float | list[float]) -> Served:
    limits = torch.tensor(allowance, dtype=torch.float64).expand(len(safe))
    return Anchored().serve([[]] * len(safe), safe, risky, limits)


def check_promise(safe: Tensor, risky: Tensor, allowance: float) -> Served:
    """What must hold of any two laws, with no tolerance on the budget."""
    out = serve(safe, risky, allowance)
    charge, theta = float(out.charge[0]), float(out.theta[0])
    cost = float(kl(out.law, safe)[0])
    assert max(charge, cost) <= max(allowance, 0.0)
    assert charge == pytest.approx(cost, rel=1e-9, abs=1e-13)
    assert abs(float(torch.exp(out.law).sum()) - 1) < 1e-9
    assert 0 <= theta <= 1
    if theta == 0:
        assert torch.equal(out.law, safe)
    if theta == 1:
        assert torch.equal(out.law, risky)
    return out


def one_sided(safe: Tensor, risky: Tensor) -> bool:
    """True if some token is forbidden by one law only, so that the divergence jumps."""
    return bool((torch.isfinite(safe) != torch.isfinite(risky)).any())


@pytest.mark.parametrize("row", golden("vec_theta"), ids=lambda row: row["k_t"])
def test_golden_theta(row: dict[str, str]) -> None:
    out = check_promise(SAFE, RISKY, float(row["k_t"]))
    assert float(out.theta[0]) == pytest.approx(float(row["theta"]), abs=1e-6)
    assert float(out.charge[0]) == pytest.approx(float(row["KL_q_ps"]), abs=1e-6)
    law = [float(row[f"q{v}"]) for v in range(4)]
    assert torch.exp(out.law[0]).tolist() == pytest.approx(law, abs=1e-6)


def test_golden_banking() -> None:
    account = Banking().open(0.5, 2.3)
    spent = 0.0
    rows = golden("vec_banking")
    granted = Banking().accrued(0.5, 2.3, np.zeros(len(rows), np.int32))
    for row in rows:
        allowance = account.allowance()
        out = check_promise(SAFE, RISKY, allowance)
        charge = float(out.charge[0])
        account.pay(Payment(charge, 0.0, 0))
        spent += charge
        assert granted[int(row["t"])] == pytest.approx(float(row["budget_so_far"]), abs=1e-9)
        assert allowance == pytest.approx(float(row["k_t"]), abs=1e-6)
        assert float(out.theta[0]) == pytest.approx(float(row["theta"]), abs=1e-6)
        assert spent == pytest.approx(float(row["cum_spend"]), abs=1e-6)
        left = granted[int(row["t"])] - spent
        assert left == pytest.approx(float(row["budget_remaining"]), abs=1e-6)


LOGIT = st.one_of(
    st.floats(-30, 30),
    st.floats(-800, 800),
    st.floats(-1e4, 1e4),
    st.sampled_from([0.0, -745.0, -math.inf]),
)
ALLOWANCE = st.one_of(
    st.floats(0, 1e-9), st.floats(1e-9, 1e-3), st.floats(1e-3, 1), st.floats(1, 1e4)
)


@st.composite
def two_laws(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    size = draw(st.integers(2, 12))
    rows = []
    for _ in range(2):
        logits = draw(st.lists(LOGIT, min_size=size, max_size=size))
        if all(x == -math.inf for x in logits):
            logits[0] = 0.0
        rows.append(log_law(torch.tensor([logits], dtype=torch.float64)))
    return rows[0], rows[1]


@settings(max_examples=400)
@given(two_laws(), ALLOWANCE)
def test_any_two_laws(laws: tuple[Tensor, Tensor], allowance: float) -> None:
    check_any_two_laws(*laws, allowance)


def check_any_two_laws(safe: Tensor, risky: Tensor, allowance: float) -> None:
    """The promise, and that little is left unspent."""
    out = check_promise(safe, risky, allowance)
    if float(out.theta[0]) < 1 and allowance >= 1e-3 and not one_sided(safe, risky):
        assert allowance - float(out.charge[0]) <= 1e-4 * allowance


# A token that the safe law forbids and the risky one gives less than any number can hold.
BARELY = (
    torch.tensor([[0.5, 0.0, 0.5]], dtype=torch.float64).log(),
    torch.tensor([[-746.0, -746.0, 0.0]], dtype=torch.float64),
)


@settings(max_examples=200)
@example(BARELY, 1.0)
@given(two_laws(), ALLOWANCE)
def test_agrees_with_the_slow_twin(laws: tuple[Tensor, Tensor], allowance: float) -> None:
    check_against_the_twin(*laws, allowance)


def check_against_the_twin(safe: Tensor, risky: Tensor, allowance: float) -> None:
    """The promise, and the twin's charge."""
    fast = check_promise(safe, risky, allowance)
    slow = largest_theta(safe[0].numpy(), risky[0].numpy(), allowance)
    twin_charge = tools.divergence(
        tools.mixture(safe[0].numpy(), risky[0].numpy(), slow), safe[0].numpy()
    )
    if allowance >= 1e-3:
        # Equal charges say it: theta itself is loose where the divergence is flat.
        assert float(fast.charge[0]) == pytest.approx(twin_charge, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("size", [2048, 32_000, 128_256, 256_000])
@pytest.mark.parametrize("scale", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("allowance", [1e-8, 1e-3, 0.1, 2.0])
def test_large_vocabularies(size: int, scale: float, allowance: float) -> None:
    generator = torch.Generator().manual_seed(size)
    safe, risky = (log_law(scale * torch.randn(1, size, generator=generator)) for _ in "ab")
    out = check_promise(safe, risky, allowance)
    if allowance >= 1e-3 and float(out.theta[0]) < 1:
        assert float(out.theta[0]) > 0
        assert allowance - float(out.charge[0]) <= 1e-4 * allowance


@pytest.mark.parametrize("certainty", [8.0, 12.0, 16.0, 20.0])
@pytest.mark.parametrize("allowance", [0.1, 1.0, 3.0])
def test_rows_that_are_nearly_certain_of_a_token_need_no_patient_search(
    certainty: float, allowance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memorised text is like that: one token has all but e^-20 to e^-8 of the odds."""
    left, patiently = [], anchored._newton_search_row

    def counted(*row: Any) -> Any:
        left.append(row)
        return patiently(*row)

    monkeypatch.setattr(anchored, "_newton_search_row", counted)
    generator = torch.Generator().manual_seed(1)
    for token in range(20):
        safe = 3 * torch.randn(1, 2048, generator=generator)
        risky = safe + 0.7 * torch.randn(1, 2048, generator=generator)
        risky[0, token] = risky.logsumexp(-1) + certainty
        out = check_promise(log_law(safe), log_law(risky), allowance)
        assert 0 < float(out.theta[0]) < 1
    assert len(left) <= 1


def test_a_larger_theta_would_not_fit() -> None:
    generator = torch.Generator().manual_seed(5)
    for allowance in (1e-3, 0.05, 0.7):
        safe, risky = (log_law(3 * torch.randn(1, 5000, generator=generator)) for _ in "ab")
        theta = float(serve(safe, risky, allowance).theta[0])
        more = tools.mixture(safe[0].numpy(), risky[0].numpy(), theta + 1e-6)
        assert tools.divergence(more, safe[0].numpy()) > allowance


def test_one_hot_and_disjoint_laws() -> None:
    inf = -math.inf
    first = log_law(torch.tensor([[0.0, inf, inf]]))
    second = log_law(torch.tensor([[inf, 0.0, inf]]))
    flat = log_law(torch.zeros(1, 3))
    assert float(check_promise(first, second, 5.0).theta[0]) == 0  # nothing in common
    assert float(check_promise(first, first, 0.5).theta[0]) == 1
    assert float(check_promise(flat, first, 2.0).theta[0]) == 1  # log 3 < 2
    inside = check_promise(flat, first, 1.0)  # the common support costs log 3 at any theta
    assert float(inside.theta[0]) == 0
    # The risky law forbids one token: every inner theta costs at least -log(2/3).
    two = log_law(torch.tensor([[0.0, 1.0, inf]]))
    assert float(check_promise(flat, two, 0.3).theta[0]) == 0
    assert 0 < float(check_promise(flat, two, 0.45).theta[0]) < 1
    # The safe law forbids a token the risky one serves: theta = 1 costs infinity.
    below = check_promise(two, flat, 50.0)
    assert 0.999 < float(below.theta[0]) < 1
    assert float(below.charge[0]) < 1


def test_no_allowance_is_the_safe_law_even_if_both_are_equal() -> None:
    for allowance in (0.0, 9e-11):
        assert float(serve(SAFE, SAFE, allowance).theta[0]) == 0
    assert float(serve(SAFE, SAFE, 1e-10).theta[0]) == 1
    assert largest_theta(SAFE[0].numpy(), SAFE[0].numpy(), 0.0) == 0


def test_plus_infinity_is_certainty() -> None:
    law = log_law(torch.tensor([[math.inf, 3.0, math.inf, -math.inf]]))
    assert torch.exp(law[0]).tolist() == pytest.approx([0.5, 0, 0.5, 0])


def test_baselines_are_the_end_points_with_their_true_charge() -> None:
    safe_only = serve(SAFE, RISKY, 0.0)
    assert torch.equal(safe_only.law, SAFE)
    assert float(safe_only.charge[0]) == 0
    risky_only = serve(SAFE, RISKY, math.inf)
    assert torch.equal(risky_only.law, RISKY)
    assert float(risky_only.charge[0]) == pytest.approx(2.04887, abs=1e-5)
    # A token that the safe law forbids and the risky one serves with underflowing mass.
    narrow = log_law(torch.tensor([[0.0, -math.inf]]))
    wide = log_law(torch.tensor([[0.0, -2000.0]]))
    unlimited = serve(narrow, wide, math.inf)
    assert torch.equal(unlimited.law, wide)
    assert float(unlimited.charge[0]) == math.inf


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from([64, 320, 2048]), st.integers(2, 24))
def test_a_row_is_served_alike_in_any_company(seed: int, size: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    safe, risky = (log_law(4 * torch.randn(rows, size, generator=generator)) for _ in "ab")
    allowance = torch.rand(rows, generator=generator, dtype=torch.float64) * 2
    together = Anchored().serve([[]] * rows, safe, risky, allowance)
    for row in (0, rows // 2, rows - 1):
        one = slice(row, row + 1)
        alone = Anchored().serve([[]], safe[one], risky[one], allowance[one])
        for whole, single in zip(together, alone, strict=True):
            assert torch.equal(whole[one], single)


def test_a_row_that_no_mixture_fits_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The risky model forbids half of what the safe one serves: log 2 nats are owed at once."""
    safe = log_law(torch.zeros(2, 8))
    risky = log_law(torch.tensor([[0.0, 1, 2, 3] + [-math.inf] * 4]).expand(2, 8))
    laws: list[Tensor] = []

    def counted(base: Tensor, ratio: Tensor, theta: Tensor) -> Tensor:
        laws.append(theta)
        return geodesic(base, ratio, theta)

    monkeypatch.setattr(anchored, "geodesic", counted)
    out = serve(safe, risky, [0.69, 0.7])
    assert len(laws) < 60  # the second row, which just fits
    assert out.theta[0] == 0 and torch.equal(out.law[0], safe[0])
    assert 0 < out.theta[1] < 1 and float(out.charge[1]) == pytest.approx(0.7, abs=1e-6)
    laws.clear()
    assert float(serve(safe[:1], risky[:1], 0.69).theta[0]) == 0
    assert len(laws) == 2  # a look in float32 and one in float64
