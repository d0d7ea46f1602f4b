"""Bounds for few values: from the whole empirical law, and from exact binomial tails."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr, smirnov, smirnovi

from nafaudit.stats.bound import Assumption, BoundSpec
from nafaudit.stats.rates import clopper_pearson_upper
from nafaudit.stats.roots import first_true

_IID_RANGE = (Assumption.IID, Assumption.RANGE, Assumption.FIXED_N)


def smirnov_quantile(n: int, delta: float) -> float:
    """How far the empirical law may rise above the true one, missed with chance delta."""
    gap = float(smirnovi(n, delta))
    # The inverse is rounded; a bound may only be rounded up.
    while float(smirnov(n, gap)) > delta:
        gap += 1e-12
    return gap


def anderson_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    """R minus the area under the lower confidence band of each row's law."""
    n = rows.shape[1]
    gap = smirnov_quantile(n, delta)
    ends = np.concatenate([np.sort(rows, axis=1), np.full((len(rows), 1), high)], axis=1)
    heights = np.maximum(np.arange(1, n + 1) / n - gap, 0.0)
    return np.asarray(high - np.diff(ends, axis=1) @ heights)


def _kl_upper(mean: NDArray[np.float64], n: int, delta: float) -> NDArray[np.float64]:
    """Smallest m above the mean with n kl(mean, m) >= ln(1/delta); 1 if there is none."""

    def far(m: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray(n * (rel_entr(mean, m) + rel_entr(1 - mean, 1 - m)) >= -math.log(delta))

    return first_true(far, mean, np.ones_like(mean))


def hoeffding_bentkus_rows(
    rows: NDArray[np.float64], high: float, delta: float
) -> NDArray[np.float64]:
    """The smaller of two bounds: one p-value is the smaller of two that hold together."""
    n = rows.shape[1]
    mean = np.clip(rows.mean(axis=1) / high, 0.0, 1.0)
    counts = np.minimum(np.ceil(n * mean), n)
    bentkus = clopper_pearson_upper(counts, n, delta / math.e)
    return high * np.minimum(_kl_upper(mean, n, delta), bentkus)


ANDERSON = BoundSpec(
    name="anderson",
    about="mean",
    assumes=_IID_RANGE,
    formula="R - sum_i (x_(i+1) - x_(i)) max(0, i/n - eps), x_(n+1) = R, "
    "eps the exact one-sided Smirnov quantile",
    reference="Anderson (1969), Stanford technical report 1; Birnbaum and Tingey (1951) for eps",
    rows=anderson_rows,
)
HOEFFDING_BENTKUS = BoundSpec(
    name="hoeffding-bentkus",
    about="mean",
    assumes=_IID_RANGE,
    formula="R times the smallest m with exp(-n kl(mean, m)) <= delta or "
    "e P(Bin(n, m) <= ceil(n mean)) <= delta, mean of x/R",
    reference="Bates et al. (2021), Journal of the ACM 68; Bentkus (2004)",
    rows=hoeffding_bentkus_rows,
)
