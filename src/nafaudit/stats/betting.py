"""Bounds by betting, and the closed form of the predictable plug-in.

Against a mean m, the gambler stakes a share g of the capital on each value. If m is true the
capital is a martingale from 1, and passes 1/delta with probability at most delta, ever (Ville).
Several shares are played side by side, so that none has to be chosen.

Both sides are one game. Against too small a mean of values y >= 0 a stake's factor is
1 + g (y/m - 1) = (1 - g) + g y/m. Against too large a mean of x in [0, R], the game is played
on y = R - x. The logarithm of the capital is convex in -ln m, so Newton's steps find the m at
which it passes 1/delta, from the side on which the bound is valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.stats.bound import Assumption, BoundSpec, Sample, check_level

# Shares of the capital that are staked: all of it, for samples with hardly any spread, and a
# grid from careful to bold.
STAKES = np.geomspace(0.01, 0.9, 15)
ALL_IN_WEIGHT, STAKE_WEIGHT = 0.25, 0.05
_LOG_WEIGHTS = np.log([ALL_IN_WEIGHT] + [STAKE_WEIGHT] * STAKES.size)
# Rows times values times stakes at once: what a core's cache holds.
_CHUNK = 150_000
_REFERENCE = "Waudby-Smith and Ramdas (2024), Journal of the Royal Statistical Society B 86"


def _mix(logs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the log of the sum weighted over stakes (last axis), and each stake's share in it."""
    weighted = logs + _LOG_WEIGHTS
    top = weighted.max(axis=-1, keepdims=True)
    parts = np.exp(weighted - top)
    sums = parts.sum(axis=-1, keepdims=True)
    return np.asarray((top + np.log(sums))[..., 0]), np.asarray(parts / sums)


def _factors(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Computes (1 - g) + g y for every stake but all-in; `rows` is y/m."""
    return np.asarray((1.0 - STAKES) + STAKES * rows[:, :, None])


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values))


def _paths(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Computes the log capital after each value of each row; `rows` is y/m."""
    all_in = _log(rows)[:, :, None]
    logs = np.concatenate([all_in, _log(_factors(rows))], axis=2)
    return _mix(logs.cumsum(axis=1))[0]


def _pass_level(rows: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """Finds the t at which the capital against the mean e^-t reaches 1/delta; rows have mean 1.

    At t = 0 the capital is at most 1, by Jensen's inequality. A Newton step on a convex
    function lands beyond the root, so all t but the first are valid.
    """
    n, level = rows.shape[1], -math.log(delta)
    t, base = np.zeros(len(rows)), _log(rows).sum(axis=1)
    for _ in range(100):
        factors = _factors(rows * np.exp(t)[:, None])
        all_in = (base + n * t)[:, None]
        value, shares = _mix(np.concatenate([all_in, np.log(factors).sum(axis=1)], axis=1))
        slopes = n - ((1.0 - STAKES) / factors).sum(axis=1)
        slope = shares[:, 0] * n + (shares[:, 1:] * slopes).sum(axis=1)
        step = np.minimum((level - value) / slope, 50.0)
        t = np.maximum(t + step, 0.0)
        if np.abs(step).max() < 1e-13 * (1.0 + t.max()):
            break
    return t


def _refuted_mean(rows: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """Finds the largest mean that the capital refutes, by row of values y >= 0; 0 if none is."""
    result, centre = np.zeros(len(rows)), rows.mean(axis=1)
    some = np.flatnonzero(centre > 0)
    size = max(1, _CHUNK // (rows.shape[1] * STAKES.size))
    for start in range(0, some.size, size):
        part = some[start : start + size]
        t = _pass_level(rows[part] / centre[part, None], delta)
        result[part] = centre[part] * np.exp(-t)
    return result


def _missed(rows: NDArray[np.float64], mean: float, delta: float) -> NDArray[np.bool_]:
    size = max(1, _CHUNK // (rows.shape[1] * STAKES.size))
    parts = [_paths(rows[at : at + size] / mean) for at in range(0, len(rows), size)]
    return np.asarray(np.concatenate(parts) > -math.log(delta))


def betting_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    """Computes the mixture betting upper bound of each row of values in [0, high]."""
    return high * (1.0 - _refuted_mean(1.0 - rows / high, delta))


def betting_missed(
    rows: NDArray[np.float64], mean: float, high: float, delta: float
) -> NDArray[np.bool_]:
    """Returns True where the upper bound after that many values lies below the mean."""
    return _missed(1.0 - rows / high, 1.0 - mean / high, delta)


def lower_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    """Computes the mixture betting lower bound of rows of values >= 0; `high` is not used."""
    del high
    return _refuted_mean(rows, delta)


def lower_missed(
    rows: NDArray[np.float64], mean: float, high: float, delta: float
) -> NDArray[np.bool_]:
    """Returns True where the lower bound after that many values lies above the mean."""
    del high
    return _missed(rows, mean, delta)


def e_values(sample: Sample, limit: float) -> NDArray[np.float64]:
    """Computes the evidence against "the mean is at most `limit`" after each value; no range.

    If the mean is at most the limit, the chance that this ever reaches 1/alpha is at most
    alpha, however often one looks. The product of e-values of independent samples is one too.

    Raises:
        InputError: For values below 0, a limit that is not above 0, or several values of one
            prompt.
    """
    if not 0 < limit < math.inf:
        raise InputError(f"the limit must be above 0 and finite, got {limit}.")
    BETTING_LOWER.check(sample)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(_paths(sample.values[None, :] / limit)[0]))


BETTING = BoundSpec(
    name="betting",
    about="mean",
    assumes=(Assumption.SAME_MEAN, Assumption.RANGE),
    formula="smallest m with sum_g w_g prod (1 + g (m - x)/(R - m)) >= 1/delta, "
    "g in {1} and 15 from 0.01 to 0.9, w = 1/4 and 1/20 each; the default",
    reference=_REFERENCE,
    rows=betting_rows,
    missed=betting_missed,
)
BETTING_LOWER = BoundSpec(
    name="betting-lower",
    about="mean",
    assumes=(Assumption.SAME_MEAN, Assumption.NONNEGATIVE),
    formula="largest m with sum_g w_g prod (1 + g (x/m - 1)) >= 1/delta, g and w as in betting",
    reference=_REFERENCE,
    rows=lower_rows,
    side="lower",
    missed=lower_missed,
)
BETTING_PROMPTS = BoundSpec(
    name="betting-prompts",
    about="mean",
    assumes=(Assumption.CLUSTERS, Assumption.SAME_MEAN, Assumption.RANGE),
    formula="betting on the mean of each prompt's values",
    reference=_REFERENCE,
    rows=betting_rows,
    missed=betting_missed,
)


# Largest bet; smaller is better for large n, larger for small n.
TRUNCATION = 0.75


def _sequences(rows: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """Computes the upper bound of the mean in [0, 1] after each value of each row."""
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
    """Computes the upper bound of each row of values in [0, high], in their order."""
    return high * _sequences(rows / high, delta)[:, -1]


def prpl_missed(
    rows: NDArray[np.float64], mean: float, high: float, delta: float
) -> NDArray[np.bool_]:
    """Returns True where the bound after that many values lies below the mean."""
    return high * _sequences(rows / high, delta) < mean


def prpl_sequence(sample: Sample, alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Computes lower and upper ends after each value; all hold at once with chance 1 - alpha.

    Each side spends alpha/2. Ends are clipped to [0, R], not intersected over time.
    """
    check_level(alpha)
    PRPL.check(sample)
    rows = sample.values[None, :] / sample.high
    upper = sample.high * _sequences(rows, alpha / 2)[0]
    return sample.high * (1.0 - _sequences(1.0 - rows, alpha / 2)[0]), upper


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


Test = Callable[[NDArray[np.float64]], NDArray[np.bool_]]

# Halvings of an interval inside [0, 1]; what is left is below float64's spacing near 1.
STEPS = 54


def first_true(
    test: Test, low: NDArray[np.float64], high: NDArray[np.float64], steps: int = STEPS
) -> NDArray[np.float64]:
    """Returns the smallest argument at which `test` is True, rounded up.

    Args:
        test: False, then True, as its argument grows from low to high.
        low: Where it is False.
        high: Where it is True, or taken to be.
        steps: How often the interval is halved.
    """
    low, high = low.copy(), high.copy()
    for _ in range(steps):
        middle = 0.5 * (low + high)
        passed = test(middle)
        high = np.where(passed, middle, high)
        low = np.where(passed, low, middle)
    return high
