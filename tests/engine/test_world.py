from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import Stream, gumbel
from nafaudit.core.errors import InputError
from nafaudit.engine.decode import Decoder
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.engine.world import PairWorld
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import Law, Request, debt_of

WIDTH = 64


@pytest.fixture(scope="module")
def pair(tiny_pair_paths: Callable[[str], tuple[Path, Path]]) -> Pair:
    return load_pair(*tiny_pair_paths("llama"))


def _world(pair: Pair, batch: int = 8, decoding: Decoding | None = None) -> PairWorld:
    return PairWorld(pair, decoding or Decoding(20), DebtRule(), width=WIDTH, batch=batch)


def _plain(pair: Pair, prefix: list[int]) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    with torch.inference_mode():
        logits = [
            model(torch.tensor([prefix])).logits[0, -1].double()
            for model in (pair.safe, pair.risky)
        ]
    return [torch.log_softmax(x[: len(pair.vocabulary)], -1).numpy() for x in logits]


def test_any_history_of_calls_gives_the_laws_of_the_plain_model(pair: Pair) -> None:
    # Rows leave, enter, branch, change places, repeat; more rows than were expected.
    world, rng = _world(pair, batch=4), np.random.default_rng(0)
    rows = [list(rng.integers(0, 50, n)) for n in (3, 3, 7)]
    for step in range(12):
        if step == 4:
            rows += [list(rows[0]), list(rng.integers(0, 50, 5)), list(rows[1]), [1]]
        rng.shuffle(rows)
        safe, risky = world.laws(rows)
        for i, prefix in enumerate(rows):
            for law, plain in zip((safe[i], risky[i]), _plain(pair, prefix), strict=True):
                np.testing.assert_allclose(law, plain, atol=1e-4)
        if step == 8:
            rows = rows[:3]
        if step % 3:
            rows = [[*row, int(rng.integers(0, 50))] for row in rows]


def test_prefix_laws_are_the_laws_of_every_prefix(pair: Pair) -> None:
    world = _world(pair)
    tokens = [5, 9, 2, 30, 7]
    for together, laws in zip(
        world.prefix_laws(tokens),
        world.laws([tokens[: i + 1] for i in range(5)]),
        strict=True,
    ):
        np.testing.assert_allclose(together, laws, atol=1e-4)
    np.testing.assert_array_equal(world.along(tokens), world.prefix_laws(tokens))


class WithOurNoise(AnchoredDecoder):
    """The reference, drawing with the engine's noise."""

    def draw(self, row: ReferenceRow, law: Law) -> int:
        return int(np.argmax(law + gumbel(Stream(row.request.seed), row.step, len(law))))


@pytest.mark.parametrize("decoding", [Decoding(20), Decoding(20, 0.7, 1.2)])
def test_the_reference_writes_what_the_engine_writes(pair: Pair, decoding: Decoding) -> None:
    world = _world(pair, batch=5, decoding=decoding)
    prompts = [(5, 9, 2, 30), (7, 7, 8)]
    wanted = [(p, k, seed) for p in prompts for k in (0.0, 0.05, math.inf) for seed in (1, 2)]
    ours = {
        (t.key.prompt, t.key.k, t.key.trajectory): t
        for t in Decoder(
            pair, mechanism("anchored", DebtRule()), decoding, width=WIDTH, batch=8
        ).decode(
            PromptRequest(
                str(p), p, tuple(RowRequest(k, s, Stream(s)) for q, k, s in wanted if q == p)
            )
            for p in prompts
        )
    }
    outputs = WithOurNoise(world).decode([Request(p, k, s, 20) for p, k, s in wanted])
    for (p, k, seed), output in zip(wanted, outputs, strict=True):
        record = ours[str(p), k, seed]
        assert list(output.tokens) == record.steps.token.tolist()
        assert output.debt == pytest.approx(record.debt, abs=1e-9)
        np.testing.assert_allclose(output.charge, record.steps.charge, rtol=1e-9)  # type: ignore[arg-type]
        np.testing.assert_allclose(output.served, record.steps.served, rtol=1e-6)  # type: ignore[arg-type]


def test_what_lies_outside_is_refused_by_name(pair: Pair) -> None:
    world = _world(pair)
    with pytest.raises(InputError, match="after 0 tokens"):
        world.laws([[]])
    with pytest.raises(InputError, match="65 tokens"):
        world.laws([[1] * 65])
    with pytest.raises(InputError, match="token id -1"):
        world.prefix_laws([-1])
    assert debt_of(world, (3,)) == 0.0
    assert [law.shape for law in world.laws([])] == [(0, world.size)] * 2
