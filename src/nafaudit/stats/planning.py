"""What a number of trajectories can show, said before they are paid for."""

from __future__ import annotations

import math

from nafaudit.core.errors import InputError
from nafaudit.stats.bound import check_level
from nafaudit.stats.rates import zero_count_upper


def trajectories_for_rate(rate: float, delta: float = 0.05) -> int:
    """How many trajectories without a violation put the violation rate below `rate`.

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
    """The violation rate that n independent trajectories show at least once, chance 1 - delta.

    It is also the upper limit of the rate if they show none.
    """
    check_level(delta)
    if n < 1:
        raise InputError(f"need at least 1 trajectory, got {n}.")
    return zero_count_upper(n, delta)


def detection_chance(rate: float, n: int) -> float:
    """Chance that n independent trajectories show a violation of this rate."""
    if not 0 <= rate <= 1 or n < 0:
        raise InputError(f"need a rate in [0, 1] and n >= 0, got {rate} and {n}.")
    return 1.0 if rate == 1 and n else -math.expm1(n * math.log1p(-rate)) if n else 0.0


def trajectories_for_mean(typical: float, limit: float, high: float, delta: float = 0.05) -> int:
    """Least n with which any bound can put a mean below `limit`, all values being `typical`.

    A law with value R = `high` and chance 1 - delta^(1/n) otherwise looks the same with
    chance delta, so no valid bound can be smaller than R - delta^(1/n) (R - typical).
    """
    check_level(delta)
    if not 0 <= typical < limit <= high:
        raise InputError(
            f"need 0 <= typical < limit <= R, got {typical:g}, {limit:g} and {high:g}."
        )
    if limit == high:
        return 1
    return max(1, math.ceil(-math.log(delta) / math.log((high - typical) / (high - limit))))


def design_effect(per_prompt: float, correlation: float) -> float:
    """How many trajectories of one prompt are worth one independent one: 1 + (m - 1) ICC.

    Reference: Kish (1965), Survey Sampling.
    """
    if per_prompt < 1 or not 0 <= correlation <= 1:
        raise InputError(
            f"need at least 1 per prompt and a correlation in [0, 1], got {per_prompt} and "
            f"{correlation}."
        )
    return 1.0 + (per_prompt - 1.0) * correlation
