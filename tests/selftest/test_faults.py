from __future__ import annotations

import numpy as np
import pytest

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.protocols import Request
from nafaudit.selftest.faults import CATALOGUE
from nafaudit.selftest.worlds import toy_prompts, toy_world

FAULTS = [case.decoder for case in CATALOGUE]


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_a_fault_is_a_decoder_that_differs_from_the_sound_one(kind: type[AnchoredDecoder]) -> None:
    world = toy_world(1, size=20, contexts=37)
    requests = [
        Request(prompt, 0.3, 40 * i + j, 40)
        for i, prompt in enumerate(toy_prompts(world, 1, 4))
        for j in range(6)
    ]
    sound, faulty = AnchoredDecoder(world).decode(requests), kind(world).decode(requests)
    assert len(faulty) == len(requests)
    for output in faulty:
        assert all(0 <= token < world.size for token in output.tokens)
        assert 1 <= len(output.tokens) <= 40
    assert any(_differs(a, b) for a, b in zip(sound, faulty, strict=True))


def _differs(a: object, b: object) -> bool:
    for name in ("tokens", "allowance", "charge", "served", "debt", "spend"):
        mine, other = getattr(a, name), getattr(b, name)
        if (mine is None) != (other is None):
            return True
        if mine is not None and not np.array_equal(np.asarray(mine), np.asarray(other)):
            return True
    return False
