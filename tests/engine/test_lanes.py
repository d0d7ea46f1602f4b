from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from nafaudit.core.design import Decoding
from nafaudit.engine.lanes import Scorer
from nafaudit.models.pair import Pair, load_pair

Paths = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module", params=("llama", "gpt2", "gemma2", "mistral"))
def pair(request: pytest.FixtureRequest, tiny_pair_paths: Paths) -> Pair:
    return load_pair(*tiny_pair_paths(request.param))


def ids(number: int, length: int) -> list[int]:
    draw = random.Random(number)
    return [draw.randrange(2, 300) for _ in range(length)]


def slow(pair: Pair, before: list[int], tokens: list[int], decoding: Decoding) -> list[float]:
    """One plain forward pass per token, and the warps written out again."""
    found = []
    for i, token in enumerate(tokens):
        prefix = [*before, *tokens[:i]]
        with torch.no_grad():
            logits = pair.safe(torch.tensor([prefix])).logits[0, -1].double().tolist()
        logits = logits[: len(pair.vocabulary)]
        for seen in set(prefix):
            penalty = decoding.repetition_penalty
            logits[seen] = logits[seen] / penalty if logits[seen] > 0 else logits[seen] * penalty
        law = torch.log_softmax(torch.tensor(logits).double() / decoding.temperature, -1)
        found.append(-law[token].item())
    return found


@pytest.mark.parametrize("decoding", [Decoding(), Decoding(20, 0.7, 1.3)], ids=["plain", "warped"])
def test_one_pass_agrees_with_a_pass_per_token(pair: Pair, decoding: Decoding) -> None:
    scorer = Scorer(pair.safe, pair.vocabulary, decoding, context=pair.context)
    before, tokens = [0, *ids(1, 7)], ids(2, 18)
    got = scorer.surprisals(before, tokens)
    np.testing.assert_allclose(got, slow(pair, before, tokens, decoding), atol=2e-4)
    assert scorer.surprisals(before, tokens[:9]) == pytest.approx(got[:9], abs=2e-5)
    # What stands before it matters, or the context would not be worth recording.
    assert not np.allclose(scorer.surprisals([0], tokens), got, atol=1e-2)


def test_a_text_longer_than_a_pass_is_one_text(
    tiny_pair_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    scorer = Scorer(pair.safe, pair.vocabulary, Decoding(), context=pair.context)
    tokens = ids(3, 100)
    whole = scorer.surprisals([0, 5, 6], tokens)
    monkeypatch.setattr("nafaudit.engine.rows._PASS_TOKENS", 16)
    assert scorer.surprisals([0, 5, 6], tokens).tolist() == whole.tolist()


def test_the_whole_context_can_be_scored(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("gpt2"))
    scorer = Scorer(pair.safe, pair.vocabulary, Decoding(), context=pair.context)
    assert scorer.surprisals([0], ids(4, pair.context - 1)).shape == (pair.context - 1,)


def test_nothing_to_score_is_refused(pair: Pair) -> None:
    scorer = Scorer(pair.safe, pair.vocabulary, Decoding(), context=pair.context)
    for before, tokens in (([], [1]), ([1], [])):
        with pytest.raises(ValueError, match="token to stand before it"):
            scorer.surprisals(before, tokens)
