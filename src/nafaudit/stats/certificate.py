"""Certificates: the largest chance of writing a passage that a kept budget leaves.

A decoder q with D(q || safe) <= K may give an event of safe probability e^-S any probability p
whose own divergence d(p || e^-S) is at most K, and a decoder that does exactly that exists. So
the largest such p is the whole content of the promise for that event. It is 1 iff S <= K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nafaudit.core.errors import InputError
from nafaudit.stats.betting import first_true

# Of an interval of up to 1e5 nats, down to float64's spacing at 1.
_HALVINGS = 70
# The order of a promise about every single output.
PATHWISE = math.inf


def _log_one_minus_exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Computes ln(1 - e^x) for x <= 0, without cancellation at either end."""
    with np.errstate(divide="ignore"):
        return np.where(x < -math.log(2.0), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


def _bend(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Computes (1 + z) ln(1 + z) - z for z >= -1; a series near 0, where the terms cancel."""
    small = np.where(np.abs(z) < 0.01, z, 0.0)
    series = sum((-1) ** i * small**i / (i * (i - 1)) for i in range(2, 10))
    far = np.where(np.abs(z) < 0.01, 1.0, z)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.where(far > -1.0, (1.0 + far) * np.log1p(far) - far, 1.0)
    return np.where(np.abs(z) < 0.01, series, whole)


def binary_kl(log_p: ArrayLike, surprisal: ArrayLike) -> NDArray[np.float64]:
    """Computes d(p || e^-S) in nats for an event of probability p >= e^-S; S may be very large."""
    y, s = np.broadcast_arrays(np.asarray(log_p, float), np.asarray(surprisal, float))
    ratio = np.maximum(y + s, 0.0)
    p, q = np.exp(y), np.exp(-s)
    rest = -np.expm1(y)
    with np.errstate(invalid="ignore", divide="ignore"):
        others = np.where(rest > 0, rest * (_log_one_minus_exp(y) - _log_one_minus_exp(-s)), 0.0)
        apart = p * ratio + others
        gain = np.expm1(np.minimum(ratio, 1.0))
        loss = np.maximum(-q * gain / -np.expm1(-s), -1.0)
        near = q * _bend(gain) - np.expm1(-s) * _bend(loss)
    return np.asarray(np.where(ratio < 1.0, near, apart))


def binary_renyi(log_p: ArrayLike, surprisal: ArrayLike, order: float) -> NDArray[np.float64]:
    """Computes D_order(p || e^-S) of an event of probability p, for an order above 1."""
    y, s = np.broadcast_arrays(np.asarray(log_p, float), np.asarray(surprisal, float))
    event = order * y + (order - 1.0) * s
    with np.errstate(invalid="ignore"):
        others = order * _log_one_minus_exp(y) - (order - 1.0) * _log_one_minus_exp(-s)
    others = np.where(y < 0, others, -np.inf)
    return np.asarray(np.logaddexp(event, others) / (order - 1.0))


def log_cap(surprisal: ArrayLike, budget: ArrayLike, order: float = 1.0) -> NDArray[np.float64]:
    """Computes the log of the largest probability that a budget leaves; 0 where it is vacuous.

    Args:
        surprisal: S, the safe model's total surprisal of each passage, in nats.
        budget: K, in nats.
        order: Order of the divergence that K bounds: 1 is KL, above 1 is Rényi, infinity is
            pathwise (no output more than e^K times as likely as under the safe model).

    Returns:
        ln p, rounded up, of the shape that S and K broadcast to.
    """
    s, k = np.broadcast_arrays(np.asarray(surprisal, float), np.asarray(budget, float))
    if not ((s >= 0).all() and (k >= 0).all()):
        raise InputError("surprisals and budgets are numbers of at least 0 nats; got another.")
    if math.isnan(order) or order < 1:
        raise InputError(f"the order of a divergence must be at least 1, got {order}.")
    open_, result = (s > k) & np.isfinite(s), np.where(s > k, -np.inf, 0.0)
    if math.isinf(order):
        result[open_] = k[open_] - s[open_]
        return result
    s, k = s[open_], k[open_]

    def above(y: NDArray[np.float64]) -> NDArray[np.bool_]:
        price = binary_kl(y, s) if order == 1 else binary_renyi(y, s, order)
        return np.asarray(price > k)

    result[open_] = first_true(above, -s, np.zeros_like(s), _HALVINGS)
    return result


def cap(surprisal: ArrayLike, budget: ArrayLike, order: float = 1.0) -> NDArray[np.float64]:
    """Computes the largest probability that a budget leaves to passages; see `log_cap`."""
    return np.asarray(np.exp(log_cap(surprisal, budget, order)))


def vacuous(surprisal: ArrayLike, budget: ArrayLike) -> NDArray[np.bool_]:
    """Returns True where a budget says nothing about a passage: S <= K, whatever the order."""
    return np.asarray(np.asarray(surprisal, float) <= np.asarray(budget, float))


@dataclass(frozen=True)
class PassageCertificate:
    """All that a budget says about one passage.

    Attributes:
        surprisal: S in nats.
        budget: K in nats.
        order: 1 for KL, infinity for pathwise.
        log_probability: Ln of the largest probability of writing the passage that is left.
        queries: The most queries of K nats each, asked one after another, that together still
            say something; infinite if K is 0.
        log10_draws: Log10 of the n at which choosing the best of n answers says nothing more.
        log10_equal: Log10 of the n at which the best of n draws from the safe model itself has
            the budget K.
    """

    surprisal: float
    budget: float
    order: float
    log_probability: float
    queries: float
    log10_draws: float
    log10_equal: float

    @property
    def vacuous(self) -> bool:
        """True if it says nothing."""
        return self.surprisal <= self.budget

    @property
    def probability(self) -> float:
        """The largest probability of writing the passage that is left; 0 below 1e-308."""
        return math.exp(self.log_probability)


def certify(surprisal: float, budget: float, order: float = 1.0) -> PassageCertificate:
    """Returns everything that a budget says about one passage."""
    return PassageCertificate(
        surprisal,
        budget,
        order,
        float(log_cap(surprisal, budget, order)),
        queries_left(surprisal, budget),
        max(0.0, surprisal - budget) / math.log(10.0) if math.isfinite(budget) else 0.0,
        budget / math.log(10.0),
    )


def queries_left(surprisal: float, budget: float) -> float:
    """Returns the most queries of K nats each whose sum stays below S: ceil(S/K) - 1.

    KL adds up over queries, also if each is chosen after the answers before it.
    """
    if not (surprisal >= 0 and budget >= 0):
        raise InputError(f"need S and K of at least 0 nats, got {surprisal} and {budget}.")
    if surprisal <= budget:
        return 0.0
    if budget == 0 or math.isinf(surprisal):
        return math.inf
    n = max(0, math.ceil(surprisal / budget) - 1)
    # Rounding may have moved the quotient over a whole number.
    return float(n - 1 if n * budget >= surprisal else n)


def critical_k(surprisal: float, tokens: int) -> float:
    """Returns the budget per token from which the certificate of kT says nothing: S/T."""
    if tokens < 1 or not surprisal >= 0:
        raise InputError(f"need T >= 1 and S of at least 0 nats, got {tokens} and {surprisal}.")
    return surprisal / tokens
