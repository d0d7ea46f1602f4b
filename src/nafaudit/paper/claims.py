"""Claims of the paper, the values that follow from its own numbers, and their comparison.

Formulas are those of the paper over intervals; U_EBB itself is `nafaudit.stats.ebb`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from nafaudit.core.errors import InputError, nearest
from nafaudit.paper.printed import Paper, PrintedRow, Rounded, about, corners, exact, rounded
from nafaudit.stats import Moments, ebb, implied_range

_NO_RANGE = 1e-9


class ClaimVerdict(StrEnum):
    """Result of a recomputation for one printed cell or claim."""

    AGREE = "agree"
    DISAGREE = "disagree"
    DEPENDS = "depends on the reading"
    """It disagrees by one fair reading of the paper's words, and not by another."""
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True)
class Claim:
    """A printed cell or sentence that can be recomputed.

    Attributes:
        point: Subject; claims of one point are right or wrong together.
        where: Place in the paper.
        printed: Printed number or words.
        says: Description of the computed value.
        allowed: The values for which the printed text is right.
        computed: The values that the rounding of the inputs allows.
        released: True if it uses numbers that were published beside the paper.
        reading: Numbers that words were read as; empty for a number.
        open: True if another fair reading of its words makes it right.
    """

    point: str
    where: str
    printed: str
    says: str
    allowed: Rounded
    computed: Rounded
    released: bool = False
    reading: str = ""
    open: bool = False

    @property
    def verdict(self) -> ClaimVerdict:
        """Agreement if some value is allowed by both."""
        if self.allowed.meets(self.computed):
            return ClaimVerdict.AGREE
        return ClaimVerdict.DEPENDS if self.open else ClaimVerdict.DISAGREE

    @property
    def text(self) -> str:
        """One sentence with both numbers."""
        reading = f" (read as {self.reading})" if self.reading else ""
        basis = " (from summaries that the authors released)" if self.released else ""
        return f"printed {self.printed}{reading}; computed {self.computed}, {self.says}{basis}"


@dataclass(frozen=True)
class Unchecked:
    """A printed cell that no printed or released number can test.

    Attributes:
        where: Place in the paper.
        printed: Printed text.
        why: Data that would be needed.
    """

    where: str
    printed: str
    why: str

    @property
    def verdict(self) -> ClaimVerdict:
        """Always `NOT_CHECKABLE`."""
        return ClaimVerdict.NOT_CHECKABLE


Cell = Claim | Unchecked

# Values of U_EBB over its budget for the words of a status column.
PASS_MARKS = {"pass": Rounded(0.0, 1.0), "fail": Rounded(math.nextafter(1.0, 2.0), math.inf)}

_RULES: dict[str, Callable[[str], Rounded]] = {
    "rounded": rounded,
    "about": about,
    "exactly": lambda text: exact(float(text)),
    "at most": lambda text: Rounded(-math.inf, float(text)),
    "at least": lambda text: Rounded(float(text), math.inf),
    "below": lambda text: Rounded(-math.inf, math.nextafter(float(text), -math.inf)),
}


def allowed(printed: str, rule: str) -> Rounded:
    """Returns the values for which a printed number or word is right.

    Args:
        printed: As printed; for `reads` any words.
        rule: `rounded` (all digits count), `about` ("approximately"), `exactly` (a count),
            `at most`, `at least`, `below`, or `reads LOW HIGH`, our reading of words.
    """
    if rule.startswith("reads "):
        low, high = (float(end) for end in rule.split()[1:])
        return Rounded(low, high)
    if rule not in _RULES:
        raise InputError(f"unknown rule {rule!r}{nearest(rule, _RULES)}")
    return _RULES[rule](printed)


def u_ebb(mean: Rounded, variance: Rounded, n: int, range_: Rounded, delta: float) -> Rounded:
    """Returns U_EBB of a row; it rises in mean, variance and range."""

    def value(m: float, v: float, r: float) -> float:
        return ebb(Moments(m, max(v, 0.0), n), r, delta).value

    return corners(value, (mean, 1), (variance, 1), (range_, 1))


def stage1_u(row: PrintedRow, range_: Rounded, delta: float) -> Rounded:
    """Returns U_EBB of a row of the first stage."""
    return u_ebb(row.number("mean"), row.number("var"), row.count("M"), range_, delta)


def deterministic(range_: Rounded, n: int, delta: float) -> Rounded:
    """Returns the third term of U_EBB: 3 R ln(2/delta) / n."""
    return u_ebb(exact(0), exact(0), n, range_, delta)


def range_behind(row: PrintedRow, delta: float) -> Rounded:
    """Returns the R_eff behind a printed U_EBB of the first stage."""

    def value(upper: float, mean: float, variance: float) -> float:
        found = implied_range(upper, Moments(mean, variance, row.count("M")), delta)
        # A mean above its own bound implies no range at all.
        return max(found, _NO_RANGE)

    printed = (row.number(column) for column in ("U_Reff", "mean", "var"))
    return corners(value, *zip(printed, (1, -1, -1), strict=True))


def count_behind(row: PrintedRow, range_: Rounded, delta: float) -> Rounded:
    """Returns the M behind a printed U_EBB of the first stage."""

    def value(upper: float, mean: float, variance: float, r: float) -> float:
        level = math.log(2.0 / delta)
        constant, slope = 3.0 * r * level, math.sqrt(2.0 * variance * level)
        # U_EBB - mean = slope x + constant x^2 with x = 1 / sqrt(M); a mean above it has no M.
        gap = max(upper - mean, _NO_RANGE)
        return ((slope + math.sqrt(slope**2 + 4.0 * constant * gap)) / (2.0 * gap)) ** 2

    printed = (row.number(column) for column in ("U_R", "mean", "var"))
    return corners(value, *zip((*printed, range_), (-1, 1, 1, 1), strict=True))


def rho(row: PrintedRow) -> Rounded | None:
    """Returns U_EBB / B_eff of a row of the second stage; None where B_eff is 0: invalid."""
    budget = row.number("B")
    # A budget is never negative, so what rounds to it is not either.
    return row.number("U") / budget if budget.low > 0 else None


def variance_behind(upper: float, mean: float, range_: float, n: int, delta: float) -> float:
    """Returns the variance behind a printed mean, U_EBB and range."""
    fixed = ebb(Moments(mean, 0.0, n), range_, delta).value
    return max(0.0, upper - fixed) ** 2 * n / (2.0 * math.log(2.0 / delta))


def projected(row: PrintedRow, range_: Rounded, n: int, delta: float) -> Rounded:
    """Returns U_EBB at another n with the row's mean, variance and range held fixed."""

    def value(upper: float, mean: float, r: float) -> float:
        variance = variance_behind(upper, mean, r, row.count("N"), delta)
        return ebb(Moments(mean, variance, n), r, delta).value

    # More mean or range leaves less variance, whose term shrinks slower with n than the range's.
    up = 1 if n >= row.count("N") else -1
    return corners(value, (row.number("U"), 1), (row.number("mean"), up), (range_, -up))


def possible_variance(range_: Rounded, n: int) -> Rounded:
    """Returns the sample variances that n values with this range can have.

    Smallest with one value at either end and the rest half-way, largest with half at either end.
    """
    ends = (n // 2) * (n - n // 2) / (n * (n - 1))
    return Rounded(range_.low**2 / (2 * (n - 1)), range_.high**2 * ends)


def possible_range(row: PrintedRow, delta: float) -> Rounded:
    """Returns the ranges that n values with a printed mean and U_EBB can have."""
    n, level = row.count("N"), math.log(2.0 / delta)
    width = row.number("U") - row.number("mean")
    of_one = possible_variance(exact(1), n)
    most, least = (math.sqrt(2.0 * v * level / n) for v in (of_one.high, of_one.low))
    unit = deterministic(exact(1), n, delta)
    return Rounded((width / (unit + most)).low, (width / (unit + least)).high)


def largest_spend(row: PrintedRow, range_: Rounded) -> Rounded:
    """Returns bounds of the largest spend of n trajectories with this mean and range."""
    n, mean = row.count("N"), row.number("mean")
    return Rounded((mean + range_ / n).low, (mean + range_ * ((n - 1) / n)).high)


def debt(paper: Paper, row: PrintedRow) -> Rounded:
    """Returns K - B_eff, the prefix debt of a prompt whose trajectories all ran to the limit."""
    return exact(paper.budget(row.count("k"))) - row.number("B")
