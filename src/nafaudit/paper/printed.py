"""Printed numbers, known only up to rounding, and the paper's tables of them.

Without intervals every misprint and every rounding would look alike. Every operation rounds
outwards, so the true value is never lost; where a quantity enters an expression twice, `corners`
keeps the interval as narrow as rounding allows.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from nafaudit.core.errors import InputError, nearest
from nafaudit.stats import paper_range

# Of the Llama 3 tokenizer. The paper prints only the R = T ln|V| that follows from it.
VOCABULARY = 128_256
# Files named released_* hold what the paper's authors published beside it. Such numbers come from
# the same authors, so whatever rests on them says so.
TABLES = (
    *("bernstein", "blowup", "debt", "overlap", "points", "projection", "quotes"),
    *("released_archive", "released_distinct", "released_generations", "released_overlap"),
    *("released_regime", "released_report", "released_summary"),
    *("search", "settings", "stage1", "stage2", "unchecked"),
)


@dataclass(frozen=True)
class Rounded:
    """All values from low to high, both included; either end may be infinite."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"an interval needs low <= high, got {self.low} and {self.high}.")

    def __add__(self, other: Rounded | float) -> Rounded:
        other = exact(other)
        return _outward(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Rounded:
        return Rounded(-self.high, -self.low)

    def __sub__(self, other: Rounded | float) -> Rounded:
        return self + -exact(other)

    def __mul__(self, other: Rounded | float) -> Rounded:
        other = exact(other)
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return _outward(min(ends), max(ends))

    def __truediv__(self, other: Rounded | float) -> Rounded:
        other = exact(other)
        if other.low <= 0 <= other.high:
            raise ZeroDivisionError(f"cannot divide by {other}, which holds 0.")
        ends = [a / b for a in (self.low, self.high) for b in (other.low, other.high)]
        return _outward(min(ends), max(ends))

    def __abs__(self) -> Rounded:
        if 0 in self:
            return Rounded(0.0, max(-self.low, self.high))
        return self if self.low > 0 else -self

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def meets(self, other: Rounded) -> bool:
        """True if some value lies in both."""
        return self.low <= other.high and other.low <= self.high

    @property
    def middle(self) -> float:
        """Half-way between the ends; the finite end if only one is."""
        if math.isinf(self.low) or math.isinf(self.high):
            return self.high if math.isinf(self.low) else self.low
        return (self.low + self.high) / 2

    @property
    def radius(self) -> float:
        """Half the width."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        if self.radius <= max(1e-6 * abs(self.middle), 1e-12):
            return f"{self.middle:.6g}" if abs(self.middle) > 1e-12 else "0"
        if self.radius <= 1e-4 * abs(self.middle):
            return f"{self.middle:.5g}"
        if math.isinf(self.radius):
            return f"at most {self.high:g}" if math.isinf(self.low) else f"at least {self.low:g}"
        # As many digits as the radius makes sense of, so that the last one shown means something.
        places = max(0, min(6, 1 - math.floor(math.log10(self.radius))))
        return f"{self.middle:.{places}f} ± {self.radius:.{places}f}"


def exact(value: Rounded | float) -> Rounded:
    """Returns a number as an interval without width."""
    return value if isinstance(value, Rounded) else Rounded(float(value), float(value))


def rounded(text: str) -> Rounded:
    """Returns every value that rounds to the printed digits; trailing zeros are digits."""
    value = _decimal(text)
    return _around(value, Decimal(1).scaleb(int(value.as_tuple().exponent)) / 2)


def about(text: str, relative: float = 0.01) -> Rounded:
    """Returns what "approximately" allows: half a unit of the last digit that is not 0, or 1 %."""
    value = _decimal(text)
    unit = Decimal(1).scaleb(int(value.normalize().as_tuple().exponent))
    return _around(value, max(unit / 2, abs(value) * Decimal(str(relative))))


def largest(values: Iterable[Rounded]) -> Rounded:
    """Returns the maximum of several."""
    found = list(values)
    return Rounded(max(v.low for v in found), max(v.high for v in found))


def smallest(values: Iterable[Rounded]) -> Rounded:
    """Returns the minimum of several."""
    return -largest(-v for v in values)


def average(values: Iterable[Rounded]) -> Rounded:
    """Returns the mean of several."""
    found = list(values)
    return sum(found[1:], start=found[0]) / len(found)


def corners(function: Callable[..., float], *arguments: tuple[Rounded, int]) -> Rounded:
    """Returns the range of a function that rises (+1) or falls (-1) in each argument.

    Args:
        function: Takes as many numbers as there are arguments.
        arguments: Pairs of an interval and the sign of the function's slope in it.
    """
    low = function(*(a.low if sign > 0 else a.high for a, sign in arguments))
    high = function(*(a.high if sign > 0 else a.low for a, sign in arguments))
    # Inputs that contradict each other (a range too large for its U_EBB) can turn a slope round.
    return _outward(min(low, high), max(low, high))


def _outward(low: float, high: float) -> Rounded:
    # Library functions may be off by a few units in the last place; four cover logarithms too.
    for _ in range(4):
        low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    return Rounded(low, high)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise InputError(
            f"{text!r} is not a printed number; write digits such as 184.96."
        ) from error


def _around(value: Decimal, half: Decimal) -> Rounded:
    return _outward(float(value - half), float(value + half))


@dataclass(frozen=True)
class PrintedRow:
    """One line of a table, by column, as the text that was printed: 215.00 is not 215."""

    cells: Mapping[str, str]

    def __getitem__(self, column: str) -> str:
        return self.cells[column]

    def number(self, column: str) -> Rounded:
        """Returns all values that round to what is printed."""
        return rounded(self.cells[column])

    def count(self, column: str) -> int:
        """Returns a whole number, which is exact."""
        return int(self.cells[column])


@dataclass(frozen=True)
class Paper:
    """Every table by name."""

    tables: Mapping[str, tuple[PrintedRow, ...]]

    def rows(self, table: str, **wanted: object) -> list[PrintedRow]:
        """Returns the lines of a table that agree with every given column."""
        if table not in self.tables:
            raise InputError(f"the paper has no table {table!r}{nearest(table, self.tables)}")
        found = self.tables[table]
        return [r for r in found if all(r[c] == str(v) for c, v in wanted.items())]

    def row(self, table: str, **wanted: object) -> PrintedRow:
        """Returns the one line that agrees."""
        found = self.rows(table, **wanted)
        if len(found) != 1:
            raise InputError(f"table {table!r} has {len(found)} lines with {wanted}, need 1.")
        return found[0]

    def setting(self, name: str) -> float:
        """Returns a number of the set-up, which is exact."""
        return float(self.row("settings", name=name)["printed"])

    def budget(self, k: int) -> float:
        """Returns K = k T, in nats."""
        return k * self.setting("T_max")

    def executions(self, label: str) -> float:
        """Returns the M that a class should have: its cap times the trajectories per prompt."""
        return self.setting(f"cap_{label}") * self.setting("trajectories")

    @property
    def range_R(self) -> float:  # noqa: N802 - the paper's letter
        """R = T ln|V|, which the first stage uses as its range."""
        return paper_range(int(self.setting("T_max")), VOCABULARY)

    def delta(self, hypotheses: int | None = None) -> float:
        """Returns the level of a row of the first stage, corrected for its hypotheses."""
        count = hypotheses or len(self.rows("debt")) * int(self.setting("stage1_budgets"))
        return self.setting("level") / count

    @property
    def delta_stage2(self) -> float:
        """The level of every row of the second stage."""
        return self.setting("delta_stage2")


@cache
def load() -> Paper:
    """Reads the tables that come with the package."""
    data = files("nafaudit.paper") / "data"
    found = {}
    for name in TABLES:
        lines = (data / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        found[name] = tuple(PrintedRow(MappingProxyType(row)) for row in csv.DictReader(lines))
    return Paper(MappingProxyType(found))
