"""Where a mean curve first reaches a target, and how often a resample of its units does not.

A bootstrap that keeps only the resamples which cross makes an uncertain crossing look certain. Here
a resample without a crossing counts as beyond the grid, and its share stands beside the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
_LEVEL = 0.95


@dataclass(frozen=True)
class Crossing:
    """Where a curve reaches a target.

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
    """Where each curve [curves, grid] first reaches its target; infinite if nowhere."""
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
    """Weights of the units in each resample with replacement [resamples, units]; rows sum to 1."""
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
        resamples: Of the units, with replacement.
        seed: Of the resamples: the same units give the same interval.
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
