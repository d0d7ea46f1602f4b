"""Rates, crossings of a target, and what a number of trajectories can show.

A bootstrap that keeps only the resamples which cross makes an uncertain crossing look certain. Here
a resample without a crossing counts as beyond the grid, and its share stands beside the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betainccinv, betaincinv, betaln, xlog1py, xlogy

from nafaudit.core.errors import InputError
from nafaudit.stats.betting import first_true
from nafaudit.stats.bound import Assumption, BoundSpec, check_level


def zero_count_upper(n: int, significance: float = 0.05) -> float:
    """Computes the one-sided Clopper-Pearson upper limit of a rate after 0 events in n trials.

    Solves (1 - u)^n = significance. Assumes independent trials of one rate; trajectories of
    one prompt are not, so quote it for prompts as well.

    Reference: Clopper and Pearson (1934), Biometrika 26.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")
    if not 0 < significance < 1:
        raise ValueError(f"significance must be in (0, 1), got {significance}.")
    return float(1.0 - significance ** (1.0 / n))


def clopper_pearson_upper(events: NDArray[np.float64], n: int, delta: float) -> NDArray[np.float64]:
    """Finds the largest rate under which this few events have chance delta; 1 if all are."""
    tries = np.maximum(n - events, 0.5)
    limits = betainccinv(events + 1.0, tries, delta)
    return np.where(events >= n, 1.0, limits)


def clopper_pearson(events: int, n: int, delta: float) -> tuple[float, float]:
    """Computes lower and upper limit of a rate, each missed with chance at most delta.

    Assumes independent trials of one rate, and n fixed beforehand.
    """
    check_level(delta)
    if not 0 <= events <= n or n < 1:
        raise InputError(f"need 0 <= events <= n and n >= 1, got {events} of {n}.")
    lower = float(betaincinv(events, n - events + 1.0, delta)) if events else 0.0
    return lower, float(clopper_pearson_upper(np.array(float(events)), n, delta))


def _log_evidence(
    events: NDArray[np.float64], n: int | NDArray[np.int64], rate: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Computes the log of the mean likelihood ratio, Beta(1/2, 1/2) on smaller rates, to `rate`."""
    others = n - events
    with np.errstate(divide="ignore", invalid="ignore"):
        below = betaln(events + 0.5, others + 0.5) + np.log(
            betainc(events + 0.5, others + 0.5, rate)
        )
        weight = betaln(0.5, 0.5) + np.log(betainc(0.5, 0.5, rate))
        itself = xlogy(events, rate) + xlog1py(others, -rate)
    return np.asarray(below - weight - itself)


def anytime_rate_upper(events: NDArray[np.float64], n: int, delta: float) -> NDArray[np.float64]:
    """Finds the smallest rate that the evidence refutes; 1 if all trials are events."""

    def refuted(rate: NDArray[np.float64]) -> NDArray[np.bool_]:
        return _log_evidence(events, n, rate) >= -math.log(delta)

    limits = first_true(refuted, events / n, np.ones_like(events))
    return np.where(events >= n, 1.0, limits)


def anytime_rate(events: int, n: int, delta: float) -> float:
    """Computes an upper limit of a rate that holds at level delta however often one looks."""
    check_level(delta)
    if not 0 <= events <= n or n < 1:
        raise InputError(f"need 0 <= events <= n and n >= 1, got {events} of {n}.")
    return float(anytime_rate_upper(np.array([float(events)]), n, delta)[0])


def _exact_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    del high
    return clopper_pearson_upper(rows.sum(axis=1), rows.shape[1], delta)


def _anytime_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    del high
    counts, where = np.unique(rows.sum(axis=1), return_inverse=True)
    return anytime_rate_upper(counts, rows.shape[1], delta)[where]


def _anytime_missed(
    rows: NDArray[np.float64], mean: float, high: float, delta: float
) -> NDArray[np.bool_]:
    del high
    n = np.arange(1, rows.shape[1] + 1)
    return _log_evidence(rows.cumsum(axis=1), n, np.array(mean)) > -math.log(delta)


CLOPPER_PEARSON = BoundSpec(
    name="clopper-pearson",
    about="rate",
    assumes=(Assumption.IID, Assumption.ZERO_OR_ONE, Assumption.FIXED_N),
    formula="1 - delta quantile of Beta(c + 1, n - c), c events; 1 - delta^(1/n) for c = 0",
    reference="Clopper and Pearson (1934), Biometrika 26",
    rows=_exact_rows,
)
ANYTIME_RATE = BoundSpec(
    name="anytime-rate",
    about="rate",
    assumes=(Assumption.SAME_MEAN, Assumption.ZERO_OR_ONE),
    formula="smallest u at which the likelihood ratio of rates below u, weighted by "
    "Beta(1/2, 1/2) cut off at u, to u itself reaches 1/delta",
    reference="Robbins (1970), Annals of Mathematical Statistics 41; Ville (1939)",
    rows=_anytime_rows,
    missed=_anytime_missed,
)


RESAMPLES = 2000
_LEVEL = 0.95


@dataclass(frozen=True)
class Crossing:
    """The place where a curve reaches a target.

    Attributes:
        target: The level.
        at: Where the mean first reaches it, linear between grid points; infinite if nowhere.
        below: Last grid point before that; NaN if the first one is there already.
        low: Lower end of the 95 % percentile interval over resampled units.
        high: Its upper end; infinite if enough resamples do not cross.
        none: Share of resamples that do not cross.
        units: How many units were resampled.
    """

    target: float
    at: float
    below: float
    low: float
    high: float
    none: float
    units: int


def first_crossing(
    grid: NDArray[np.float64], curves: NDArray[np.float64], target: ArrayLike
) -> NDArray[np.float64]:
    """Finds where each curve [curves, grid] first reaches its target; infinite if nowhere."""
    target = np.broadcast_to(np.asarray(target, float), len(curves))
    reached = curves >= target[:, np.newaxis]
    first = np.argmax(reached, axis=1)
    before = np.maximum(first - 1, 0)
    rows = np.arange(len(curves))
    low, high = curves[rows, before], curves[rows, first]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(first > 0, (target - low) / (high - low), 0.0)
    at = grid[before] + part * (grid[first] - grid[before])
    return np.where(reached.any(axis=1), at, np.inf)


def resampled(units: int, resamples: int = RESAMPLES, seed: int = 0) -> NDArray[np.float64]:
    """Returns the share of each unit in resamples with replacement [resamples, units]."""
    chosen = np.random.default_rng(seed).integers(units, size=(resamples, units))
    return np.apply_along_axis(np.bincount, 1, chosen, minlength=units) / units


def crossing(
    grid: ArrayLike, values: ArrayLike, target: float, *, resamples: int = RESAMPLES, seed: int = 0
) -> Crossing:
    """Finds where the mean over units reaches a target.

    Args:
        grid: Where the curves are known, increasing.
        values: One curve per unit [units, grid].
        target: The level.
        resamples: Number of resamples of the units, with replacement.
        seed: Seed of the resamples: equal units give equal intervals.
    """
    x, y = np.asarray(grid, float), np.asarray(values, float)
    if x.ndim != 1 or y.ndim != 2 or y.shape[1] != x.size or not y.size:
        raise ValueError(f"need a grid and a curve per unit, got {x.shape} and {y.shape}.")
    if (np.diff(x) <= 0).any():
        raise ValueError("the grid must increase.")
    at = float(first_crossing(x, y.mean(axis=0, keepdims=True), target)[0])
    found = first_crossing(x, resampled(len(y), resamples, seed) @ y, target)
    tail = (1 - _LEVEL) / 2
    # Ends that are resamples themselves, because some may be infinite.
    low, high = np.quantile(found, [tail, 1 - tail], method="inverted_cdf")
    earlier = x[x < at] if math.isfinite(at) else x[-1:]
    return Crossing(
        target,
        at,
        float(earlier[-1]) if earlier.size else math.nan,
        float(low),
        float(high),
        float(np.isinf(found).mean()),
        len(y),
    )


def trajectories_for_rate(rate: float, delta: float = 0.05) -> int:
    """Returns how many trajectories without violation put the violation rate below `rate`.

    The same number sees at least one violation with chance 1 - delta if the rate is `rate`.
    """
    check_level(delta)
    if not 0 < rate < 1:
        raise InputError(f"the rate must be in (0, 1), got {rate}.")
    n = max(1, math.ceil(math.log(delta) / math.log1p(-rate)))
    # Rounding may have moved the quotient over a whole number.
    while zero_count_upper(n, delta) > rate:
        n += 1
    while n > 1 and zero_count_upper(n - 1, delta) <= rate:
        n -= 1
    return n


def detectable_rate(n: int, delta: float = 0.05) -> float:
    """Returns the violation rate that n trajectories show at least once with chance 1 - delta.

    It is also the upper limit of the rate if they show none.
    """
    check_level(delta)
    if n < 1:
        raise InputError(f"need at least 1 trajectory, got {n}.")
    return zero_count_upper(n, delta)
