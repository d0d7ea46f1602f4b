"""Everything that meets a model's device runs on one that is not the CPU, with the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from nafaudit.auditor.replay import ReplayTask, replay_texts
from nafaudit.auditor.teacher_forcing import Reader
from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.trajectory import Key
from nafaudit.engine.decode import Decoder
from nafaudit.engine.lanes import Scorer
from nafaudit.engine.probe import probe
from nafaudit.engine.prompts import PromptRequest
from nafaudit.engine.proof import numerics_of
from nafaudit.mechanisms.laws import log_law
from nafaudit.mechanisms.registry import mechanism
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import Resources
from tests.engine.test_decode import request
from tests.pretended import pretended, put, put_model

Paths = Callable[[str], tuple[Path, Path]]
RULE = mechanism("anchored", DebtRule())
WARPED = Decoding(4, temperature=0.9, repetition_penalty=1.2)
REQUESTS = [request(i, 3 + 9 * i, (0.4, math.inf)) for i in range(2)]


def tokens(pair: Pair, how: int) -> dict[Key, list[int]]:
    if numerics_of((pair.safe, pair.risky), 64).constant:
        how = 0  # guesses need free rows, which is tested elsewhere
    decoder = Decoder(pair, RULE, WARPED, width=64, batch=3, speculate=how)
    return {t.key: t.steps.token.tolist() for t in decoder.decode(REQUESTS)}


def charges(pair: Pair, found: dict[Key, list[int]]) -> list[float]:
    prompts: dict[str, PromptRequest] = {one.prompt: one for one in REQUESTS}
    written = [
        ReplayTask(key, prompts[key.prompt].tokens, np.array(ids, np.int32), False)
        for key, ids in found.items()
    ]
    replayed = replay_texts(Reader(pair, WARPED), RULE, written)
    again = {one.trajectory.key: one.trajectory.steps.charge for one in replayed}
    return [charge for key in found for charge in again[key].tolist()]


def surprisals(pair: Pair) -> list[float]:
    scorer = Scorer(pair.safe, pair.vocabulary, WARPED, context=pair.context)
    return list(scorer.surprisals([0, 5, 9], list(range(20, 60))))


def test_a_pair_decodes_and_is_replayed(tiny_pair_paths: Paths) -> None:
    check_pair(tiny_pair_paths, "llama", speculate=2)


@pytest.mark.full
@pytest.mark.parametrize("architecture", ["gpt2", "gemma2", "mistral"])
def test_other_pairs_do_too(architecture: str, tiny_pair_paths: Paths) -> None:
    check_pair(tiny_pair_paths, architecture, speculate=0)


@pytest.mark.full
@pytest.mark.parametrize("there", ["safe", "risky"])
def test_models_of_two_devices_are_a_pair(there: str, tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"), stop_ids=())
    here = tokens(pair, 0)
    expected = charges(pair, here)
    with pretended():
        put_model(getattr(pair, there))
        assert tokens(pair, 0) == tokens(pair, 2) == here
        assert charges(pair, here) == pytest.approx(expected, abs=1e-4)


@pytest.mark.full
def test_the_probe_asks_the_device(tiny_pair_paths: Paths) -> None:
    pair = load_pair(*tiny_pair_paths("llama"))
    with pretended():
        for model in (pair.safe, pair.risky):
            put_model(model)
        assert probe(pair, RULE, WARPED, width=64, batch=4).plain_error < 1e-3


def check_pair(tiny_pair_paths: Paths, architecture: str, speculate: int) -> None:
    pair = load_pair(*tiny_pair_paths(architecture), stop_ids=())
    here = tokens(pair, 0)
    expected = charges(pair, here), surprisals(pair)
    with pretended() as device:
        for model in (pair.safe, pair.risky):
            put_model(model)
        assert tokens(pair, speculate) == here
        assert charges(pair, here) == pytest.approx(expected[0], abs=1e-4)
        assert surprisals(pair) == pytest.approx(expected[1], abs=1e-4)
        assert device.calls


@pytest.mark.parametrize(
    "spec",
    ["anchored", "renyi:alpha=2", "pathwise", "cp-delta", "cp-fuse", "memfree:n=2", "tokenswap"],
)
def test_a_rule_serves_there_what_it_serves_here(spec: str) -> None:
    pieces = [b"the" if token == 7 else bytes([token]) for token in range(64)]
    material = Resources(pieces, lambda text: tuple(text.encode()), ["!!!!"])
    rule = mechanism(spec, DebtRule()).bind(material).rule
    generator = torch.Generator().manual_seed(2)
    safe, risky = (log_law(2 * torch.randn(4, 64, generator=generator)) for _ in "ab")
    allowance = torch.tensor([0.0, 0.3, 2.0, math.inf], dtype=torch.float64)
    prefixes = [[1, 33, 33]] * 4
    here = rule.serve(prefixes, safe, risky, allowance)
    with pretended() as device:
        there = rule.serve(prefixes, put(safe), put(risky), put(allowance))
        assert device.calls
        for one, other in zip(here, there, strict=True):
            assert torch.allclose(one, other.cpu(), rtol=0, atol=1e-6, equal_nan=True)
