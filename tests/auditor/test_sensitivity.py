"""How small an overspend would have been seen: what is simulated is what faulty decoders show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from nafaudit.auditor.alternatives import ALTERNATIVES, drawn_scores, step_scores, token_sets
from nafaudit.auditor.replay import ReplayTask, ReplayWithLaws, replay_in
from nafaudit.auditor.sampler import ALPHA, SamplerTests
from nafaudit.auditor.sensitivity import FACTORS, Sensitivity
from nafaudit.core.finding import CheckWord
from nafaudit.core.trajectory import Key
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.mechanisms.registry import mechanism
from nafaudit.protocols import Request, Served
from nafaudit.selftest.battery import pit_draws
from nafaudit.selftest.worlds import toy_prompts, toy_world

WORLD = toy_world(5, size=40, gap=1.4, stop=0.01)
PROMPTS = toy_prompts(WORLD, 5, 10)
PROMISE = mechanism("anchored", WORLD.debt)
K, LENGTH, SEEDS, AUDITS = 0.4, 24, 2, 40


class Generous(AnchoredDecoder):
    """Multiplies its budget, and claims nothing."""

    factor = 1.0

    def allowance(self, row: ReferenceRow) -> float:
        granted = self.factor * (row.step + 1) * row.request.k
        return max(0.0, granted - row.spent - row.debt)


def audits_of(factor: float, first: int, count: int) -> list[list[ReplayTask]]:
    """What a generous decoder writes in some audits; every number has other seeds."""
    decoder = Generous(WORLD)
    decoder.factor = factor
    asked = [
        (
            Key(f"p{p}", "box", K, n),
            Request(prompt, K, 1_000_000 * (first + audit) + 100 * p + n, LENGTH),
        )
        for audit in range(count)
        for p, prompt in enumerate(PROMPTS)
        for n in range(SEEDS)
    ]
    outputs = decoder.decode([request for _, request in asked])
    tasks = [
        ReplayTask(key, request.prompt, np.array(output.tokens, np.int32))
        for (key, request), output in zip(asked, outputs, strict=True)
    ]
    size = len(PROMPTS) * SEEDS
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


def served_in(again: ReplayWithLaws) -> Served:
    steps = again.replayed.trajectory.steps
    numbers = (torch.tensor(x, dtype=torch.float64) for x in (steps.charge, steps.theta))
    return Served(again.law, *numbers)


def caught(tasks: Sequence[ReplayTask]) -> bool:
    """Says whether the whole battery refutes one audit, as `verify` has it."""
    tests = SamplerTests(list(ALTERNATIVES), ALPHA)
    for task in tasks:
        again = replay_in(WORLD, PROMISE, task)
        served, tokens = served_in(again), task.tokens
        sets = token_sets(again.law, task.prompt, tokens, 0, WORLD.stops)
        own = pit_draws(task.key, len(tokens))
        laws = (again.law, again.safe, again.risky, served.theta)
        tests.add(task.key, tokens, step_scores(*laws, tokens, own, sets))
    return any(finding.verdict == CheckWord.FAILED for finding in tests.findings())


def simulated(tasks: Sequence[ReplayTask], blocks: int = 1) -> Sensitivity:
    found = Sensitivity(PROMISE, ALPHA)
    for task in tasks:
        again = replay_in(WORLD, PROMISE, task)
        owed = replace(task, debt=again.replayed.trajectory.debt)
        served = served_in(again)
        for part in np.array_split(np.arange(len(task.tokens)), blocks):
            if part.size:
                at = slice(int(part[0]), int(part[-1]) + 1)
                piece = Served(*(tensor[at] for tensor in served))
                found.feed(owed, at.start, piece, again.safe[at], again.risky[at])
    return found


@cache
def sound() -> tuple[ReplayTask, ...]:
    return tuple(audits_of(1.0, 0, 1)[0])


@cache
def smallest() -> float:
    return simulated(sound()).finding().value


# All seeds are fixed; the numbers are of other seeds.


def test_the_stated_overspend_is_caught_as_often_as_stated() -> None:
    """A decoder that is sound but for its budget: 40 audits, of which 95 % must refute it.

    At a rate of 95 % fewer than 34 of 40 are caught with probability 7e-4.
    """
    assert 1 < smallest() < math.inf
    assert sum(map(caught, audits_of(smallest(), 100, AUDITS))) >= 34


@pytest.mark.full
def test_a_tighter_statement_would_be_false() -> None:
    """Three quarters of the stated factor: 40 audits catch fewer than 34, as they should.

    At the rate that is simulated there, below 75 %, 34 or more are with probability 0.04.
    """
    tighter = FACTORS[FACTORS.index(smallest()) - 2]
    assert 0.7 < tighter / smallest() < 0.8
    assert simulated(sound()).powers()[tighter] < 0.75
    assert sum(map(caught, audits_of(tighter, 200, AUDITS))) < 34


def test_powers_grow_and_do_not_depend_on_blocks() -> None:
    whole = simulated(sound()[:6]).powers()
    assert simulated(sound()[:6], blocks=3).powers() == whole
    assert sorted(whole.values()) == list(whole.values())


def test_too_few_executions_see_no_overspend() -> None:
    found = simulated(sound()[:1]).finding()
    assert math.isinf(found.value)
    assert found.text.startswith("not even 10 times k would have been seen with 95% probability")


def test_many_tokens_are_scored_as_one_by_one() -> None:
    """`drawn_scores`, and its slow twin."""
    task = sound()[0]
    again = replay_in(WORLD, PROMISE, task)
    theta = served_in(again).theta
    laws = (again.law, again.safe, again.risky, theta)
    drawn = np.random.default_rng(1).integers(0, WORLD.size, (len(task.tokens), 5))
    many = drawn_scores(*laws, torch.from_numpy(drawn))
    for column in range(5):
        one = step_scores(*laws, drawn[:, column], np.full(len(drawn), 0.5))
        for name in ("logp", "ratios", "tilts", "surprisal", "gain"):
            assert np.allclose(getattr(many, name)[:, column], getattr(one, name), rtol=1e-12)
