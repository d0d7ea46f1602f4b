from __future__ import annotations

import math

import pytest
import torch

from nafaudit.core.design import Decoding
from nafaudit.core.errors import LawError
from nafaudit.mechanisms.laws import kl, log_law, warp


def test_mass_is_one_where_float32_is_not() -> None:
    logits = torch.randn(1, 128_256, generator=torch.Generator().manual_seed(0))
    assert abs(float(torch.exp(log_law(logits)).sum()) - 1) < 1e-12


@pytest.mark.parametrize("bad", [[0.0, math.nan], [-math.inf, -math.inf]])
def test_no_law_from_garbage(bad: list[float]) -> None:
    with pytest.raises(LawError):
        log_law(torch.tensor([[1.0, 2.0], bad]))


def test_kl_of_forbidden_tokens() -> None:
    p = log_law(torch.tensor([[0.0, -math.inf]]))
    q = log_law(torch.tensor([[0.0, 0.0]]))
    assert float(kl(p, q)[0]) == pytest.approx(math.log(2))
    assert float(kl(q, p)[0]) == math.inf
    assert float(kl(p, p)[0]) == 0
    tiny = log_law(torch.tensor([[0.0, -2000.0]]))  # its mass underflows, and is not zero
    assert float(kl(tiny, p)[0]) == math.inf


def test_warp_is_penalty_then_temperature() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    seen = torch.tensor([[True, True, False]])
    warped = warp(logits, seen, Decoding(temperature=0.5, repetition_penalty=1.25))
    assert warped[0].tolist() == pytest.approx([2 / 1.25 / 0.5, -2 * 1.25 / 0.5, 1 / 0.5])
    assert warp(logits, None, Decoding()) is logits
