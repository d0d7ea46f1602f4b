"""The pretended device sees what a GPU would wait for, and refuses what a GPU refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.pretended import DEVICE, pretended, put

NUMBERS = torch.arange(12.0).reshape(3, 4)

WAITS: dict[str, Callable[[Tensor], Any]] = {
    "if": lambda x: bool(x.any()),
    "item": lambda x: x[0, 1].item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.argmax()),
    "all": lambda x: (x > 0).all().item(),
    "nonzero": lambda x: (x > 4).nonzero(),
    "where": lambda x: torch.where(x > 4),
    "mask": lambda x: x[x > 4],
    "assigned mask": lambda x: x.__setitem__(x > 4, put(torch.tensor(1.0))),
    "masked_select": lambda x: x.masked_select(x > 4),
    "unique": lambda x: torch.unique_consecutive(x),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "to cpu": lambda x: x.to("cpu"),
    "of a list": lambda x: torch.tensor([1.0], device=x.device),
    "by a list": lambda x: x[:, [1, 0]],
    "there": lambda x: torch.ones(3).to(x.device),
    "copied there": lambda x: x[0].copy_(torch.ones(4)),
}
PASSES: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: (2 * x + x.sum(dim=-1, keepdim=True)).logsumexp(-1),
    "three-way where": lambda x: torch.where(x > 4, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 4, 0.0),
    "rows by number": lambda x: x[torch.arange(2, device=x.device)],
    "made there": lambda x: torch.zeros(3, device=x.device),
    "sent": lambda x: torch.ones(3).to(x.device, non_blocking=True),
}


@pytest.mark.parametrize("what", WAITS)
def test_waiting_is_counted(what: str) -> None:
    with pretended() as device:
        WAITS[what](put(NUMBERS.clone()))
        assert device.waits.total() == 1


@pytest.mark.parametrize("what", PASSES)
def test_going_on_is_not(what: str) -> None:
    with pretended() as device:
        found = PASSES[what](put(NUMBERS.clone()))
        assert not device.waits
        assert found.device == DEVICE
        assert device.calls
        assert torch.equal(found.cpu(), PASSES[what](NUMBERS))


def test_numbers_of_two_places_do_not_mix() -> None:
    with pretended(), pytest.raises(RuntimeError, match="mixes tensors"):
        put(NUMBERS) + torch.ones(4)
