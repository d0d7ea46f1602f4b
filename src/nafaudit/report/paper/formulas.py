"""The paper's formulas over intervals; U_EBB itself is `nafaudit.stats.ebb` and nothing else."""

from __future__ import annotations

import math

from nafaudit.report.paper.interval import Interval, corners, interval
from nafaudit.report.paper.source import Paper, Row
from nafaudit.stats import Moments, ebb, implied_range

_NO_REACH = 1e-9


def u_ebb(mean: Interval, variance: Interval, n: int, reach: Interval, delta: float) -> Interval:
    """U_EBB of a row; it rises in mean, variance and range."""

    def value(m: float, v: float, r: float) -> float:
        return ebb(Moments(m, max(v, 0.0), n), r, delta).value

    return corners(value, (mean, 1), (variance, 1), (reach, 1))


def stage1_u(row: Row, reach: Interval, delta: float) -> Interval:
    """U_EBB of a row of the first stage."""
    return u_ebb(row.number("mean"), row.number("var"), row.count("M"), reach, delta)


def deterministic(reach: Interval, n: int, delta: float) -> Interval:
    """The third term of U_EBB: 3 R ln(2/delta) / n."""
    return u_ebb(interval(0), interval(0), n, reach, delta)


def implied_reach(row: Row, delta: float) -> Interval:
    """The R_eff behind a printed U_EBB of the first stage."""

    def value(upper: float, mean: float, variance: float) -> float:
        reach = implied_range(upper, Moments(mean, variance, row.count("M")), delta)
        # A mean above its own bound implies no range at all.
        return max(reach, _NO_REACH)

    printed = (row.number(column) for column in ("U_Reff", "mean", "var"))
    return corners(value, *zip(printed, (1, -1, -1), strict=True))


def implied_count(row: Row, reach: Interval, delta: float) -> Interval:
    """The M behind a printed U_EBB of the first stage."""

    def value(upper: float, mean: float, variance: float, r: float) -> float:
        level = math.log(2.0 / delta)
        constant, slope = 3.0 * r * level, math.sqrt(2.0 * variance * level)
        # U_EBB - mean = slope x + constant x^2 with x = 1 / sqrt(M); a mean above it has no M.
        gap = max(upper - mean, _NO_REACH)
        return ((slope + math.sqrt(slope**2 + 4.0 * constant * gap)) / (2.0 * gap)) ** 2

    printed = (row.number(column) for column in ("U_R", "mean", "var"))
    return corners(value, *zip((*printed, reach), (-1, 1, 1, 1), strict=True))


def rho(row: Row) -> Interval | None:
    """U_EBB / B_eff of a row of the second stage; None where B_eff is 0, which is invalid."""
    budget = row.number("B")
    if budget.low <= 0:
        return None
    # A budget is never negative, so what rounds to it is not either.
    return row.number("U") / budget


def implied_variance(upper: float, mean: float, reach: float, n: int, delta: float) -> float:
    """The variance behind a printed mean, U_EBB and range."""
    fixed = ebb(Moments(mean, 0.0, n), reach, delta).value
    return max(0.0, upper - fixed) ** 2 * n / (2.0 * math.log(2.0 / delta))


def projected(row: Row, reach: Interval, n: int, delta: float) -> Interval:
    """U_EBB at another n with the row's mean, variance and range held fixed."""

    def value(upper: float, mean: float, r: float) -> float:
        variance = implied_variance(upper, mean, r, row.count("N"), delta)
        return ebb(Moments(mean, variance, n), r, delta).value

    # More mean or range leaves less variance, whose term shrinks slower with n than the range's.
    up = 1 if n >= row.count("N") else -1
    return corners(value, (row.number("U"), 1), (row.number("mean"), up), (reach, -up))


def possible_variance(reach: Interval, n: int) -> Interval:
    """The sample variances that n values with this range can have.

    Smallest with one value at either end and the rest half-way, largest with half at either end.
    """
    ends = (n // 2) * (n - n // 2) / (n * (n - 1))
    return Interval(reach.low**2 / (2 * (n - 1)), reach.high**2 * ends)


def possible_reach(row: Row, delta: float) -> Interval:
    """The ranges that n values with a printed mean and U_EBB can have."""
    n, level = row.count("N"), math.log(2.0 / delta)
    width = row.number("U") - row.number("mean")
    most = math.sqrt(2.0 * possible_variance(interval(1), n).high * level / n)
    least = math.sqrt(2.0 * possible_variance(interval(1), n).low * level / n)
    unit = deterministic(interval(1), n, delta)
    return Interval((width / (unit + most)).low, (width / (unit + least)).high)


def largest_spend(row: Row, reach: Interval) -> Interval:
    """Bounds of the largest spend of n trajectories with this mean and range."""
    n, mean = row.count("N"), row.number("mean")
    return Interval((mean + reach / n).low, (mean + reach * ((n - 1) / n)).high)


def debt(paper: Paper, row: Row) -> Interval:
    """K - B_eff, the prefix debt of a prompt all of whose trajectories ran to the limit."""
    return interval(paper.budget(row.count("k"))) - row.number("B")
