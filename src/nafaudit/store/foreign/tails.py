"""Where a row of somebody's log really ends.

A batch is decoded until its last row is done, and rows that were done before keep logging: nothing
allowed, nothing charged. Counted as steps they look like steps forced to the safe model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.trajectory import Steps

# A step after the end has been seen with p > 0.999 in both laws, and real forced steps seldom.
_CERTAIN = np.log(0.999)
# A divergence of a law from itself, as float32 decoders log it.
_FREE = 1e-6


def end_after_stop(token: NDArray[np.int32], stops: frozenset[int]) -> int:
    """How many steps there are up to and including the first stop token."""
    at = np.flatnonzero(np.isin(token, list(stops)))
    return int(at[0]) + 1 if at.size else token.size


def end_by_account(steps: Steps, granted: NDArray[np.float64], tolerance: float = 1e-3) -> int:
    """How many steps there are before a tail that the account shows to be one.

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
    """How many steps there are before a tail of one token, certain and free, at least twice."""
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
    """The steps up to an end."""
    return Steps(**{name: getattr(steps, name)[:end] for name in Steps.columns})


def _idle(steps: Steps) -> NDArray[np.bool_]:
    return np.asarray((steps.allowance == 0) & (steps.charge <= _FREE) & ~(steps.theta > 0))


def _suffix_length(flags: NDArray[np.bool_]) -> int:
    return int(np.cumprod(flags[::-1]).sum())


def _suffix(flags: NDArray[np.bool_]) -> int:
    """Where the longest run of true flags at the end begins."""
    return int(flags.size) - _suffix_length(flags)
