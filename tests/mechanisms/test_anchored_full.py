"""The second tier: the solver's promise over many thousand adversarial pairs of laws."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from nafaudit.mechanisms.laws import log_law
from tests.mechanisms.test_anchored import (
    ALLOWANCE,
    check_against_the_twin,
    check_any_two_laws,
    check_promise,
    one_sided,
    two_laws,
)

PAIRS = 6000


def _logit(draw: random.Random) -> float:
    kind = draw.random()
    if kind < 0.3:
        return draw.gauss(0, 3)
    if kind < 0.5:
        return draw.uniform(-40, 40)
    if kind < 0.65:
        return draw.uniform(-800, 800)
    if kind < 0.8:
        return draw.uniform(-1e4, 1e4)
    return draw.choice([0.0, -745.0, -708.0, -1e4, -math.inf])


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_no_pair_of_laws_breaks_the_promise(seed: int) -> None:
    draw = random.Random(seed)
    binding = 0
    for _ in range(PAIRS):
        size = draw.choice([2, 3, 5, 12, 50, 300])
        safe = [_logit(draw) for _ in range(size)]
        risky = [_logit(draw) for _ in range(size)]
        if draw.random() < 0.4:  # close laws: every divergence is a small difference
            spread = 10 ** draw.uniform(-8, 2)
            risky = [x + draw.gauss(0, spread) if math.isfinite(x) else x for x in safe]
        safe[0] = safe[0] if max(safe) > -math.inf else 0.0
        risky[0] = risky[0] if max(risky) > -math.inf else 0.0
        allowance = 10 ** draw.uniform(-11, 4)
        laws = [log_law(torch.tensor([x], dtype=torch.float64)) for x in (safe, risky)]
        out = check_promise(laws[0], laws[1], allowance)
        if allowance >= 1e-3 and float(out.theta[0]) < 1 and not one_sided(*laws):
            binding += 1
            assert allowance - float(out.charge[0]) <= 1e-4 * allowance
    assert binding > PAIRS / 20


@pytest.mark.full
@settings(max_examples=3000)
@given(two_laws(), ALLOWANCE)
def test_any_two_laws_at_length(laws: tuple[Tensor, Tensor], allowance: float) -> None:
    check_any_two_laws(*laws, allowance)


@pytest.mark.full
@settings(max_examples=1000)
@given(two_laws(), ALLOWANCE)
def test_agrees_with_the_slow_twin_at_length(laws: tuple[Tensor, Tensor], allowance: float) -> None:
    check_against_the_twin(*laws, allowance)
