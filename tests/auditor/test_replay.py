from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nafaudit.auditor.replay import (
    Feed,
    Replayer,
    ReplayTask,
    _noise_words,
    feed_together,
    perturbed_best,
    replay,
    replay_in,
)
from nafaudit.auditor.shadow import ShadowAnchored, shadow_of
from nafaudit.core.debt import DebtRule
from nafaudit.core.draws import gumbel, sound_stream, words
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Key
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.mechanisms.registry import mechanism
from nafaudit.protocols import Mechanism, Request, Rule, Served
from nafaudit.selftest.faults import tools
from tests.auditor.test_shadow import random_laws
from tests.exact import largest_theta
from tests.mechanisms.tables import TableWorld

INF = math.inf
ANCHORED = mechanism("anchored", DebtRule())


def task(tokens: Any, k: float, debt: float = 0.0, **more: Any) -> ReplayTask:
    return ReplayTask(Key("p", "m", k, 0), (0,), np.asarray(tokens, np.int32), debt=debt, **more)


@settings(max_examples=10)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.05, 0.4, 3.0, INF]),
    st.floats(0, 3),
    st.sampled_from([0.0, 0.1]),
)
def test_replay_is_one_step_after_the_other_by_the_twin(
    seed: int, k: float, debt: float, holes: float
) -> None:
    safe, risky = random_laws(seed, rows=12, holes=holes)
    tokens = np.random.default_rng(seed).integers(0, 9, 12)
    replayed = replay(ANCHORED, task(tokens, k, debt), safe, risky)
    steps, spent = replayed.trajectory.steps, 0.0
    for t, token in enumerate(tokens):
        anchor, other = safe[t].numpy(), risky[t].numpy()
        allowance = INF if k == INF else max(0.0, (t + 1) * k - spent - debt)
        law = tools.mixture(anchor, other, largest_theta(anchor, other, allowance))
        charge = tools.divergence(law, anchor)
        assert steps.allowance[t] == pytest.approx(allowance, abs=1e-7)
        assert steps.charge[t] == pytest.approx(charge, rel=1e-7, abs=1e-7)
        assert steps.safe[t] == np.float32(anchor[token])
        spent += charge
    if k < INF:
        assert replayed.granted.tolist() == pytest.approx([(t + 1) * k - debt for t in range(12)])


@dataclass(frozen=True)
class Half:
    """Spends half of what it may, so that no guess of a charge is right."""

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        from nafaudit.mechanisms.anchored import Anchored

        return Anchored().serve(prefixes, safe, risky, allowance / 2)


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_wrong_guesses_and_any_blocks_change_nothing(seed: int, blocks: list[int]) -> None:
    rule: Rule = Half()
    half = Mechanism("half", rule, Banking(), DebtRule())
    safe, risky = random_laws(seed, rows=sum(blocks))
    tokens = np.random.default_rng(seed).integers(0, 9, sum(blocks))
    whole = Replayer(half, task(tokens, 0.4))
    assert shadow_of(half) is rule
    assert sum(len(block.law) for block in whole.feed(safe, risky)) == sum(blocks)
    pieces = Replayer(half, task(tokens, 0.4))
    start = 0
    for size in blocks:
        pieces.feed(safe[start : start + size], risky[start : start + size])
        start += size
    one, other = whole.result().trajectory.steps, pieces.result().trajectory.steps
    spent = 0.0
    for t in range(len(tokens)):
        allowance = torch.tensor([max(0.0, (t + 1) * 0.4 - spent)], dtype=torch.float64)
        expected = rule.serve([()], safe[t : t + 1], risky[t : t + 1], allowance)
        for steps in (one, other):
            assert steps.allowance[t] == pytest.approx(float(allowance[0]), abs=1e-9)
            assert steps.charge[t] == pytest.approx(float(expected.charge[0]), abs=1e-9)
        spent += float(expected.charge[0])


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from(["anchored", "renyi:2", "pathwise", "half"]))
def test_trajectories_that_are_replayed_together_are_replayed_as_alone(
    seed: int, name: str
) -> None:
    """The slow twin feeds each by itself, one law after the other, without what it claims."""
    half = Mechanism("half", Half(), Banking(), DebtRule())
    promise = half if name == "half" else mechanism(name, DebtRule())
    draw = np.random.default_rng(seed)
    # What a law forbids has no realised charge, so only a charge of the whole law may meet it.
    holes = draw.choice([0.0, 0.2]) if name == "anchored" else 0.0
    safe, risky = random_laws(seed, rows=20, holes=holes)
    tokens = draw.integers(0, 9, 20)
    places = [(0, 20, 0.0), (0, 12, 0.05), (3, 9, 0.4), (3, 17, 3.0), (0, 20, INF), (19, 1, 0.4)]
    tasks = []
    for number, (first, steps, k) in enumerate(places):
        weights = np.where(draw.random(steps) < 0.3, np.nan, draw.uniform(-0.1, 1.1, steps))
        stream = sound_stream(0, "t", "p", number % 2) if number != 3 else None
        some = task(tokens[first : first + steps], k, 0.1, stream=stream)
        tasks.append(replace(some, theta=weights if number else None))
    together = [Replayer(promise, one) for one in tasks]
    for start, stop in ((0, 7), (7, 20)):
        feeds = []
        for replayer, (first, steps, _) in zip(together, places, strict=True):
            at, last = max(first, start), min(first + steps, stop)
            if at < last:
                feeds.append(Feed(replayer, at - start, last - at))
        served = feed_together(feeds, safe[start:stop], risky[start:stop])
        assert [len(one.law) for one in served] == [feed.steps for feed in feeds]
    for replayer, one, (first, steps, _) in zip(together, tasks, places, strict=True):
        found = replayer.result()
        alone = Replayer(promise, replace(one, theta=None))
        for row in range(first, first + steps):
            alone.feed(safe[row : row + 1], risky[row : row + 1])
        slow = alone.result()
        for column in ("allowance", "charge", "served", "safe", "risky", "theta"):
            here, there = (getattr(x.trajectory.steps, column) for x in (found, slow))
            np.testing.assert_allclose(here, there, rtol=1e-6, atol=1e-7, err_msg=column)
        assert (found.expected == slow.expected).all()
        np.testing.assert_allclose(found.shortfall, slow.shortfall, rtol=1e-6, atol=1e-7)
        rule = shadow_of(promise)
        if name == "anchored" and one.theta is not None:
            valid = np.clip(one.theta, 0, 1) == one.theta
            claimed = torch.from_numpy(np.where(valid, one.theta, 0.0))
            laws = safe[first : first + steps], risky[first : first + steps]
            assert isinstance(rule, ShadowAnchored)
            true = rule.charge_at(*laws, claimed, rule.cost(*laws)).numpy()
            np.testing.assert_allclose(found.implied[valid], true[valid], rtol=1e-9, atol=1e-11)
            assert np.isnan(found.implied[~valid & (np.abs(one.theta - 0.5) > 0.51)]).all()


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_the_implied_token_is_the_best_of_law_and_noise(seed: int) -> None:
    draw = np.random.default_rng(seed)
    laws, _ = random_laws(seed, rows=6, size=40, holes=0.3)
    stream = sound_stream(seed, "test", "p", 0)
    tokens = draw.integers(0, 40, 6).astype(np.int32)
    draws = [(stream, range(3, 3 + len(laws)))]
    best, gaps = perturbed_best(laws.numpy(), draws, tokens)
    for row in range(6):
        scores = laws[row].numpy() + gumbel(stream, 3 + row, 40)
        assert best[row] == scores.argmax()
        assert gaps[row] == pytest.approx(scores.max() - scores[tokens[row]], abs=1e-9)
    again, none = perturbed_best(laws.numpy(), draws, best.astype(np.int32))
    assert (again == best).all()
    assert (none == 0).all()


@pytest.mark.parametrize("k", [0.0, 0.1, 0.5, 4.0, INF])
def test_a_sound_black_box_is_replayed_to_its_own_claims(k: float) -> None:
    world = TableWorld(size=12, seed=3)
    requests = [Request((1, 2 + i, 7), k, 100 + i, 30) for i in range(4)]
    for request, output in zip(requests, AnchoredDecoder(world).decode(requests), strict=True):
        assert output.theta is not None
        assert output.charge is not None
        key = Key("p", "box", k, request.seed)
        tokens, theta = np.array(output.tokens, np.int32), np.array(output.theta)
        again = replay_in(world, ANCHORED, ReplayTask(key, request.prompt, tokens, theta=theta))
        replayed, steps = again.replayed, again.replayed.trajectory.steps
        assert replayed.trajectory.debt == pytest.approx(output.debt, abs=1e-12)
        assert replayed.trajectory.stopped == (output.tokens[-1] in world.stops)
        for name in ("allowance", "charge", "theta", "served", "safe", "risky"):
            claimed = np.asarray(getattr(output, name))
            assert np.allclose(getattr(steps, name), claimed, rtol=1e-5, atol=1e-6), name
        assert np.allclose(replayed.implied, output.charge, atol=1e-9)
        rows = np.arange(len(steps))
        assert np.allclose(again.law.numpy()[rows, output.tokens], steps.served, atol=1e-6)


def test_too_many_and_too_few_laws_are_refused() -> None:
    safe, risky = random_laws(0, rows=3)
    replayer = Replayer(ANCHORED, task([1, 2], 1.0))
    with pytest.raises(ValueError, match="3 laws for the 2 tokens"):
        replayer.feed(safe, risky)
    with pytest.raises(ValueError, match="0 of 2 steps"):
        replayer.result()


@pytest.mark.parametrize("lanes", [1, 3, 4, 5, 40, 2048])
def test_noise_is_that_of_the_layout(lanes: int) -> None:
    stream = sound_stream(1, "t", "p", 3)
    other = sound_stream(1, "t", "p", 4)
    draws = [(stream, range(7, 12)), (other, range(2)), (stream, range(9, 10)), (stream, range(3))]
    made, places = _noise_words(draws, lanes)
    assert len(made) == 5 + 2 + 3  # what two ask for is drawn once
    wanted = [words(one, step, lanes) for one, steps in draws for step in steps]
    assert (made[places] == np.stack(wanted)).all()
