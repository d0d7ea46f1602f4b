"""Speculation in a world so small that everything that can happen is enumerated.

With two tokens, the noise of a step is one number: G1 - G0 is logistic, so u = 1/(1 + exp(G0 - G1))
is uniform on (0, 1), and a law writes token 1 if and only if u exceeds its chance of token 0. The
chances under every safe and every served law that a step can meet cut (0, 1) into cells; within one
cell nothing that a decoder does can change. One noise per product of cells is therefore all noise,
and the lengths of the cells are exact probabilities: no draw, no tolerance but rounding.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import Stream, noise_of
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine import write as engine
from nafaudit.engine.decode import Decoder
from nafaudit.engine.noise import NoiseBounds, bounded
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.engine.world import PairWorld
from nafaudit.engine.write import DecodingRow, StepRecord
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, Vocabulary
from nafaudit.protocols import Request, debt_of
from tests.conftest import needs_free_rows
from tests.exact import truth_of_mechanism

RULE = mechanism("anchored", DebtRule())
PROMPT, WIDTH, K = (0, 1, 1), 8, 0.1
# The truth reads a prefix at once where decoding steps through it: float32 sums in another order.
NOISE = 1e-7
Tokens = tuple[int, ...]
Decoded = dict[Key, Trajectory]


def _model(seed: int) -> Any:
    config = LlamaConfig(
        vocab_size=2,
        hidden_size=8,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
        initializer_range=0.8,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


class Arena:
    """The partition of all noise, and one noise of each part; part number = key of a stream.

    Attributes:
        truth: Every output with its probability, by another road: no rows, no noise, no guesses.
        parts: A cell per step.
        plain: What plain decoding writes in each part.
    """

    def __init__(self, length: int) -> None:
        vocabulary = Vocabulary(("a", "b"), frozenset(), frozenset())
        self.pair = Pair(_model(7), _model(8), None, vocabulary, 16, {})
        self.length, self.decoding = length, Decoding(length)
        self.world = PairWorld(self.pair, self.decoding, RULE.debt, width=WIDTH)
        self.truth = truth_of_mechanism(self.world, RULE, Request(PROMPT, K, 0, length))
        self.parts = list(itertools.product(*map(self._cells, range(length))))
        self.plain, _ = self.decode()

    def _cells(self, step: int) -> list[tuple[float, float]]:
        cuts = {0.0, 1.0}
        for prefix in itertools.product((0, 1), repeat=step):
            safe, _ = self.world.laws([(*PROMPT, *prefix)])
            cuts |= {math.exp(safe[0, 0]), self._chance((*prefix, 0)) / self._chance(prefix)}
        # Cuts that are one number but for rounding leave no cell between them.
        return [(a, b) for a, b in itertools.pairwise(sorted(cuts)) if b - a > 1e-12]

    def _chance(self, prefix: Tokens) -> float:
        return self.truth.probability(lambda leaf: leaf.tokens[: len(prefix)] == prefix)

    def noise_bounds(self, stream: Stream, step: int, lanes: int) -> NoiseBounds:
        """Stands in for `noise.noise_bounds`: the middle of the part's cell, as words."""
        assert lanes == 2
        # Guesses may be asked for past the last step; nothing written depends on them.
        low, high = self.parts[stream.key][min(step, self.length - 1)]
        u = (low + high) / 2
        # With u_0 = 1/2, G_1 - G_0 is the logit of u if u_1 is this.
        uniforms = np.array([0.5, math.exp(-math.log(2) * (1 - u) / u)])
        raw = (uniforms * 2.0**52).astype(np.uint64) << np.uint64(12)
        noise = noise_of(raw)
        assert low < 1 / (1 + math.exp(noise[0] - noise[1])) < high
        return bounded(raw)

    def decode(self, speculate: int = 0) -> tuple[Decoded, Decoder]:
        """Decodes once in every part."""
        rows = tuple(RowRequest(K, part, Stream(part)) for part in range(len(self.parts)))
        if speculate:
            needs_free_rows(self.pair.safe, self.pair.risky, width=WIDTH)
        how: Any = {"width": WIDTH, "batch": 64, "speculate": speculate}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "noise_bounds", self.noise_bounds)
            decoder = Decoder(self.pair, RULE, self.decoding, **how)
            found = decoder.decode([PromptRequest("p", PROMPT, rows)])
            return {trajectory.key: trajectory for trajectory in found}, decoder

    def law(self, decoded: Decoded) -> dict[Tokens, float]:
        """The exact law of what was written."""
        chances: dict[Tokens, list[float]] = defaultdict(list)
        for key, trajectory in decoded.items():
            part = math.prod(high - low for low, high in self.parts[key.trajectory])
            chances[tuple(trajectory.steps.token.tolist())].append(part)
        return {tokens: math.fsum(parts) for tokens, parts in chances.items()}

    def off(self, decoded: Decoded) -> float:
        """By how much the chance of any output is wrong."""
        written = self.law(decoded)
        assert math.fsum(written.values()) == pytest.approx(1, abs=1e-10)
        return max(
            abs(written.get(leaf.tokens, 0.0) - math.exp(leaf.served)) for leaf in self.truth.leaves
        )


@pytest.fixture(scope="module", params=[3, pytest.param(4, marks=pytest.mark.full)])
def arena(request: pytest.FixtureRequest) -> Arena:
    """90 parts for three tokens, 1350 for four."""
    return Arena(request.param)


def test_the_world_is_worth_enumerating(arena: Arena) -> None:
    assert len(arena.truth.leaves) == 2**arena.length == len(arena.law(arena.plain))
    budget = max(0.0, arena.length * K - debt_of(arena.world, PROMPT))
    # The budget binds: all but what the solver may leave is spent.
    assert budget - 1e-5 < arena.truth.divergence <= budget
    assert max(abs(leaf.ratio) for leaf in arena.truth.leaves) > 0.5


def test_plain_decoding_writes_the_exact_law(arena: Arena) -> None:
    assert arena.off(arena.plain) < NOISE


@pytest.mark.parametrize("speculate", [1, 2, 4])
def test_speculation_writes_the_exact_law_and_every_record(arena: Arena, speculate: int) -> None:
    decoded, decoder = arena.decode(speculate)
    assert 0 < decoder.guessed.stood < decoder.guessed.asked
    assert arena.off(decoded) < NOISE
    assert decoded.keys() == arena.plain.keys()
    assert all(decoded[key].same_as(arena.plain[key]) for key in decoded)


_write = DecodingRow.write


def _stands_always(self: DecodingRow, record: StepRecord) -> None:
    guess = self.ahead[0].guess
    _write(self, record if guess is None else record._replace(token=guess))


def _stands_if_likely(self: DecodingRow, record: StepRecord) -> None:
    guess = self.ahead[0].guess
    _write(self, record if guess is None or record.served < -1 else record._replace(token=guess))


def _is_read_on_after_it_fell(self: DecodingRow, record: StepRecord) -> None:
    kept = self.ahead[1:]
    _write(self, record)
    self.ahead = kept


@pytest.mark.parametrize("wrong", [_stands_always, _stands_if_likely, _is_read_on_after_it_fell])
def test_a_wrong_rule_of_acceptance_is_seen(
    arena: Arena, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecodingRow, "write", wrong)
    decoded, _ = arena.decode(2)
    assert arena.off(decoded) > 1e-3
    assert not all(decoded[key].same_as(arena.plain[key]) for key in decoded)
