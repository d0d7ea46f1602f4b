"""Typed reading of fields, and where a row of a log really ends.

A batch is decoded until its last row is done, and rows that were done before keep logging: nothing
allowed, nothing charged. Counted as steps they look like steps forced to the safe model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Steps, theta_as_recorded

_LONGEST_ID = 500


def number(value: object, name: str, where: str) -> float:
    """Reads a number, also written as text; NaN for null and empty cells."""
    if value is None or value == "":
        return math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise wrong(value, name, "a number", where)


def integer(value: object, name: str, where: str, largest: int = 2**31 - 1) -> int | None:
    """Reads a count from 0 on; None for null and empty cells."""
    if type(value) is int and 0 <= value <= largest:
        return value
    found = number(value, name, where)
    if math.isnan(found) and (value is None or value == ""):
        return None
    if not (found.is_integer() and 0 <= found <= largest):
        raise wrong(value, name, f"a whole number from 0 to {largest}", where)
    return int(found)


def text(value: object, name: str, where: str) -> str:
    """Reads a string that can be stored; empty for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong(value, name, "a string", where)
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{where}: {name!r} holds half of a surrogate pair; mend the text.")
    return value


def identifier(value: object, name: str, where: str) -> str:
    """Reads a name that is shown and compared; refuses one that could lead out as a path."""
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
    """Reads an object; empty for null."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(value, name, "an object", where)
    return value


def sequence(value: object, name: str, where: str) -> list[Any]:
    """Reads a list; empty for null."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(value, name, "a list", where)
    return value


def numbers(values: Iterable[object], name: str, where: str) -> NDArray[np.float64]:
    """Reads a column of numbers, NaN for nulls."""
    column = list(values)
    if set(map(type, column)) == {float}:
        return np.array(column, np.float64)
    return np.array([number(value, name, where) for value in column], np.float64)


def tokens(values: Iterable[object], name: str, where: str) -> NDArray[np.int32]:
    """Reads a column of token ids, -1 for nulls."""
    found = (integer(value, name, where) for value in values)
    return np.array([-1 if token is None else token for token in found], np.int32)


def single(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rounds a column to single precision; what is too large for it becomes infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def weights(theta: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rounds weights of the risky law: strictly inside (0, 1) stays strictly inside."""
    rounded = single(theta)
    for at in np.flatnonzero((theta < 1) & (rounded >= 1) | (theta > 0) & (rounded <= 0)):
        rounded[at] = theta_as_recorded(float(theta[at]))
    return rounded


def wrong(value: object, name: str, needed: str, where: str) -> InputError:
    """Returns the error for a field of the wrong type."""
    return InputError(f"{where}: {name!r} must be {needed}, got {str(value)[:60]!r}.")


# A step after the end has been seen with p > 0.999 in both laws, and real forced steps seldom.
_CERTAIN = np.log(0.999)
# A divergence of a law from itself, as float32 decoders log it.
_FREE = 1e-6


def end_after_stop(token: NDArray[np.int32], stops: frozenset[int]) -> int:
    """Counts the steps up to and including the first stop token."""
    at = np.flatnonzero(np.isin(token, list(stops)))
    return int(at[0]) + 1 if at.size else token.size


def end_by_account(steps: Steps, granted: NDArray[np.float64], tolerance: float = 1e-3) -> int:
    """Counts the steps before a tail that the account shows to be one.

    The paper's rule allows max(0, granted - spent before) to a row that is not done and 0 to one
    that is. So a tail of steps with nothing allowed while something was left comes after the end,
    provided that the steps before it follow the rule.
    """
    n = len(steps)
    idle = _idle(steps)
    if n == 0 or granted.size != n or not idle[-1]:
        return n
    spent = np.concatenate([[0.0], np.cumsum(steps.charge)[:-1]])
    with np.errstate(invalid="ignore"):
        left = granted - spent
        proven = idle & (left > tolerance)
        start = _suffix(proven)
        follows = np.abs(np.maximum(left, 0.0) - steps.allowance) <= tolerance * (1 + abs(left))
    both_infinite = np.isposinf(left) & np.isposinf(steps.allowance)
    # No row ends before its first step, so a tail from there on is another rule's doing.
    if start in (0, n) or not (follows | both_infinite)[:start].all():
        return n
    # Before its debt is paid a row is allowed nothing, done or not; there the pad token tells.
    if steps.token[start] >= 0 and (steps.token[start:] == steps.token[start]).all():
        run = start - _suffix_length(idle[:start] & (steps.token[:start] == steps.token[start]))
        if run < start:
            is_padded = run > 0 and steps.token[run - 1] == steps.token[start]
            return run if is_padded else run + 1
    return start


def end_by_look(steps: Steps) -> int:
    """Counts the steps before a tail of one token, certain and free, at least twice."""
    if not len(steps):
        return 0
    with np.errstate(invalid="ignore"):
        certain = (steps.served > _CERTAIN) & (steps.safe > _CERTAIN)
    start = _suffix(_idle(steps) & certain & (steps.token == steps.token[-1]))
    if len(steps) - start < 2:
        return len(steps)
    is_padded = start > 0 and steps.token[start - 1] == steps.token[-1]
    return start if is_padded else start + 1


def cut(steps: Steps, end: int) -> Steps:
    """Returns the steps up to an end."""
    return Steps(**{name: getattr(steps, name)[:end] for name in Steps.columns})


def _idle(steps: Steps) -> NDArray[np.bool_]:
    return np.asarray((steps.allowance == 0) & (steps.charge <= _FREE) & ~(steps.theta > 0))


def _suffix_length(flags: NDArray[np.bool_]) -> int:
    return int(np.cumprod(flags[::-1]).sum())


def _suffix(flags: NDArray[np.bool_]) -> int:
    """Returns where the longest run of true flags at the end begins."""
    return int(flags.size) - _suffix_length(flags)
