"""Picks tokens: the argmax of law plus noise, and noise on a device.

With u the uniform of a token, its noise is -log(-log u) < -log(1 - u), and a float's own bits
bound that logarithm: log2(2^e (1 + f)) >= e + f, never by more than 0.09. So no logarithm is
needed to see that a token cannot win. One or two tokens are left, usually, and only their noise
is computed, by `core/draws.py`.

On a device the noise of `core/draws.py` is made where the laws are: only keys and steps are sent
there. Philox4x64-10 in 64-bit integers that wrap around, as layout 1 wants it, for many rows at
once. It takes some two hundred small operations however many rows there are, and noise depends on
nothing but stream and step; so each stream's noise is made several steps ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.draws import Stream, noise_of, words

# 1 - u is above the complement of a word's top 31 bits, in cells of 2^-31.
_DROPPED_BITS = np.uint64(33)
_ALL_BITS = np.int32(0x7FFFFFFF)
# A float32's bits, as an integer, are 2^23 (127 + e + f).
_PER_BIT = np.float32(-math.log(2) / (1 << 23))
AT_ZERO = math.log(2) * (127 + 31)
# Float32 is off by 2e-5 at most, for log-probabilities that matter: a factor of safety of five.
_MARGIN = 1e-4


class NoiseBounds(NamedTuple):
    """The randomness of one stream at one step, shared by all rows that draw from it.

    Attributes:
        raw: The word of every lane.
        ceilings: What the noise of every lane cannot exceed, less `AT_ZERO`, as float32.
    """

    raw: NDArray[np.uint64]
    ceilings: NDArray[np.float32]


def noise_bounds(stream: Stream, step: int, lanes: int) -> NoiseBounds:
    """Makes the noise of a stream at a step, of which only bounds are computed."""
    return bounded(words(stream, step, lanes))


def bounded(raw: NDArray[np.uint64]) -> NoiseBounds:
    """Returns words with a bound on the noise that they stand for."""
    cells = (raw >> _DROPPED_BITS).astype(np.int32)
    gaps = np.subtract(_ALL_BITS, cells, out=cells).astype(np.float32)
    ceilings = gaps.view(np.int32).astype(np.float32)
    ceilings *= _PER_BIT
    return NoiseBounds(raw, ceilings)


def pick_token(law: Tensor, made: NoiseBounds) -> int:
    """Returns the token of one row on a CPU.

    Args:
        law: Served log-law [vocabulary], float64.
        made: The noise of its stream and step, one lane per token.
    """
    exact, raw = law.numpy(), made.raw
    scores = exact.astype(np.float32)
    scores += made.ceilings
    likely = int(scores.argmax())
    u = ((int(raw[likely]) >> 12) + 0.5) * 2.0**-52
    best = float(exact[likely]) - math.log(-math.log(u))
    if math.isnan(best):
        return likely
    rivals = np.flatnonzero(scores >= best - AT_ZERO - _MARGIN)
    if rivals.size <= 1:
        return likely
    return int(rivals[(exact[rivals] + noise_of(raw[rivals])).argmax()])


_ROUNDS = 10
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_BUMPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_HALF = 0xFFFFFFFF
_CELLS = (1 << 52) - 1
# Noise is made ahead as far as this many numbers go for a whole batch: 32 MB.
_NUMBERS = 1 << 22
_MOST_STEPS = 16


class StreamStep(NamedTuple):
    """A stream and a step of it, which decide the noise."""

    stream: Stream
    step: int


class DeviceNoise:
    """Noise on a device, a few steps of every stream at a time.

    Args:
        lanes: Tokens of the vocabulary.
        rows: Rows that are decoded together, at most.
        device: Where the noise is made.
    """

    def __init__(self, lanes: int, rows: int, device: torch.device) -> None:
        self.lanes = lanes
        self.ahead = max(1, min(_MOST_STEPS, _NUMBERS // (lanes * rows)))
        self.device = device
        self._made: dict[tuple[int, int], Tensor] = {}
        # Words 0 and 2 of a counter are multiplied, each by its own number; they stand first here.
        # A round exchanges them, so the multiplier of word 2 comes first.
        multipliers = _bits(_MULTIPLIERS[::-1]).reshape(2, 1, 1)
        bumps = [[bump * number % 2**64 for bump in _BUMPS] for number in range(_ROUNDS)]
        self._multiplier = _Multiplier(multipliers.to(device))
        self._bumps = _bits(bumps).reshape(_ROUNDS, 2, 1, 1).to(device)
        self._blocks = torch.arange(1, -(-lanes // 4) + 1, device=device)

    def noise(self, wanted: Sequence[StreamStep]) -> Tensor:
        """Returns the Gumbel noise [rows, lanes] of each row's stream and step, float64."""
        where = [self._where(one) for one in wanted]
        missing = {
            at: one.stream for at, one in zip(where, wanted, strict=True) if at not in self._made
        }
        if missing:
            asked = [
                StreamStep(stream, part * self.ahead + step)
                for (_, part), stream in missing.items()
                for step in range(self.ahead)
            ]
            made = gumbel_of(self.words(asked)).view(len(missing), self.ahead, self.lanes)
            self._made |= zip(missing, made.unbind(), strict=True)
        steps = [one.step % self.ahead for one in wanted]
        return torch.stack([self._made[at][step] for at, step in zip(where, steps, strict=True)])

    def keep(self, wanted: Iterable[StreamStep]) -> None:
        """Forgets all noise but that of the steps that come next, and what was made with it."""
        kept = {self._where(one) for one in wanted}
        self._made = {at: made for at, made in self._made.items() if at in kept}

    def _where(self, one: StreamStep) -> tuple[int, int]:
        return one.stream.key, one.step // self.ahead

    def words(self, wanted: Sequence[StreamStep]) -> Tensor:
        """Computes the bits of `core.draws.words` [streams and steps, lanes], as int64."""
        sent = _bits([[*one.stream.words, one.step] for one in wanted])
        given = sent.to(self.device, non_blocking=True)
        keys = given[:, :2].T.reshape(2, -1, 1) + self._bumps
        # Words 0 and 2 of every counter, and words 1 and 3.
        shape = (len(wanted), len(self._blocks))
        first = self._blocks.expand(shape)
        multiplied = torch.stack([first, torch.zeros_like(first)])
        others = torch.stack([given[:, 2:].expand(shape), torch.zeros_like(first)])
        for key in keys.unbind():
            low, high = self._multiplier.product(multiplied.flip(0))
            multiplied, others = high ^ others ^ key, low
        inner = [multiplied[0], others[0], multiplied[1], others[1]]
        return torch.stack(inner, dim=-1).flatten(1)[:, : self.lanes]


class _Multiplier:
    """Multiplies 64-bit words to 128 bits; all numbers are unsigned, in the bits of int64."""

    def __init__(self, by: Tensor) -> None:
        self.by = by
        self.low, self.high = by & _HALF, _upper(by)

    def product(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the lower and the upper word of each product."""
        low, high = words & _HALF, _upper(words)
        # No sum exceeds 64 bits: (2^32 - 1)^2 + 2 (2^32 - 1) = 2^64 - 1.
        across = torch.addcmul(_upper(low * self.low), high, self.low)
        other = torch.addcmul(across & _HALF, low, self.high)
        upper = torch.addcmul(_upper(across), high, self.high).add_(_upper(other))
        return words * self.by, upper


def gumbel_of(words: Tensor) -> Tensor:
    """Computes the noise of words, as `core.draws.noise_of` has it up to the last bits of log."""
    cells = words.bitwise_right_shift(12).bitwise_and_(_CELLS).to(torch.float64)
    uniforms = cells.add_(0.5).mul_(2.0**-52)
    return uniforms.log_().neg_().log_().neg_()


def _upper(words: Tensor) -> Tensor:
    return words.bitwise_right_shift(32).bitwise_and_(_HALF)


def _bits(words: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    return torch.from_numpy(np.array(words, np.uint64).view(np.int64))
