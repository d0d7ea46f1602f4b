"""Picks the token of a row: the argmax of its log-law plus its noise, most of it never computed.

With u the uniform of a token, its noise is -log(-log u) < -log(1 - u), and a float's own bits
bound that logarithm: log2(2^e (1 + f)) >= e + f, never by more than 0.09. So no logarithm is
needed to see that a token cannot win. One or two tokens are left, usually, and only their noise
is computed, by `core/draws.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
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


class Draws(NamedTuple):
    """The randomness of one stream at one step, shared by all rows that draw from it.

    Attributes:
        raw: The word of every lane.
        ceilings: What the noise of every lane cannot exceed, less `AT_ZERO`, as float32.
    """

    raw: NDArray[np.uint64]
    ceilings: NDArray[np.float32]


def draws(stream: Stream, step: int, lanes: int) -> Draws:
    """Makes what the tokens of a step are picked by."""
    return bounded(words(stream, step, lanes))


def bounded(raw: NDArray[np.uint64]) -> Draws:
    """Words with a bound on the noise that they stand for."""
    cells = (raw >> _DROPPED_BITS).astype(np.int32)
    gaps = np.subtract(_ALL_BITS, cells, out=cells).astype(np.float32)
    ceilings = gaps.view(np.int32).astype(np.float32)
    ceilings *= _PER_BIT
    return Draws(raw, ceilings)


def draw(law: Tensor, made: Draws) -> int:
    """The token of one row on a CPU.

    Args:
        law: Served log-law [vocabulary], float64.
        made: The draws of its stream and step, one lane per token.
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
