"""What several faults are made of, and the slow twin of the solver.

The slow twin of the solver: plain bisection in float64 NumPy, sharing no code with it.

Replay and tests use it, so that a mistake in the fast solver cannot confirm itself.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from nafaudit.mechanisms.reference import Row
from nafaudit.protocols import Law


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


LogLaw = NDArray[np.float64]


def divergence(p: LogLaw, q: LogLaw) -> float:
    """D_KL(p || q) of two log-laws, summed exactly (math.fsum)."""
    inside = p > -np.inf
    if np.any(q[inside] == -np.inf):
        return math.inf
    return max(0.0, math.fsum(np.exp(p[inside]) * (p[inside] - q[inside])))


def mixture(safe: LogLaw, risky: LogLaw, theta: float) -> LogLaw:
    """Log p_theta; the end points are the two laws themselves."""
    if theta == 0:
        return safe
    if theta == 1:
        return risky
    with np.errstate(invalid="ignore"):
        x = (1 - theta) * safe + theta * risky
    top = x.max()
    if top == -np.inf:
        raise ValueError("the two laws share no token.")
    return np.asarray(x - (top + math.log(math.fsum(np.exp(x - top)))))


def largest_theta(safe: LogLaw, risky: LogLaw, allowance: float) -> float:
    """The largest feasible weight, to the last bit of a bisection of [0, 1]."""
    if allowance < 1e-10:
        return 0.0
    if divergence(risky, safe) <= allowance:
        return 1.0
    if not np.any((safe > -np.inf) & (risky > -np.inf)):
        return 0.0
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if divergence(mixture(safe, risky, middle), safe) <= allowance:
            low = middle
        else:
            high = middle
    return low
