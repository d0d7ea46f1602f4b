"""Typed reading of a record's fields: the value, NaN where a log is silent, or an error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import theta_as_recorded

_LONGEST_ID = 500


def number(value: object, name: str, where: str) -> float:
    """A number, also as text; NaN for null and empty cells."""
    if value is None or value == "":
        return math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise wrong(value, name, "a number", where)


def integer(value: object, name: str, where: str, largest: int = 2**31 - 1) -> int | None:
    """A count from 0 on; None for null and empty cells."""
    if type(value) is int and 0 <= value <= largest:
        return value
    found = number(value, name, where)
    if math.isnan(found) and (value is None or value == ""):
        return None
    if not (found.is_integer() and 0 <= found <= largest):
        raise wrong(value, name, f"a whole number from 0 to {largest}", where)
    return int(found)


def text(value: object, name: str, where: str) -> str:
    """A string that can be stored; empty for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong(value, name, "a string", where)
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{where}: {name!r} holds half of a surrogate pair; mend the text.")
    return value


def identifier(value: object, name: str, where: str) -> str:
    """A name that is shown and compared, and could at worst be taken for a path."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 2**63 else "?" * (_LONGEST_ID + 1)
    found = text(value, name, where)
    parts = found.replace("\\", "/").split("/")
    if ".." in parts or (len(parts) > 1 and parts[0] == ""):
        raise InputError(f"{where}: {name!r} is {found[:80]!r}, a path out of its directory.")
    if len(found) > _LONGEST_ID or not found.isprintable():
        raise InputError(
            f"{where}: {name!r} must be printable and of at most {_LONGEST_ID} characters, got "
            f"{found[:80]!r}."
        )
    return found


def mapping(value: object, name: str, where: str) -> Mapping[str, Any]:
    """An object; empty for null."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(value, name, "an object", where)
    return value


def sequence(value: object, name: str, where: str) -> list[Any]:
    """A list; empty for null."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(value, name, "a list", where)
    return value


def numbers(values: Iterable[object], name: str, where: str) -> NDArray[np.float64]:
    """A column of numbers, NaN for nulls."""
    column = list(values)
    if set(map(type, column)) == {float}:
        return np.array(column, np.float64)
    return np.array([number(value, name, where) for value in column], np.float64)


def tokens(values: Iterable[object], name: str, where: str) -> NDArray[np.int32]:
    """A column of token ids, -1 for nulls."""
    found = (integer(value, name, where) for value in values)
    return np.array([-1 if token is None else token for token in found], np.int32)


def single(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """A column in single precision; what is too large for it becomes infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def weights(theta: NDArray[np.float64]) -> NDArray[np.float32]:
    """Weights of the risky law as recorded: strictly inside (0, 1) stays strictly inside."""
    rounded = single(theta)
    for at in np.flatnonzero((theta < 1) & (rounded >= 1) | (theta > 0) & (rounded <= 0)):
        rounded[at] = theta_as_recorded(float(theta[at]))
    return rounded


def wrong(value: object, name: str, needed: str, where: str) -> InputError:
    """A field of the wrong type."""
    return InputError(f"{where}: {name!r} must be {needed}, got {str(value)[:60]!r}.")
