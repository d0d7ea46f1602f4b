"""Picks the token of a row: the argmax of its log-law plus its noise, most of it never computed.

With u the uniform of a token, its score is log p - log(-log u), and -log u >= 1 - u. So
p / (1 - u) is at least exp(score): no logarithm is needed to see that a token cannot win. On
average one or two tokens are left, and only their noise is computed, by `core/draws.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.draws import Stream, noise_of, words

# A word's top 52 bits m give u = (m + 1/2) / 2^52; gaps are counted in those cells.
_DROPPED_BITS = np.uint64(12)
_CELL = 2.0**-52
# Float32 is off by 1e-5 at most, for log-probabilities that matter: a factor of safety of ten.
_MARGIN = 1 - 1e-4


class Draws(NamedTuple):
    """The randomness of one stream at one step, shared by all rows that draw from it.

    Attributes:
        raw: The word of every lane.
        gaps: 1 - u of every lane, in cells, as float32.
    """

    raw: NDArray[np.uint64]
    gaps: Tensor


def draws(stream: Stream, step: int, lanes: int) -> Draws:
    """Makes what the tokens of a step are picked by."""
    raw = words(stream, step, lanes)
    cells = np.invert(raw)
    cells >>= _DROPPED_BITS
    return Draws(raw, torch.from_numpy(cells.view(np.int64)).to(torch.float32).add_(0.5))


def draw(law: Tensor, made: Draws) -> int:
    """The token of one row on a CPU.

    Args:
        law: Served log-law [vocabulary], float64.
        made: The draws of its stream and step, one lane per token.
    """
    exact, raw = law.numpy(), made.raw
    ceilings = law.to(torch.float32).exp_().div_(made.gaps).numpy()
    likely = int(ceilings.argmax())
    score = float(exact[likely] + noise_of(raw[likely : likely + 1])[0])
    if math.isnan(score):
        return likely
    rivals = np.flatnonzero(ceilings >= _MARGIN * _CELL * math.exp(score))
    if rivals.size <= 1:
        return likely
    return int(rivals[(exact[rivals] + noise_of(raw[rivals])).argmax()])
