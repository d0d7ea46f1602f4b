"""Noise made on a device is that of `core/draws.py`, and so are the tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.draws import Stream, gumbel, noise_of, words
from nafaudit.engine.noise import DeviceNoise, StreamStep, gumbel_of, noise_bounds, pick_token
from nafaudit.mechanisms.laws import log_law
from tests.pretended import DEVICE, pretended

CPU = torch.device("cpu")
KEYS = st.one_of(st.integers(0, (1 << 128) - 1), st.sampled_from([0, 1, (1 << 128) - 1, 1 << 63]))
DRAWS = st.builds(StreamStep, st.builds(Stream, KEYS), st.integers(0, 1 << 40))


@settings(max_examples=150)
@given(st.lists(DRAWS, min_size=1, max_size=5), st.integers(1, 70))
def test_every_bit_is_that_of_the_layout(wanted: list[StreamStep], lanes: int) -> None:
    found = DeviceNoise(lanes, len(wanted), CPU).words(wanted).numpy().view(np.uint64)
    for row, one in zip(found, wanted, strict=True):
        assert np.array_equal(row, words(one.stream, one.step, lanes))


def test_a_whole_vocabulary() -> None:
    found = DeviceNoise(128_255, 1, CPU).words([StreamStep(Stream(7), 3)]).numpy().view(np.uint64)
    assert np.array_equal(found[0], words(Stream(7), 3, 128_255))


def test_noise_at_the_ends_of_a_word() -> None:
    raw = np.array([0, (1 << 64) - 1, 1 << 12, 1 << 63, (1 << 63) - 1], np.uint64)
    found = gumbel_of(torch.from_numpy(raw.view(np.int64)))
    assert found.tolist() == pytest.approx(noise_of(raw).tolist(), rel=1e-15)


@settings(max_examples=100)
@given(
    st.lists(KEYS, min_size=1, max_size=4),
    st.integers(0, 40),
    st.integers(2, 300),
    st.sampled_from([0.0, 0.3, 3.0, 30.0, 300.0]),
    st.booleans(),
)
def test_tokens_are_those_of_the_cpu(
    keys: list[int], step: int, size: int, scale: float, holes: bool
) -> None:
    generator = torch.Generator().manual_seed(sum(keys) % 2**31)
    logits = scale * torch.randn(len(keys), size, generator=generator)
    if holes:
        logits[:, : size // 2] = -math.inf
    laws = log_law(logits)
    noise = DeviceNoise(size, len(keys), CPU).noise([StreamStep(Stream(key), step) for key in keys])
    found = (laws + noise).argmax(dim=-1).tolist()
    assert found == [
        pick_token(law, noise_bounds(Stream(key), step, size))
        for law, key in zip(laws, keys, strict=True)
    ]


def test_noise_is_made_once_and_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one stream share its noise, at nearby steps too."""
    asked: list[int] = []
    make = DeviceNoise.words

    def counted(self: DeviceNoise, wanted: list[StreamStep]) -> torch.Tensor:
        asked.append(len(wanted))
        return make(self, wanted)

    monkeypatch.setattr(DeviceNoise, "words", counted)
    source = DeviceNoise(30, 3, CPU)
    one, other = Stream(1), Stream(2)
    assert source.ahead == 16
    for step in range(40):
        wanted = [StreamStep(one, step), StreamStep(other, step), StreamStep(one, step + 5)]
        source.keep(wanted)
        found = source.noise(wanted).numpy()
        for row, (stream, at) in zip(found, wanted, strict=True):
            assert row.tolist() == pytest.approx(gumbel(stream, at, 30).tolist(), rel=1e-14)
    # Both streams at steps 0 to 47, once.
    assert sum(asked) == 2 * 48
    assert len(source._made) <= 3
    # A large batch of a large vocabulary is not made ahead.
    assert DeviceNoise(128_256, 64, CPU).ahead == 1


def test_only_keys_and_steps_are_sent_and_nobody_waits() -> None:
    with pretended() as device:
        source = DeviceNoise(30, 2, DEVICE)
        device.waits.clear()
        found = source.noise([StreamStep(Stream(1), 5), StreamStep(Stream(2**100), 6)])
        assert not device.waits
        assert np.allclose(found.cpu()[1], gumbel(Stream(2**100), 6, 30), rtol=1e-14)
