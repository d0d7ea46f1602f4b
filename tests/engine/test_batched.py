"""All rows at once, as on a GPU: the same tokens, and at most three waits a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import Stream
from nafaudit.core.errors import LawError
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.engine.decode import Decoder
from nafaudit.engine.noise import DeviceNoise, StreamStep
from nafaudit.engine.prompts import PromptRequest
from nafaudit.engine.rows import RowModel
from nafaudit.engine.write import law_or_flat, sent, table_of_step
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.laws import log_law
from nafaudit.mechanisms.registry import mechanism
from nafaudit.mechanisms.solve import SLACK
from nafaudit.models.pair import Pair, load_pair
from nafaudit.runner.gpu import LAW_TRAFFIC, NOISE_TRAFFIC
from tests.conftest import needs_free_rows
from tests.engine.test_decode import request
from tests.pretended import DEVICE, pretended, put, put_model

Paths = Callable[[str], tuple[Path, Path]]
ROWS = mechanism("anchored", DebtRule())
BATCHED = replace(ROWS, rule=Anchored(batched=True))
PLAIN = Decoding(max_new_tokens=20)


@pytest.fixture(scope="module")
def pair(tiny_pair_paths: Paths) -> Pair:
    return load_pair(*tiny_pair_paths("llama"), stop_ids=range(2, 8))


def decoded(
    pair: Pair, rule: Any, requests: list[PromptRequest], decoding: Decoding = PLAIN, **how: Any
) -> dict[Key, Trajectory]:
    decoder = Decoder(pair, rule, decoding, width=64, **{"batch": 8} | how)
    return {trajectory.key: trajectory for trajectory in decoder.decode(requests)}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"speculate": 3},
        {"batch": 3},
        {"decoding": Decoding(20, temperature=0.8, repetition_penalty=1.2)},
    ],
    ids=str,
)
def test_tokens_are_those_of_rows_alone(pair: Pair, how: dict[str, Any]) -> None:
    if "speculate" in how:
        needs_free_rows(pair.safe, pair.risky, width=64)
    # Two budgets that bind, and both baselines.
    requests = [request(i, 3 + 4 * i, (0.0, 0.3, 1.0, math.inf)) for i in range(3)]
    rows = decoded(pair, ROWS, requests, **how)
    found = decoded(pair, BATCHED, requests, batched=True, **how)
    assert found.keys() == rows.keys()
    bound = 0
    for key, one in rows.items():
        other = found[key]
        assert np.array_equal(one.steps.token, other.steps.token)
        assert one.stopped == other.stopped
        # What stays unspent of a step may differ, and is granted again at the next.
        assert np.abs(one.steps.charge - other.steps.charge).max() <= 2 * SLACK
        bound += int(((one.steps.theta > 0) & (one.steps.theta < 1)).sum())
    assert bound > 30


def test_rules_of_other_kinds_and_baselines_are_written_together(pair: Pair) -> None:
    rule = mechanism("cp-delta", DebtRule())
    requests = [request(i, 5, (0.0, 0.5, math.inf)) for i in range(2)]
    rows = decoded(pair, rule, requests)
    found = decoded(pair, rule, requests, batched=True)
    for key, one in rows.items():
        assert np.array_equal(one.steps.token, found[key].steps.token)
        assert np.allclose(one.steps.charge, found[key].steps.charge, atol=1e-9)


def test_the_host_waits_three_times_a_step(tiny_pair_paths: Paths) -> None:
    """Which rows bind, which are not settled, and what the ledger must know."""
    pair = load_pair(*tiny_pair_paths("llama"), stop_ids=())
    requests = [request(i, 5, (0.5, math.inf)) for i in range(2)]
    few = Decoding(max_new_tokens=6)
    rows = decoded(pair, ROWS, requests, few)
    waits: list[int] = []
    with pretended() as device:
        for model in (pair.safe, pair.risky):
            put_model(model)
        decoder = Decoder(pair, ROWS, few, width=64, batch=8)

        def watch(written: int) -> None:
            waits.append(device.waits.total())
            device.waits.clear()

        decoder.on_step = watch
        device.waits.clear()
        found = {trajectory.key: trajectory for trajectory in decoder.decode(requests)}
    for key, one in rows.items():
        assert np.array_equal(one.steps.token, found[key].steps.token)
        # Attention takes another path there, so even debts differ in the last bits of float32.
        assert np.allclose(one.steps.charge, found[key].steps.charge, atol=1e-4)
    # Two prompts, each read by two models: are its laws sound, and its debt; then the first step.
    assert waits[0] <= 2 * 2 * 2 + 3
    # Two, if no row binds.
    assert set(waits[1:]) == {2, 3}
    # The companion: a list that is sent the usual way is waited for, in both models.
    with pretended() as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowModel, "_sent", lambda self, x: torch.tensor(x, device=self.device))
        waits.clear()
        decoder = Decoder(pair, ROWS, few, width=64, batch=8)
        decoder.on_step = watch
        list(decoder.decode(requests))
    assert max(waits[1:]) == 7


@pytest.mark.parametrize(
    ("budget", "calls", "waits"), [(0.5, 400, 2), (100.0, 100, 1)], ids=["binding", "free"]
)
def test_a_step_is_few_calls(budget: float, calls: int, waits: int) -> None:
    """About 360 and 70, as docs/gpu.md says; the transfer of the table comes on top."""
    generator = torch.Generator().manual_seed(0)
    logits = [3 * torch.randn(8, 4096, generator=generator) for _ in "ab"]
    with pretended() as device:
        safe, risky = map(put, logits)
        allowance, noise = sent([budget] * 8, DEVICE), put(torch.zeros(8, 4096))
        device.calls = device.moved = 0
        table = table_of_step(Anchored(), [[]] * 8, (safe, risky), allowance, noise)
        assert device.waits.total() == waits
        assert calls / 2 < device.calls <= calls
        assert device.moved <= LAW_TRAFFIC * safe.numel()
        assert (waits == 1) == (device.moved <= LAW_TRAFFIC * safe.numel() / 2)
        theta = table.cpu()[:, 3]
        assert ((theta == 1) == (waits == 1)).all()


def test_noise_is_few_calls() -> None:
    """230 for some steps of every row, and the bytes that `nafaudit plan` counts."""
    with pretended() as device:
        source = DeviceNoise(4096, 8, DEVICE)
        device.calls = device.moved = 0
        source.noise([StreamStep(Stream(key), 0) for key in range(8)])
        assert device.calls <= 250
        made = 8 * 4096 * source.ahead
        assert 0.9 * NOISE_TRAFFIC * made <= device.moved <= NOISE_TRAFFIC * made


LOGIT = st.one_of(st.floats(-1e4, 1e4), st.sampled_from([-math.inf, math.inf, 0.0]))


@given(st.lists(st.lists(LOGIT, min_size=5, max_size=5), min_size=1, max_size=4))
def test_a_law_without_a_look_is_the_same_law(logits: list[list[float]]) -> None:
    x = torch.tensor(logits, dtype=torch.float64)
    laws, none = law_or_flat(x)
    for law, row, broken in zip(laws, x, none.tolist(), strict=True):
        if broken:
            with pytest.raises(LawError):
                log_law(row.unsqueeze(0))
        else:
            assert torch.allclose(law, log_law(row.unsqueeze(0))[0], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("wrong", "said"), [(math.nan, "NaN logits"), (-math.inf, "forbids every token")]
)
@pytest.mark.parametrize("speculate", [0, 2])
def test_logits_that_are_no_law_are_refused(
    pair: Pair, wrong: float, said: str, speculate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if speculate:
        needs_free_rows(pair.safe, pair.risky, width=64)
    step = RowModel.step

    def broken(self: RowModel, tokens: list[int], positions: list[int]) -> Tensor:
        logits = step(self, tokens, positions)
        if self.model is pair.safe:
            logits[1] = wrong
        return logits

    monkeypatch.setattr(RowModel, "step", broken)
    how: dict[str, Any] = {"batched": True, "speculate": speculate}
    with pytest.raises(LawError, match=said):
        decoded(pair, BATCHED, [request(i, 5, (0.5,)) for i in range(3)], **how)
