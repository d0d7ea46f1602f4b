"""Numbers known only up to rounding: without these, every misprint and every rounding look alike.

Every operation rounds outwards, so the true value is never lost; where a quantity enters an
expression twice, `corners` keeps the interval as narrow as rounding allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from nafaudit.core.errors import InputError


@dataclass(frozen=True)
class Interval:
    """All values from low to high, both included; either end may be infinite."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"an interval needs low <= high, got {self.low} and {self.high}.")

    def __add__(self, other: Interval | float) -> Interval:
        other = interval(other)
        return _outward(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Interval | float) -> Interval:
        return self + -interval(other)

    def __mul__(self, other: Interval | float) -> Interval:
        other = interval(other)
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return _outward(min(ends), max(ends))

    def __truediv__(self, other: Interval | float) -> Interval:
        other = interval(other)
        if other.low <= 0 <= other.high:
            raise ZeroDivisionError(f"cannot divide by {other}, which holds 0.")
        ends = [a / b for a in (self.low, self.high) for b in (other.low, other.high)]
        return _outward(min(ends), max(ends))

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def meets(self, other: Interval) -> bool:
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


def interval(value: Interval | float) -> Interval:
    """A number as an interval without width."""
    return value if isinstance(value, Interval) else Interval(float(value), float(value))


def rounded(text: str) -> Interval:
    """Every value that rounds to the printed digits; trailing zeros are digits."""
    return _around(text, _unit(text) / 2)


def about(text: str, relative: float = 0.01) -> Interval:
    """What "approximately" allows: half a unit of the last digit that is not 0, or 1 %."""
    stripped = Decimal(1).scaleb(int(_decimal(text).normalize().as_tuple().exponent))
    return _around(text, max(stripped / 2, abs(_decimal(text)) * Decimal(str(relative))))


def largest(values: Iterable[Interval]) -> Interval:
    """The maximum of several."""
    found = list(values)
    return Interval(max(v.low for v in found), max(v.high for v in found))


def smallest(values: Iterable[Interval]) -> Interval:
    """The minimum of several."""
    return -largest(-v for v in values)


def average(values: Iterable[Interval]) -> Interval:
    """The mean of several."""
    found = list(values)
    total = found[0]
    for value in found[1:]:
        total = total + value
    return total / len(found)


def magnitude(value: Interval) -> Interval:
    """The absolute value."""
    if 0 in value:
        return Interval(0.0, max(-value.low, value.high))
    return value if value.low > 0 else -value


def corners(function: Callable[..., float], *arguments: tuple[Interval, int]) -> Interval:
    """The range of a function that rises (+1) or falls (-1) in each argument.

    Args:
        function: Takes as many numbers as there are arguments.
        arguments: Pairs of an interval and the sign of the function's slope in it.
    """
    low = function(*(a.low if sign > 0 else a.high for a, sign in arguments))
    high = function(*(a.high if sign > 0 else a.low for a, sign in arguments))
    # Inputs that contradict each other (a range too large for its U_EBB) can turn a slope round.
    return _outward(min(low, high), max(low, high))


def _outward(low: float, high: float) -> Interval:
    # Library functions may be off by a few units in the last place; four cover logarithms too.
    for _ in range(4):
        low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    return Interval(low, high)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise InputError(
            f"{text!r} is not a printed number; write digits such as 184.96."
        ) from error


def _unit(text: str) -> Decimal:
    return Decimal(1).scaleb(int(_decimal(text).as_tuple().exponent))


def _around(text: str, half: Decimal) -> Interval:
    value = _decimal(text)
    return _outward(float(value - half), float(value + half))
