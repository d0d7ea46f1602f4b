"""Bounds for a mean from its moments, its clusters or its order statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr, smirnov, smirnovi, stdtrit

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import total
from nafaudit.stats.betting import first_true
from nafaudit.stats.bound import Assumption, Bound, BoundSpec, check_level
from nafaudit.stats.rates import clopper_pearson_upper

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
        """Computes the moments of a list, equal to the last bit in any order."""
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


def mean(values: Sequence[float]) -> float:
    """Returns the mean, the same in any order; NaN of no values."""
    return total(values) / len(values) if values else math.nan


def quantile(values: Sequence[float], q: float) -> float:
    """Returns a quantile, interpolated unless a value is infinite; NaN of no values."""
    if not values:
        return math.nan
    method = "linear" if all(map(math.isfinite, values)) else "inverted_cdf"
    return float(np.quantile(values, q, method=method))  # type: ignore[call-overload]


def paper_range(max_new_tokens: int, vocabulary: int) -> float:
    """Returns the paper's R = T ln|V| in nats; entropy obeys it, a KL divergence need not."""
    if max_new_tokens < 1 or vocabulary < 2:
        raise InputError(f"need T >= 1 and |V| >= 2, got {max_new_tokens} and {vocabulary}.")
    return max_new_tokens * math.log(vocabulary)


def effective_range(spread: float, high: float) -> float:
    """Returns the paper's R_eff = min(R, max(largest - smallest, 1))."""
    return min(high, max(spread, 1.0))


def _bernstein(mean: Numbers, variance: Numbers, n: int, level: float) -> NDArray[np.float64]:
    return np.asarray(mean + np.sqrt(2.0 * np.asarray(variance) * level / n))


def ebb_range_term(reach: Numbers, n: int, delta: float) -> NDArray[np.float64]:
    """Computes 3 reach ln(2/delta) / n: of U_EBB the term without mean and variance."""
    return np.asarray(3.0 * reach * math.log(2.0 / delta) / n)


def ebb_value(
    mean: Numbers, variance: Numbers, n: int, reach: Numbers, delta: float
) -> NDArray[np.float64]:
    """Computes mean + sqrt(2 s^2 l / n) + 3 reach l / n with l = ln(2/delta)."""
    level = math.log(2.0 / delta)
    return np.asarray(_bernstein(mean, variance, n, level) + ebb_range_term(reach, n, delta))


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
    """Computes U_EBB as the paper's code does, for any input; `holds` says if it is a bound.

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
    """Returns the range behind a printed U_EBB, which a table does not print."""
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


def clustered_mean(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns the mean of all values and its standard error; groups are the independent units.

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
    """Computes P(|T| >= |t|) for Student's t with a whole number of degrees of freedom.

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
    """Computes Student's upper limit of the mean of rows of prompt means; `high` is not used."""
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


def smirnov_quantile(n: int, delta: float) -> float:
    """Returns how far the empirical law may rise above the true one, missed with chance delta."""
    gap = float(smirnovi(n, delta))
    # The inverse is rounded; a bound may only be rounded up.
    while float(smirnov(n, gap)) > delta:
        gap += 1e-12
    return gap


def anderson_rows(rows: NDArray[np.float64], high: float, delta: float) -> NDArray[np.float64]:
    """Computes R minus the area under the lower confidence band of each row's law."""
    n = rows.shape[1]
    gap = smirnov_quantile(n, delta)
    ends = np.concatenate([np.sort(rows, axis=1), np.full((len(rows), 1), high)], axis=1)
    heights = np.maximum(np.arange(1, n + 1) / n - gap, 0.0)
    return np.asarray(high - np.diff(ends, axis=1) @ heights)


def _kl_upper(mean: NDArray[np.float64], n: int, delta: float) -> NDArray[np.float64]:
    """Finds the smallest m above the mean with n kl(mean, m) >= ln(1/delta); 1 if none."""

    def far(m: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray(n * (rel_entr(mean, m) + rel_entr(1 - mean, 1 - m)) >= -math.log(delta))

    return first_true(far, mean, np.ones_like(mean))


def hoeffding_bentkus_rows(
    rows: NDArray[np.float64], high: float, delta: float
) -> NDArray[np.float64]:
    """Computes the smaller of the two bounds: the smaller of two valid p-values is used."""
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
