"""The largest affordable weight of one row, in few passes over its vocabulary.

In theta, g = sqrt(D) is nearly a straight line through the origin, and g(1) is known before the
search begins; so theta is interpolated as a function of g: from both ends and the first trial, then
from the last two trials with their slopes. Two trials in float32 usually place theta to 1e-6. One
law is then made in float64, and it is served if its charge is just below the allowance by the one
`kl` function. A row for which that fails is left to the bracketed search of `anchored.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nafaudit.mechanisms.laws import kl, log_law

# What may stay unspent: SLACK * min(allowance, 1 nat). The ledger grants it again at the next step.
SLACK = 8e-7
# Trials end when they move theta by less than this, relatively.
_CLOSE = 1e-3
_TRIALS = 5
_SETTLES = 3


class Solved(NamedTuple):
    """A served law [vocabulary], its charge and the weight of the risky law in it."""

    law: Tensor
    charge: float
    theta: float


class _Knot(NamedTuple):
    """A trial: theta and its slope as a function of g = sqrt(D)."""

    g: float
    theta: float
    slope: float


def solve_row(safe: Tensor, risky: Tensor, allowance: float, cost: float) -> Solved | None:
    """Solves one row whose risky law does not fit; None if it takes a more patient search.

    Args:
        safe: Log-law of the safe model [vocabulary], float64.
        risky: The same of the risky model.
        allowance: What may be charged, above 0.
        cost: D_KL(risky || safe), above the allowance.
    """
    if not math.isfinite(cost):
        return None
    ratio = risky - safe
    if not math.isfinite(float(safe.amin())):
        ratio.masked_fill_(torch.isneginf(safe) & torch.isneginf(risky), 0.0)
    slack = SLACK * min(allowance, 1.0)
    aim = math.sqrt(allowance - slack / 2)
    knot = _approach(safe.to(torch.float32), ratio.to(torch.float32), aim, cost)
    return knot and _settle(safe, ratio, allowance, slack, aim, knot)


def _approach(base: Tensor, ratio: Tensor, aim: float, cost: float) -> _Knot | None:
    """Trials in float32, until theta is all but settled; the slope stays that of the last one."""
    ends = math.sqrt(cost)
    theta = aim / ends
    last: _Knot | None = None
    weight = torch.empty_like(base)
    for _ in range(_TRIALS):
        torch.mul(ratio, theta, out=weight).add_(base).exp_()
        mass = float(weight.sum())
        mean = float(weight.mul_(ratio).sum())
        square = float(torch.dot(weight, ratio))
        if not (mass > 0 and math.isfinite(square)):
            return None
        mean /= mass
        spent, spread = theta * mean - math.log(mass), square / mass - mean * mean
        if not (spent > 0 and spread > 0):
            return None
        g = math.sqrt(spent)
        knot = _Knot(g, theta, 2 * g / (theta * spread))
        reached = _from_ends(aim, knot, ends) if last is None else _from_knots(aim, last, knot)
        if not 0 < reached < 1:
            return None
        if abs(reached - theta) < _CLOSE * theta:
            return _Knot(aim, reached, knot.slope)
        theta, last = reached, knot
    return None


def _from_ends(aim: float, at: _Knot, end: float) -> float:
    """The cubic through (0, 0), (end, 1) and a trial with its slope, at `aim`."""
    if at.g == end:
        return at.theta
    low = (at.slope * at.g - at.theta) / at.g**2
    above = end - at.g
    high = (1 - at.theta - at.slope * above) / above**2
    cubic = (high - low) / end
    step = aim - at.g
    return at.theta + step * (at.slope + step * (low + cubic * (at.g + step)))


def _from_knots(aim: float, first: _Knot, last: _Knot) -> float:
    """The cubic through two trials with their slopes, at `aim`."""
    step, between = aim - last.g, last.g - first.g
    if between == 0:
        return last.theta + last.slope * step
    chord = (last.theta - first.theta) / between
    bend = (last.slope - chord) / between
    cubic = (bend - (chord - first.slope) / between) / between
    return last.theta + step * (last.slope + step * (bend + cubic * (aim - first.g)))


def _settle(
    safe: Tensor, ratio: Tensor, allowance: float, slack: float, aim: float, knot: _Knot
) -> Solved | None:
    """Makes the law in float64; what it costs corrects theta, if it has to."""
    theta = knot.theta
    for _ in range(_SETTLES):
        if not 0 < theta < 1:
            return None
        law = log_law(torch.mul(ratio, theta).add_(safe).unsqueeze(0))
        charge = float(kl(law, safe.unsqueeze(0)))
        if allowance - slack <= charge <= allowance:
            return Solved(law[0], charge, theta)
        theta += (aim - math.sqrt(charge)) * knot.slope
    return None
