"""What changes speed only: guessing ahead, two threads; and the token picked without its noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import Stream, gumbel, noise_of, uniforms
from nafaudit.core.errors import InputError
from nafaudit.core.settings import RunSettings
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.noise import AT_ZERO, bounded, noise_bounds, pick_token
from nafaudit.engine.probe import probe
from nafaudit.engine.prompts import PromptRequest
from nafaudit.engine.rows import ONE_POSITION_AT_A_TIME, SHARED_HEADS, attending
from nafaudit.mechanisms.laws import log_law
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from tests.conftest import needs_free_rows
from tests.engine.test_decode import request

Paths = Callable[[str], tuple[Path, Path]]
RULE = mechanism("anchored", DebtRule())


def decoded(
    pair: Pair, requests: list[PromptRequest], decoding: Decoding, **how: Any
) -> tuple[dict[Key, Trajectory], Decoder]:
    how = {"batch": 8} | how
    decoder = Decoder(pair, RULE, decoding, width=64, **how)
    return {t.key: t for t in decoder.decode(requests)}, decoder


@pytest.mark.parametrize(
    "architecture", ["llama", "gpt2", pytest.param("mistral", marks=pytest.mark.full)]
)
def test_speculation_keeps_every_bit(tiny_pair_paths: Paths, architecture: str) -> None:
    pair = load_pair(*tiny_pair_paths(architecture), stop_ids=range(2, 12))
    needs_free_rows(pair.safe, pair.risky, width=64)
    # Prompts up to the row's end, so that guesses run past it.
    requests = [request(i, length, trajectories=2) for i, length in enumerate((3, 20, 47))]
    decoding = Decoding(max_new_tokens=16, temperature=0.9, repetition_penalty=1.1)
    plain, _ = decoded(pair, requests, decoding)
    assert {t.stopped for t in plain.values()} == {True, False}
    for how in ({"speculate": 1}, {"speculate": 4, "batch": 3}, {"speculate": 5, "batch": 30}):
        found, decoder = decoded(pair, requests, decoding, **how)
        assert found.keys() == plain.keys()
        assert all(found[key].same_as(plain[key]) for key in plain)
        assert 0 < decoder.guessed.stood < decoder.guessed.asked


def test_two_threads_keep_every_bit(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    requests = [request(i, 9) for i in range(3)]
    plain, _ = decoded(pair, requests, Decoding(8))
    found, _ = decoded(pair, requests, Decoding(8), threaded=True)
    assert all(found[key].same_as(plain[key]) for key in plain)


def test_threads_that_share_a_configuration_leave_its_attention_as_it_was(
    tiny_pair_paths: Paths,
) -> None:
    model = load_pair(*tiny_pair_paths("llama")).risky
    first, second = (attending(model, SHARED_HEADS) for _ in range(2))
    first.__enter__()
    second.__enter__()
    assert model.config._attn_implementation == SHARED_HEADS
    first.__exit__(None, None, None)  # ends first, as a thread may
    second.__exit__(None, None, None)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(KeyError), attending(model, ONE_POSITION_AT_A_TIME):
        raise KeyError
    assert model.config._attn_implementation == "sdpa"


def test_the_safe_model_alone_is_always_guessed(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"), stop_ids=())
    needs_free_rows(pair.safe, pair.risky, width=64)
    requests = [request(i, 9, budgets=(0.0,)) for i in range(4)]
    _, decoder = decoded(pair, requests, Decoding(13), speculate=3)
    # Twelve tokens after the first: three guesses and one more per reading.
    assert decoder.guessed.asked == decoder.guessed.stood == 4 * 9


def test_speculation_that_would_change_records_is_refused(
    tiny_pair_paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    needs_free_rows(pair.safe, pair.risky, width=64)
    shape: dict[str, Any] = {"width": 64, "batch": 4, "speculate": 3}
    assert probe(pair, RULE, Decoding(8), **shape).batch_free
    from nafaudit.engine.rows import RowModel

    steps = RowModel.steps
    monkeypatch.setattr(RowModel, "steps", lambda self, *a: steps(self, *a) * (1 + 1e-6))
    with pytest.raises(InputError, match="--speculate changes a row's last bits"):
        probe(pair, RULE, Decoding(8), **shape)
    capped = load_pair(*tiny_pair_paths("gemma2"))  # its attention caps its scores
    with pytest.raises(InputError, match="attends by 'eager'"):
        Decoder(capped, RULE, Decoding(8), width=64, batch=4, speculate=2)


def test_settings_say_what_cannot_be() -> None:
    with pytest.raises(InputError, match="0 \\(off\\) to 64"):
        RunSettings(speculate=-1)
    with pytest.raises(InputError, match="exclude each other"):
        RunSettings(speculate=2, together=True)


@settings(max_examples=150)
@given(
    st.integers(0, 2**128 - 1),
    st.integers(2, 300),
    st.sampled_from([0.0, 0.3, 3.0, 30.0, 300.0]),
    st.booleans(),
)
def test_the_token_is_the_argmax_of_law_and_noise(
    key: int, size: int, scale: float, holes: bool
) -> None:
    generator = torch.Generator().manual_seed(key % 2**31)
    logits = scale * torch.randn(1, size, generator=generator)
    if holes:
        logits[0, : size // 2] = -math.inf
    law = log_law(logits)[0]
    for step in range(3):
        slow = int(np.argmax(law.numpy() + gumbel(Stream(key), step, size)))
        made = noise_bounds(Stream(key), step, size)
        assert pick_token(law, made) == slow


def test_the_extremes_of_a_word_are_drawn_right() -> None:
    """Noise from -3.6 to 36.7: a word of all ones wins against a likelier token."""
    law = log_law(torch.tensor([[0.0, -20.0, 0.0]]))[0]
    assert pick_token(law, bounded(np.array([0, 2**64 - 1, 5], np.uint64))) == 1


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(2**64 - 2**36, 2**64 - 1), min_size=1))
def test_noise_stays_under_its_bound(drawn: list[int]) -> None:
    """And near it, unless -log u is far from 1 - u or the word is in the last cell."""
    raw = np.array(drawn, np.uint64)
    noise, bound = noise_of(raw), bounded(raw).ceilings.astype(np.float64) + AT_ZERO
    assert (noise < bound + 2e-5).all()
    top = raw < np.uint64(2**64 - 2**40)
    u = uniforms(raw)[top]
    assert (bound[top] < -np.log(1 - u) + 0.0598 + 0.01).all()
