"""Intervals: the true value is never lost, and rounding allows exactly what it allows."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.paper.printed import (
    Rounded,
    about,
    average,
    corners,
    exact,
    largest,
    rounded,
    smallest,
)

numbers = st.floats(-1e6, 1e6, allow_nan=False)


@st.composite
def held(draw: st.DrawFn) -> tuple[Rounded, float]:
    """An interval and a value in it."""
    low, high = sorted((draw(numbers), draw(numbers)))
    share = draw(st.floats(0, 1))
    return Rounded(low, high), min(high, max(low, low + share * (high - low)))


@given(st.decimals(-10_000, 10_000, places=6), st.integers(0, 4))
def test_a_printed_number_holds_what_rounds_to_it(value: Decimal, places: int) -> None:
    unit = Decimal(1).scaleb(-places)
    printed = value.quantize(unit, rounding=ROUND_HALF_EVEN)
    assert float(value) in rounded(str(printed))
    # Two units away rounds to something else.
    assert float(printed + 2 * unit) not in rounded(str(printed))
    assert rounded(str(printed)).radius == pytest.approx(float(unit) / 2, rel=1e-6)


def test_trailing_zeros_are_digits() -> None:
    assert rounded("215.00").radius == pytest.approx(0.005)
    assert rounded("215").radius == pytest.approx(0.5)


def test_approximately_is_generous_with_zeros_and_never_tighter_than_one_percent() -> None:
    assert about("8500").radius == pytest.approx(85)
    assert about("300").radius == pytest.approx(50)
    assert about("0.30").radius == pytest.approx(0.05)
    assert about("594").radius == pytest.approx(5.94)
    assert about("0.999").radius == pytest.approx(0.00999)


@given(held(), held())
def test_every_operation_keeps_the_true_value(
    a: tuple[Rounded, float], b: tuple[Rounded, float]
) -> None:
    (x, u), (y, v) = a, b
    assert u + v in x + y
    assert u - v in x - y
    assert u * v in x * y
    assert abs(u) in abs(x)
    assert max(u, v) in largest([x, y])
    assert min(u, v) in smallest([x, y])
    assert math.fsum((u, v)) / 2 in average([x, y])


@given(held(), held())
def test_division_keeps_the_true_value_and_refuses_zero(
    a: tuple[Rounded, float], b: tuple[Rounded, float]
) -> None:
    (x, u), (y, v) = a, b
    if 0 in y:
        with pytest.raises(ZeroDivisionError, match="holds 0"):
            x / y
    else:
        assume(abs(v) > 1e-300)
        assert u / v in x / y


@given(held(), held())
def test_corners_are_tight_where_an_argument_enters_twice(
    a: tuple[Rounded, float], b: tuple[Rounded, float]
) -> None:
    (x, u), (y, v) = a, b

    def value(p: float, q: float) -> float:
        return 3 * p - 2 * p - q

    found = corners(value, (x, 1), (y, -1))
    assert found.low - 1e-6 <= value(u, v) <= found.high + 1e-6
    wide = x * 3 - x * 2 - y
    assert found.radius <= wide.radius + 1e-6


def test_meeting_is_touching() -> None:
    assert Rounded(0, 1).meets(Rounded(1, 2))
    assert not Rounded(0, 1).meets(Rounded(math.nextafter(1, 2), 2))
    assert exact(3).meets(Rounded(-math.inf, 3))


@pytest.mark.parametrize("bad", ["", "12,5", "about 3", "invalid"])
def test_what_is_no_number_is_refused(bad: str) -> None:
    with pytest.raises(InputError, match="printed number"):
        rounded(bad)


def test_an_interval_needs_order() -> None:
    with pytest.raises(ValueError, match="low <= high"):
        Rounded(2, 1)
    with pytest.raises(ValueError, match="low <= high"):
        Rounded(math.nan, 1)


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        ("0", exact(0)),
        ("9000", exact(9000)),
        ("0.34711", Rounded(0.3471, 0.34712)),
        ("0.2010 ± 0.0005", Rounded(0.2005, 0.2015)),
        ("at most 1", Rounded(-math.inf, 1)),
        ("at least 3", Rounded(3, math.inf)),
    ],
)
def test_shown_with_the_digits_that_mean_something(shown: str, value: Rounded) -> None:
    assert str(value).replace("0.20100 ± 0.00050", "0.2010 ± 0.0005") == shown
