"""Bounds that need only mean, variance and n, so that printed tables can be recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import total
from nafaudit.stats.bound import Assumption, Bound, BoundSpec, check_level

Numbers = float | NDArray[np.float64]
_IID_RANGE = (Assumption.IID, Assumption.RANGE, Assumption.FIXED_N)


@dataclass(frozen=True)
class Moments:
    """A sample as a table prints it.

    Attributes:
        mean: Arithmetic mean.
        variance: With divisor n - 1; 0 for a single value, as the paper's code has it.
        n: How many values.
        low: Smallest value; NaN if the table does not say.
        top: Largest value; NaN if the table does not say.
    """

    mean: float
    variance: float
    n: int
    low: float = math.nan
    top: float = math.nan

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"n must be at least 1, got {self.n}.")
        if not (math.isfinite(self.mean) and 0 <= self.variance < math.inf):
            raise InputError(
                f"need a finite mean and variance at least 0, got {self.mean}, {self.variance}."
            )

    @classmethod
    def of(cls, values: Iterable[float]) -> Moments:
        """Moments of a list, the same to the last bit in any order."""
        data = [float(value) for value in values]
        if not data:
            raise InputError("moments need at least 1 value, got none.")
        mean = total(data) / len(data)
        squares = total((value - mean) ** 2 for value in data)
        variance = squares / (len(data) - 1) if len(data) > 1 else 0.0
        return cls(mean, variance, len(data), min(data), max(data))

    @property
    def spread(self) -> float:
        """Largest minus smallest value."""
        return self.top - self.low


def paper_range(max_new_tokens: int, vocabulary: int) -> float:
    """The paper's R = T ln|V|, in nats; entropy obeys it, a KL divergence need not."""
    if max_new_tokens < 1 or vocabulary < 2:
        raise InputError(f"need T >= 1 and |V| >= 2, got {max_new_tokens} and {vocabulary}.")
    return max_new_tokens * math.log(vocabulary)


def effective_range(spread: float, high: float) -> float:
    """The paper's R_eff = min(R, max(largest - smallest, 1))."""
    return min(high, max(spread, 1.0))


def _bernstein(mean: Numbers, variance: Numbers, n: int, level: float) -> NDArray[np.float64]:
    return np.asarray(mean + np.sqrt(2.0 * np.asarray(variance) * level / n))


def ebb_value(
    mean: Numbers, variance: Numbers, n: int, reach: Numbers, delta: float
) -> NDArray[np.float64]:
    """Computes mean + sqrt(2 s^2 l / n) + 3 reach l / n with l = ln(2/delta)."""
    level = math.log(2.0 / delta)
    return np.asarray(_bernstein(mean, variance, n, level) + 3.0 * reach * level / n)


def maurer_pontil_value(
    mean: Numbers, variance: Numbers, n: int, high: float, delta: float
) -> NDArray[np.float64]:
    """Computes mean + sqrt(2 s^2 l / n) + 7 R l / (3 (n - 1)) with l = ln(2/delta)."""
    level = math.log(2.0 / delta)
    return np.asarray(_bernstein(mean, variance, n, level) + 7.0 * high * level / (3.0 * (n - 1)))


def hoeffding_value(mean: Numbers, n: int, high: float, delta: float) -> NDArray[np.float64]:
    """Computes mean + R sqrt(ln(1/delta) / (2 n))."""
    return np.asarray(mean + high * math.sqrt(math.log(1.0 / delta) / (2.0 * n)))


def ebb(
    data: Moments | Iterable[float], high: float, delta: float, *, effective: bool = False
) -> Bound:
    """U_EBB as the paper's code computes it, for any input; `holds` says if it is a bound.

    One value has variance 0, and values above R are accepted: tables must be reproducible.
    Whatever is known to break the bound is in `note`, and `holds` is False then.

    Args:
        data: The values, or their moments.
        high: R, the paper's T ln|V|, or K in its second stage.
        delta: One-sided level, after any correction for many looks.
        effective: Uses R_eff, the range seen, in place of R. That is a proxy, never a bound.
    """
    check_level(delta)
    if not 0 < high < math.inf:
        raise InputError(f"R must be above 0 and finite, got {high}.")
    moments = data if isinstance(data, Moments) else Moments.of(data)
    spec = EBB_EFFECTIVE if effective else EBB
    if effective and math.isnan(moments.spread):
        raise InputError("R_eff needs the smallest and largest value; these moments have none.")
    reach = effective_range(moments.spread, high) if effective else high
    value = float(ebb_value(moments.mean, moments.variance, moments.n, reach, delta))
    notes = ["a proxy: nothing makes it valid"] if effective else []
    if moments.n < EBB.least:
        notes.append("n = 1 has no variance")
    if moments.low < 0 or moments.top > high:
        notes.append(f"values outside [0, {high:g}]")
    return Bound(
        spec.name, value, moments.mean, moments.n, delta, spec.assumes, "; ".join(notes),
        holds=not notes,
    )  # fmt: skip


def implied_range(upper: float, moments: Moments, delta: float) -> float:
    """The range behind a printed U_EBB: what a table does not say about its largest value."""
    check_level(delta)
    level = math.log(2.0 / delta)
    rest = upper - moments.mean - math.sqrt(2.0 * moments.variance * level / moments.n)
    return rest * moments.n / (3.0 * level)


def _ebb_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    return ebb_value(rows.mean(axis=1), rows.var(axis=1, ddof=1), rows.shape[1], high, delta)


def _effective_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    reach = np.minimum(high, np.maximum(np.ptp(rows, axis=1), 1.0))
    return ebb_value(rows.mean(axis=1), rows.var(axis=1, ddof=1), rows.shape[1], reach, delta)


def _maurer_pontil_rows(
    rows: NDArray[np.float64], high: float, delta: float
) -> NDArray[np.float64]:
    variance = rows.var(axis=1, ddof=1)
    return maurer_pontil_value(rows.mean(axis=1), variance, rows.shape[1], high, delta)


def _hoeffding_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    return hoeffding_value(rows.mean(axis=1), rows.shape[1], high, delta)


EBB = BoundSpec(
    name="ebb",
    about="mean",
    assumes=_IID_RANGE,
    formula="mean + s sqrt(2 l/n) + 3 R l/n, l = ln(2/delta); the paper's U_EBB, with "
    "R = T ln(vocabulary)",
    reference="Audibert, Munos and Szepesvari (2009), Theoretical Computer Science 410",
    rows=_ebb_rows,
    least=2,
)
EBB_EFFECTIVE = BoundSpec(
    name="ebb-reff",
    about="mean",
    assumes=_IID_RANGE,
    formula="as ebb with R_eff = min(R, max(largest - smallest, 1)), the range seen; a proxy that "
    "nothing makes valid",
    reference="the paper; no proof",
    rows=_effective_rows,
    least=2,
    proven=False,
)
MAURER_PONTIL = BoundSpec(
    name="maurer-pontil",
    about="mean",
    assumes=_IID_RANGE,
    formula="mean + s sqrt(2 l/n) + 7 R l/(3 (n - 1)), l = ln(2/delta)",
    reference="Maurer and Pontil (2009), COLT, theorem 4",
    rows=_maurer_pontil_rows,
    least=2,
)
HOEFFDING = BoundSpec(
    name="hoeffding",
    about="mean",
    assumes=_IID_RANGE,
    formula="mean + R sqrt(ln(1/delta)/(2 n))",
    reference="Hoeffding (1963), Journal of the American Statistical Association 58, theorem 2",
    rows=_hoeffding_rows,
)
