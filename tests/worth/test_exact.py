"""The cap against every output of a decoder in a small world: no statistics, no model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.protocols import Request
from nafaudit.selftest.worlds import toy_prompts, toy_world, truth
from nafaudit.stats.certificate import cap

LENGTH = 4


def outputs(seed: int, k: float) -> tuple[np.ndarray, np.ndarray]:
    """Chance and surprisal of everything that a decoder can write."""
    world = toy_world(seed, size=4, contexts=11, gap=2.0, stop=0.2, zeros=0.0)
    prompt = toy_prompts(world, seed, 2)[seed % 2]
    leaves = truth(AnchoredDecoder(world), Request(prompt, k, 0, LENGTH)).leaves
    return np.exp([leaf.served for leaf in leaves]), -np.array([leaf.safe for leaf in leaves])


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), k=st.sampled_from([0.02, 0.1, 0.4, 1.0]))
def test_a_kept_budget_never_leaves_more_than_the_cap(seed: int, k: float) -> None:
    chance, surprisal = outputs(seed, k)
    assert (chance <= cap(surprisal, k * LENGTH) * (1 + 1e-9)).all()
    # Nor for a whole set of outputs, whose surprisal is that of the set.
    half = np.argsort(chance / np.exp(-surprisal))[::-1][: len(chance) // 2]
    together = -math.log(math.fsum(np.exp(-surprisal[half])))
    assert math.fsum(chance[half]) <= cap(together, k * LENGTH) * (1 + 1e-9)


def test_a_decoder_without_a_budget_exceeds_the_cap_of_one() -> None:
    """The companion: the comparison above can fail."""
    exceeded = []
    for seed in range(6):
        chance, surprisal = outputs(seed, math.inf)
        exceeded.append(bool((chance > cap(surprisal, 0.02 * LENGTH)).any()))
    assert all(exceeded)


def test_the_cap_is_reached_by_a_decoder_that_aims_at_one_passage() -> None:
    # Mixing the safe law with "write the passage" spends exactly d(p || e^-S) on that event.
    surprisal, budget = 6.0, 2.0
    p, q = float(cap(surprisal, budget)), math.exp(-surprisal)
    spent = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert spent == pytest.approx(budget, abs=1e-9)
