from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from nafaudit.auditor.alternatives import (
    ALTERNATIVES,
    likeliest,
    other_promise,
    step_scores,
    token_sets,
)
from nafaudit.auditor.sampler import SHARES, SamplerTests, StepScores, alarms, p_values
from nafaudit.core.finding import CheckWord, Finding
from nafaudit.core.trajectory import Key
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.protocols import Served
from tests.auditor.test_shadow import random_laws

Sampler = Callable[[Served, Tensor, Tensor], Tensor]
FIELDS = ("logp", "ratios", "tilts", "surprisal", "gain", "pit")


class World:
    """Random contexts, some of them nearly certain, as in text known by heart."""

    def __init__(self, seed: int, size: int = 60, contexts: int = 200, sharp: float = 0.3) -> None:
        self.draw = np.random.default_rng(seed)
        logits = self.draw.normal(0, 1.5, (contexts, size))
        logits[: int(sharp * contexts), 0] += 12.0
        other = logits + self.draw.normal(0, 1.2, logits.shape)
        self.safe, self.risky = (torch.from_numpy(x).log_softmax(-1) for x in (logits, other))

    def audits(self, audits: int, n: int, steps: int, sampler: Sampler | None = None) -> StepScores:
        """Scores [audits, n, steps] of tokens that a sampler drew instead of the served law."""
        rows = audits * n * steps
        at = self.draw.integers(0, len(self.safe), rows)
        safe, risky = self.safe[at], self.risky[at]
        # Funds in steps, as a small pool: solving dominates this test otherwise.
        allowance = torch.from_numpy(self.draw.choice([0.0, 0.05, 0.2, 0.5, 9.0], rows))
        served = Anchored().serve([()] * rows, safe, risky, allowance)
        law = served.law if sampler is None else sampler(served, safe, risky)
        noise = torch.from_numpy(self.draw.gumbel(size=tuple(law.shape)))
        token = (law + noise).argmax(dim=-1).numpy()
        own = self.draw.random(rows)
        flat = step_scores(served.law, safe, risky, served.theta, token, own)
        shape = (audits, n, steps)
        parts = {f: getattr(flat, f) for f in FIELDS}
        return StepScores(**{f: x.reshape(*shape, *x.shape[1:]) for f, x in parts.items()})


def tempered(temperature: float) -> Sampler:
    return lambda served, safe, risky: (served.law / temperature).log_softmax(-1)


def top_p(share: float) -> Sampler:
    def law(served: Served, safe: Tensor, risky: Tensor) -> Tensor:
        mass, index = served.law.exp().sort(dim=-1, descending=True)
        keep = torch.zeros_like(served.law, dtype=torch.bool)
        keep.scatter_(-1, index, mass.cumsum(-1) - mass < share)
        return torch.where(keep, served.law, -math.inf).log_softmax(-1)

    return law


def partly_greedy(served: Served, safe: Tensor, risky: Tensor) -> Tensor:
    law = (0.7 * served.law.exp()).log()
    best = served.law.argmax(dim=-1, keepdim=True)
    return law.scatter(-1, best, (0.7 * served.law.gather(-1, best).exp() + 0.3).log())


def arithmetic(served: Served, safe: Tensor, risky: Tensor) -> Tensor:
    weight = served.theta.unsqueeze(-1)
    return ((1 - weight) * safe.exp() + weight * risky.exp()).log()


def fired(scores: StepScores, alpha: float) -> np.ndarray:
    """Which audits raised an alarm."""
    found = alarms(p_values(scores.sums(), scores.pit), alpha)
    return np.asarray(np.any(list(found.values()), axis=0))


def test_every_alternative_is_a_fair_bet() -> None:
    """Exactly: the mean of q(y) / p(y) over all tokens is at most 1."""
    safe, risky = random_laws(3, rows=6, size=30, holes=0.1)
    allowance = torch.tensor([0.0, 0.01, 0.1, 0.5, 2.0, 50.0], dtype=torch.float64)
    served = Anchored().serve([()] * 6, safe, risky, allowance)
    means, moments, pits = np.zeros((6, len(ALTERNATIVES))), np.zeros((6, 2)), np.zeros(6)
    tilts = np.zeros((6, 4))
    for token in range(30):
        every = np.full(6, token)
        # Six outputs that differ in their last token: what is known before it is the same.
        texts = [np.array([3, 7, 3, 9, 7, token]) for _ in range(6)]
        each = [token_sets(served.law[i : i + 1], (7, 9, 3), texts[i], 5, {1, 4}) for i in range(6)]
        sets = {name: torch.cat([one[name] for one in each]) for name in each[0]}
        scores = step_scores(served.law, safe, risky, served.theta, every, np.full(6, 0.5), sets)
        mass = np.exp(served.law[:, token].numpy())
        means += np.where(mass[:, None] > 0, mass[:, None] * np.exp(scores.ratios), 0)
        tilts += np.where(mass[:, None] > 0, mass[:, None] * np.exp(scores.tilts), 0)
        moments += mass[:, None] * np.stack([scores.surprisal[:, 0], scores.gain[:, 0]], -1)
        pits += mass * scores.pit
    assert (means <= 1 + 1e-9).all()
    assert np.allclose(tilts, 1, atol=1e-9)
    assert np.allclose(moments, 0, atol=1e-9)
    assert np.allclose(pits, 0.5, atol=1e-9)
    # The bets differ from staying put, or they would prove nothing.
    assert (np.abs(np.log(means)).sum(axis=0) < 1).all()


def test_a_forbidden_token_is_overwhelming_evidence() -> None:
    law = torch.tensor([[0.0, -math.inf]], dtype=torch.float64)
    other = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    theta = torch.zeros(1, dtype=torch.float64)
    scores = step_scores(law, law, other, theta, np.array([1]), np.array([0.5]))
    assert scores.ratios.max() > 100


def test_a_sound_sampler_raises_few_alarms() -> None:
    # 240 audits at level 0.1: more than 46 alarms have probability 2e-6 at the nominal rate. The
    # seed is fixed, so the test itself is not random.
    scores = World(1).audits(240, 5, 24)
    assert fired(scores, 0.1).sum() <= 46


@pytest.mark.full
@pytest.mark.parametrize("sharp", [0.0, 0.9])
def test_the_level_holds_far_out(sharp: float) -> None:
    # 1500 audits at level 0.01 give 15 alarms at most in the mean; more than 36 have
    # probability 1e-6. The seed is fixed.
    world = World(2, size=30, sharp=sharp)
    alarmed = sum(int(fired(world.audits(250, 8, 25), 0.01).sum()) for _ in range(6))
    assert alarmed <= 36


@pytest.mark.parametrize(
    ("sampler", "test", "n"),
    [
        (lambda served, safe, risky: safe, "likelihood", 20),
        (lambda served, safe, risky: risky, "likelihood", 20),
        (tempered(0.8), "surprisal", 20),
        (tempered(1.3), "surprisal", 20),
        (top_p(0.9), "likelihood", 20),
        (partly_greedy, "likelihood", 20),
        (arithmetic, "likelihood", 120),
    ],
)
def test_a_faulty_sampler_is_caught(sampler: Sampler, test: str, n: int) -> None:
    # In 50 audits with other draws each fault but the last fired every time, with p below 1e-13;
    # arithmetic mixing fired in 48 of 50 at half this size. The seed is fixed.
    scores = World(3, sharp=0.1).audits(4, n, 60, sampler)
    found = alarms(p_values(scores.sums(), scores.pit), 1e-3)
    assert found[test].all()


def test_findings_name_the_test_the_level_and_a_step() -> None:
    def findings(sampler: Sampler | None, copies: int = 0) -> dict[str, Finding]:
        world = World(4)
        scores = world.audits(1, 20, 60, sampler)
        tests = SamplerTests(list(ALTERNATIVES))
        for row in range(20):
            own = StepScores(**{f: getattr(scores, f)[0, row] for f in FIELDS})
            tokens = np.full(60, min(row, 19 - copies), np.int32)
            tests.add(Key("p", "m", 1.0, row), tokens, own)
        return {f.check.removeprefix("sampler: "): f for f in tests.findings()}

    sound = findings(None)
    assert set(sound) == set(SHARES)
    assert {f.verdict for f in sound.values()} == {CheckWord.FINE}
    assert sum(f.numbers["level"] for f in sound.values()) == pytest.approx(1e-3)
    faulty = findings(tempered(0.7))["likelihood"]
    assert faulty.verdict == CheckWord.FAILED
    assert faulty.witness is not None
    assert "temperature 0.7" in faulty.text
    copied = findings(None, copies=2)["repeats"]
    assert copied.verdict == CheckWord.FAILED
    assert copied.witness is not None
    assert copied.witness.key.trajectory == 18
    empty = SamplerTests(list(ALTERNATIVES)).findings()
    assert {f.verdict for f in empty} == {CheckWord.UNKNOWN}


def test_sets_of_tokens_are_those_before_the_draw() -> None:
    law = torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 3, dtype=torch.float64).log()
    found = token_sets(law, (3, 1), np.array([3, 1, 0]), 0, {0})
    # Before the three draws the text is 31, 313, 3131.
    assert np.allclose(found["seen"], [[0.6, 1], [0.6, 1], [0.6, 0]])
    assert np.allclose(found["pair"], [[0.0, 0], [0.2, 1], [0.4, 0]])
    assert np.allclose(found["stop"], [[0.1, 0], [0.1, 0], [0.1, 1]])
    later = token_sets(law[1:], (3, 1), np.array([3, 1, 0]), 1, {0})
    assert all(torch.equal(later[name], found[name][1:]) for name in found)


def test_neither_of_two_promises_that_fit_alike_is_preferred() -> None:
    # Less than 20 times likelier: both are said, and no option is advised.
    assert likeliest({1.0: -10.0, 1.5: -9.0, 2.0: -12.0}) == (1.0, 1.5)
    said = other_promise((1.0, 1.5), 3.0)
    assert "without debt, and at 1.5 times k" in said and "--no-prefix-debt" not in said
    assert likeliest({1.0: -10.0, 1.5: -6.0}) == (1.5,)
    assert likeliest({1.0: -6.0, 1.5: -10.0}) == (1.0,)
    assert other_promise((1.0,), 3.0).endswith("--no-prefix-debt")
    assert likeliest({2.0: -5.0, 3.0: -5.5}) == (2.0,)
    assert other_promise(likeliest({}), 3.0) == ""
