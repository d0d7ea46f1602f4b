"""What several faults are made of."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from nafaudit.mechanisms.doors import Law
from nafaudit.mechanisms.reference import Row


def only(law: Law, kept: NDArray[np.intp]) -> Law:
    """The law restricted to some tokens."""
    cut = np.full_like(law, -np.inf)
    cut[kept] = law[kept]
    return np.asarray(log_softmax(cut))


def blend(first: Law, second: Law, share: float) -> Law:
    """The arithmetic mixture: `share` of the second law."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(first + np.log1p(-share), second + np.log(share)))


def weight_of(law: Law, safe: Law, risky: Law) -> float:
    """The weight of the risky law in a geometric mixture, read off two log-odds."""
    known = np.flatnonzero((safe > -np.inf) & (risky > -np.inf))
    gap = (risky - safe)[known]
    high, low = known[np.argmax(gap)], known[np.argmin(gap)]
    span = (risky - safe)[high] - (risky - safe)[low]
    if span < 1e-9:
        return 1.0
    return float(np.clip(((law - safe)[high] - (law - safe)[low]) / span, 0.0, 1.0))


def allowance_of(row: Row, debt: float, steps: int | None = None) -> float:
    """What the running budget pays for, with another debt or another clock."""
    if row.request.k == math.inf:
        return math.inf
    earned = (row.step + 1 if steps is None else steps) * row.request.k
    return max(0.0, earned - row.spent - debt)
