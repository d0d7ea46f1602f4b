"""What a count of violations says about the rate of violations."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betainccinv, betaincinv, betaln, xlog1py, xlogy

from nafaudit.core.errors import InputError
from nafaudit.stats.bound import Assumption, BoundSpec, check_level
from nafaudit.stats.roots import first_true


def zero_count_upper(n: int, significance: float = 0.05) -> float:
    """One-sided Clopper-Pearson upper limit of a rate after 0 events in n trials.

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
    """Largest rate under which so few events have at least chance delta; 1 if all are."""
    tries = np.maximum(n - events, 0.5)
    limits = betainccinv(events + 1.0, tries, delta)
    return np.where(events >= n, 1.0, limits)


def clopper_pearson(events: int, n: int, delta: float) -> tuple[float, float]:
    """Lower and upper limit of a rate, each missed with chance at most delta.

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
    """Log of the mean likelihood ratio of smaller rates, weighted by Beta(1/2, 1/2), to `rate`."""
    others = n - events
    with np.errstate(divide="ignore", invalid="ignore"):
        below = betaln(events + 0.5, others + 0.5) + np.log(
            betainc(events + 0.5, others + 0.5, rate)
        )
        weight = betaln(0.5, 0.5) + np.log(betainc(0.5, 0.5, rate))
        itself = xlogy(events, rate) + xlog1py(others, -rate)
    return np.asarray(below - weight - itself)


def anytime_rate_upper(events: NDArray[np.float64], n: int, delta: float) -> NDArray[np.float64]:
    """Smallest rate that the evidence for smaller ones refutes; 1 if all trials are events."""

    def refuted(rate: NDArray[np.float64]) -> NDArray[np.bool_]:
        return _log_evidence(events, n, rate) >= -math.log(delta)

    limits = first_true(refuted, events / n, np.ones_like(events))
    return np.where(events >= n, 1.0, limits)


def anytime_rate(events: int, n: int, delta: float) -> float:
    """Upper limit of a rate that holds however often one looks, at level delta."""
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
