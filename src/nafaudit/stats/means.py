"""The mean of clustered values, its error, and what a t value says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from nafaudit.core.trajectory import total
from nafaudit.stats.bound import Assumption, BoundSpec


def clustered_mean(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean over all values and its standard error, with groups as the independent units.

    The error is the cluster-robust one, sqrt(G/(G-1) * sum_g S_g^2) / n, with S_g the sum of a
    group's deviations. Assumes independent groups; whatever happens within one is allowed.

    Reference: Liang and Zeger (1986), Biometrika 73, for the mean.
    """
    count = len(groups)
    if count < 2 or not all(groups):
        raise ValueError(f"need at least 2 groups, none empty, got sizes {[*map(len, groups)]}.")
    n = sum(map(len, groups))
    centre = total(value for group in groups for value in group) / n
    sums = [total(value - centre for value in group) for group in groups]
    return centre, math.sqrt(count / (count - 1) * total(s * s for s in sums)) / n


def student_two_sided(t: float, df: int) -> float:
    """P(|T| >= |t|) for Student's t with a whole number of degrees of freedom.

    Exact finite sums; absolute error about 1e-15, so far smaller p values are noise.

    Reference: Abramowitz and Stegun (1964), 26.7.3 and 26.7.4.
    """
    if df < 1:
        raise ValueError(f"df must be at least 1, got {df}.")
    angle = math.atan2(abs(t), math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    terms, term = [], 1.0 if df % 2 == 0 else cosine
    for j in range(df % 2, df - 1, 2):
        terms.append(term)
        term *= cosine * cosine * (j + 1) / (j + 2)
    inside = sine * math.fsum(terms)
    if df % 2:
        inside = (angle + inside) * 2 / math.pi
    return min(1.0, max(0.0, 1.0 - inside))


def cluster_t_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    """Student's upper limit of the mean of each row of prompt means; `high` is not used."""
    del high
    count = rows.shape[1]
    quantile = -float(stdtrit(count - 1, delta))
    if not math.isfinite(quantile):
        # A level too small for the quantile's algorithm must not turn into a small bound.
        return np.full(len(rows), math.inf)
    return np.asarray(rows.mean(axis=1) + quantile * rows.std(axis=1, ddof=1) / math.sqrt(count))


CLUSTER_T = BoundSpec(
    name="cluster-t",
    about="mean",
    assumes=(Assumption.CLUSTERS, Assumption.NORMAL, Assumption.FIXED_N),
    formula="mean of prompt means + t(G - 1, 1 - delta) s/sqrt(G), G prompts",
    reference="Student (1908), Biometrika 6; Donner and Klar (2000) for clusters",
    rows=cluster_t_rows,
    least=2,
)
