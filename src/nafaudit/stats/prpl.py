"""The predictable plug-in empirical-Bernstein confidence sequence: closed form, anytime."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nafaudit.stats.bound import Assumption, BoundSpec, Sample, check_level

# Largest bet; smaller is better for large n, larger for small n.
TRUNCATION = 0.75


def _paths(rows: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """Upper bound of the mean in [0, 1] after each value of each row."""
    level = -math.log(delta)
    t = np.arange(1, rows.shape[1] + 1)
    means = (0.5 + rows.cumsum(axis=1)) / (t + 1)
    variances = (0.25 + ((rows - means) ** 2).cumsum(axis=1)) / (t + 1)
    # A bet on a value may only use those before it.
    mean_before = np.concatenate([np.full((len(rows), 1), 0.5), means[:, :-1]], axis=1)
    var_before = np.concatenate([np.full((len(rows), 1), 0.25), variances[:, :-1]], axis=1)
    bets = np.minimum(np.sqrt(2.0 * level / (var_before * t * np.log1p(t))), TRUNCATION)
    # v psi with v = 4 (x - mean)^2 and psi = (-ln(1 - bet) - bet) / 4.
    costs = (rows - mean_before) ** 2 * (-np.log1p(-bets) - bets)
    spent = level + costs.cumsum(axis=1)
    upper = ((bets * rows).cumsum(axis=1) + spent) / bets.cumsum(axis=1)
    return np.asarray(np.minimum(upper, 1.0))


def prpl_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    """Upper bound of each row of values in [0, high], in their order."""
    return high * _paths(rows / high, delta)[:, -1]


def prpl_missed(
    rows: NDArray[np.float64], mean: float, high: float, delta: float
) -> NDArray[np.bool_]:
    """True where the bound after so many values lies below the mean."""
    return high * _paths(rows / high, delta) < mean


def prpl_sequence(sample: Sample, alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper ends after each value; all of them hold together with chance 1 - alpha.

    Each side spends alpha/2. Ends are clipped to [0, R], not intersected over time.
    """
    check_level(alpha)
    PRPL.check(sample)
    rows = sample.values[None, :] / sample.high
    upper = sample.high * _paths(rows, alpha / 2)[0]
    return sample.high * (1.0 - _paths(1.0 - rows, alpha / 2)[0]), upper


PRPL = BoundSpec(
    name="prpl-eb",
    about="mean",
    assumes=(Assumption.SAME_MEAN, Assumption.RANGE),
    formula="(sum b x + l + sum 4 (x - mean before)^2 psi(b))/sum b on x/R, l = ln(1/delta), "
    "psi(b) = (-ln(1 - b) - b)/4, b = min(sqrt(2 l/(var before t ln(1 + t))), 0.75)",
    reference="Waudby-Smith and Ramdas (2024), Journal of the Royal Statistical Society B 86, "
    "theorem 2",
    rows=prpl_rows,
    ordered=True,
    missed=prpl_missed,
)
