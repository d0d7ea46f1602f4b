from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.protocols import Output, Request
from nafaudit.selftest.faults import CATALOGUE
from nafaudit.selftest.worlds import toy_prompts, toy_world

FAULTS = [case.decoder for case in CATALOGUE]


WORLD = toy_world(1, size=20, contexts=37)
REQUESTS = [
    Request(prompt, 0.3, 40 * i + j, 40)
    for i, prompt in enumerate(toy_prompts(WORLD, 1, 12))
    for j in range(3)
]


@pytest.fixture(scope="module")
def sound() -> Sequence[Output]:
    return AnchoredDecoder(WORLD).decode(REQUESTS)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_a_fault_is_a_decoder_that_differs_from_the_sound_one(
    kind: type[AnchoredDecoder], sound: Sequence[Output]
) -> None:
    faulty = kind(WORLD).decode(REQUESTS)
    assert len(faulty) == len(REQUESTS)
    for output in faulty:
        assert all(0 <= token < WORLD.size for token in output.tokens)
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
