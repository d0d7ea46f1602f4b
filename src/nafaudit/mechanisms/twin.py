"""The slow twin of the solver: plain bisection in float64 NumPy, sharing no code with it.

Replay and tests use it, so that a mistake in the fast solver cannot confirm itself.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Law = NDArray[np.float64]


def divergence(p: Law, q: Law) -> float:
    """D_KL(p || q) of two log-laws, summed exactly (math.fsum)."""
    inside = p > -np.inf
    if np.any(q[inside] == -np.inf):
        return math.inf
    return max(0.0, math.fsum(np.exp(p[inside]) * (p[inside] - q[inside])))


def mixture(safe: Law, risky: Law, theta: float) -> Law:
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


def largest_theta(safe: Law, risky: Law, allowance: float) -> float:
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
