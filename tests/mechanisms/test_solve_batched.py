"""The solver for all rows at once: the promise, the slow twin, and how often the host waits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nafaudit.mechanisms import anchored
from nafaudit.mechanisms.anchored import LEAST_ALLOWANCE, Anchored
from nafaudit.mechanisms.laws import kl, log_law
from nafaudit.mechanisms.solve import SLACK, solve_batched
from nafaudit.protocols import Served
from nafaudit.selftest.faults import tools
from tests.exact import largest_theta
from tests.mechanisms.test_anchored import LOGIT, one_sided
from tests.pretended import pretended, put

BATCHED = Anchored(batched=True)


def served(safe: Tensor, risky: Tensor, allowance: Tensor) -> Served:
    return BATCHED.serve([[]] * len(safe), safe, risky, allowance)


def settled(safe: Tensor, risky: Tensor, allowance: Tensor) -> Tensor:
    """True for rows that bind, and that the solver settles as it should."""
    cost = kl(risky, safe)
    binding = (allowance >= LEAST_ALLOWANCE) & (cost > allowance)
    out, done = solve_batched(safe, risky, allowance, cost)
    done &= binding
    unspent = (allowance - kl(out.law, safe))[done]
    assert (unspent >= 0).all()
    assert (unspent <= SLACK * allowance[done].clamp(max=1.0)).all()
    assert ((out.theta > 0) & (out.theta < 1))[done].all()
    assert torch.equal(out.law[binding & ~done], safe[binding & ~done])
    return done


def check_promise(safe: Tensor, risky: Tensor, allowance: Tensor, out: Served) -> None:
    """What must hold of any laws, with no tolerance on the budget."""
    assert (out.charge <= allowance.clamp(min=0.0)).all()
    assert torch.equal(out.charge, kl(out.law, safe))
    assert ((torch.exp(out.law).sum(dim=-1) - 1).abs() < 1e-9).all()
    for theta, law, ends in zip(out.theta, out.law, zip(safe, risky, strict=True), strict=True):
        assert 0 <= theta <= 1
        if theta in (0, 1):
            assert torch.equal(law, ends[int(theta)])


def check_twin(safe: Tensor, risky: Tensor, allowance: Tensor, out: Served) -> None:
    for row, (limit, charge) in enumerate(
        zip(allowance.tolist(), out.charge.tolist(), strict=True)
    ):
        if limit >= 1e-3:
            laws = safe[row].numpy(), risky[row].numpy()
            slow = tools.mixture(*laws, largest_theta(*laws, limit))
            expected = tools.divergence(slow, laws[0])
            assert charge == pytest.approx(expected, rel=1e-6, abs=1e-9)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Adversarial laws of some rows, with allowances over twelve orders of magnitude."""
    rows, size = draw(st.integers(1, 5)), draw(st.integers(2, 10))
    laws = []
    for _ in range(2):
        logits = draw(
            st.lists(st.lists(LOGIT, min_size=size, max_size=size), min_size=rows, max_size=rows)
        )
        for row in logits:
            row[0] = 0.0 if max(row) == -math.inf else row[0]
        laws.append(log_law(torch.tensor(logits, dtype=torch.float64)))
    powers = draw(st.lists(st.floats(-9, 3), min_size=rows, max_size=rows))
    allowance = torch.tensor([10**power for power in powers], dtype=torch.float64)
    return laws[0], laws[1], allowance


def check_any_laws(safe: Tensor, risky: Tensor, allowance: Tensor) -> None:
    out = served(safe, risky, allowance)
    check_promise(safe, risky, allowance, out)
    for row in range(len(safe)):
        one = slice(row, row + 1)
        inside = float(out.theta[row]) < 1 and not one_sided(safe[one], risky[one])
        if inside and allowance[row] >= 1e-3:
            assert allowance[row] - out.charge[row] <= 1e-4 * allowance[row]
    check_twin(safe, risky, allowance, out)


@settings(max_examples=60)
@given(batches())
def test_any_laws(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    check_any_laws(*batch)


@pytest.mark.full
@settings(max_examples=2000)
@given(batches())
def test_any_laws_at_length(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    check_any_laws(*batch)


@settings(max_examples=80)
@given(batches())
def test_what_is_called_settled_is_in_its_window(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    settled(*batch)


@pytest.mark.parametrize("size", [300, 4096])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_ordinary_laws_need_no_search(
    size: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchored, "_newton_search", None)
    generator = torch.Generator().manual_seed(size)
    safe, risky = (log_law(scale * torch.randn(12, size, generator=generator)) for _ in "ab")
    for budget in (1e-5, 1e-3, 0.05, 0.5, 2.0):
        allowance = torch.full((12,), budget, dtype=torch.float64)
        out = served(safe, risky, allowance)
        check_promise(safe, risky, allowance, out)
        check_twin(safe[:2], risky[:2], allowance[:2], Served(*(x[:2] for x in out)))
        assert (out.theta > 0).all()


def test_rows_of_all_kinds_share_a_batch() -> None:
    generator = torch.Generator().manual_seed(3)
    safe, risky = (log_law(3 * torch.randn(6, 500, generator=generator)) for _ in "ab")
    risky[5, 7] = safe[5, 7] = -math.inf  # both forbid it
    safe[4, 3] = -math.inf  # the risky law costs infinity
    safe, risky = log_law(safe), log_law(risky)
    allowance = torch.tensor([0.0, math.inf, 0.3, 1e-9, 0.3, 0.3], dtype=torch.float64)
    out = served(safe, risky, allowance)
    check_promise(safe, risky, allowance, out)
    check_twin(safe, risky, allowance, out)
    assert out.theta[:2].tolist() == [0, 1]
    assert ((out.theta > 0) & (out.theta < 1))[2:].all()
    # Next to nothing is left to the search: in float32 it is not seen.
    assert settled(safe, risky, allowance).tolist() == [False, False, True, False, True, True]


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from([64, 1000]), st.integers(2, 16))
def test_company_changes_no_more_than_rounding(seed: int, size: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    safe, risky = (log_law(4 * torch.randn(rows, size, generator=generator)) for _ in "ab")
    allowance = torch.rand(rows, generator=generator, dtype=torch.float64) * 2
    together = served(safe, risky, allowance)
    for row in (0, rows - 1):
        one = slice(row, row + 1)
        alone = served(safe[one], risky[one], allowance[one])
        for whole, single in zip(together, alone, strict=True):
            assert torch.allclose(whole[one], single, rtol=0, atol=1e-9)


def waits(safe: Tensor, risky: Tensor, allowance: Tensor, rule: Anchored) -> int:
    """How often a step of the rule waits for the device; its numbers are those of the CPU."""
    with pretended() as device:
        there = [put(x) for x in (safe, risky, allowance)]
        out = rule.serve([[]] * len(safe), *there)
        count = device.waits.total()
        found = Served(*(x.cpu() for x in out))
    check_promise(safe, risky, allowance, found)
    for one, other in zip(found, served(safe, risky, allowance), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)
    return count


class _Curious(Anchored):
    """As the rule, with one more look."""

    def serve(self, prefixes: object, safe: Tensor, risky: Tensor, allowance: Tensor) -> Served:
        assert not torch.isnan(safe).any()
        return super().serve([], safe, risky, allowance)


def test_the_host_waits_twice_if_all_rows_settle() -> None:
    generator = torch.Generator().manual_seed(1)
    safe, risky = (log_law(3 * torch.randn(8, 500, generator=generator)) for _ in "ab")
    allowance = torch.tensor([0.5] * 6 + [0.0, 50.0], dtype=torch.float64)
    assert waits(safe, risky, allowance, Anchored()) == 2
    assert waits(safe, risky, allowance, _Curious()) == 3
    assert waits(safe, risky, 100 * allowance, Anchored()) == 1  # nothing binds
    # A row is left to the search, which is asked in every eighth iteration whether it has ended.
    allowance[0] = 1e-9
    assert 3 <= waits(safe, risky, allowance, Anchored()) <= 8
