"""The largest theta that an allowance pays for, row by row and in batches.

In theta, g = sqrt(D) is nearly a straight line through the origin, and g(1) is known before the
search begins, with its slope; so theta is interpolated as a function of g, from the ends and the
trials so far. One or two trials in float32 usually place theta to 1e-6. One law is then made in
float64, and it is served if its charge is just below the allowance. A row for which that fails
is left to the bracketed search of `anchored.py`.

In batches, for devices on which starting work and waiting for its end cost more than the work,
every row takes a fixed number of trials in float32 and of laws in float64. As row by row, theta is
sought as a function of g = sqrt(D), at first by a cubic, and a law is served if its charge is just
below the allowance by the one `kl` function. A row for which that fails, also by a NaN or a weight
outside (0, 1), is left to the bracketed search of `anchored.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nafaudit.mechanisms.laws import NEG_INF, geodesic, kl, tilted
from nafaudit.protocols import Served

# What may stay unspent: SLACK * min(allowance, 1 nat). The ledger grants it again at the next step.
SLACK = 8e-7
# A row is left alone if its slack is not far above what rounding can hide.
_ROUNDING = 1e-12
# Trials end when they move theta by less than this, relatively: what is left is its square.
_CLOSE = 5e-3
_TRIALS = 8
_SETTLES = 7
_BY_SLOPE = 2


class Solved(NamedTuple):
    """A served law [vocabulary], its charge and the weight of the risky law in it."""

    law: Tensor
    charge: float
    theta: float


class Knot(NamedTuple):
    """A point of theta as a function of g = sqrt(D), with its slope if that is known."""

    g: float
    theta: float
    slope: float | None


_ORIGIN = Knot(0.0, 0.0, None)


def solve_row(
    safe: Tensor, ratio: Tensor, allowance: float, cost: float, spread: float
) -> Solved | None:
    """Solves one row whose risky law does not fit; None if it takes a more patient search.

    Args:
        safe: Log-law of the safe model [vocabulary], float64.
        ratio: Log-law of the risky model minus that, 0 where both forbid the token.
        allowance: What may be charged, above 0.
        cost: D_KL(risky || safe), above the allowance.
        spread: Variance of the ratio under the risky law.
    """
    if not (math.isfinite(cost) and math.isfinite(spread) and spread > 0):
        return None
    slack = SLACK * min(allowance, 1.0)
    if slack < _ROUNDING * (1 + math.sqrt(spread + cost * cost)):
        return None
    aim = math.sqrt(allowance - slack / 2)
    end = Knot(math.sqrt(cost), 1.0, 2 * math.sqrt(cost) / spread)
    knot = _approach(safe.to(torch.float32), ratio.to(torch.float32), aim, end)
    return knot and _settle(safe, ratio, allowance, slack, aim, knot)


def _approach(base: Tensor, ratio: Tensor, aim: float, end: Knot) -> Knot | None:
    """Tries in float32 until theta is nearly found; the slope stays that of the last trial.

    None if float32 cannot hold the numbers.
    """
    low, high = 0.0, 1.0
    theta = interpolated((_ORIGIN, end), aim)
    if not low < theta < high:
        theta = aim / end.g
    trials: list[Knot] = []
    weight = torch.empty_like(base)
    for _ in range(_TRIALS):
        torch.add(base, ratio, alpha=theta, out=weight).exp_()
        mass = weight.sum().item()
        mean = weight.mul_(ratio).sum().item()
        square = torch.dot(weight, ratio).item()
        if not (mass > 0 and math.isfinite(square)):
            return None
        mean /= mass
        spent, spread = theta * mean - math.log(mass), square / mass - mean * mean
        if not (spent > 0 and spread > 0):
            return None
        g = math.sqrt(spent)
        slope = 2 * g / (theta * spread)
        trials = [*trials[-1:], Knot(g, theta, slope)]
        reached = interpolated((_ORIGIN, *trials, end), aim)
        if abs(reached - theta) < _CLOSE * theta:
            return Knot(aim, reached, slope)
        low, high = (theta, high) if g < aim else (low, theta)
        theta = reached if low < reached < high else (low + high) / 2
    return Knot(aim, theta, slope)


def interpolated(knots: Sequence[Knot], g: float) -> float:
    """Returns theta at `g` by the polynomial through knots and slopes (Newton, confluent nodes)."""
    at: list[float] = []
    column: list[float] = []
    slopes: list[float] = []
    for knot in knots:
        for _ in range(1 if knot.slope is None else 2):
            at.append(knot.g)
            column.append(knot.theta)
            slopes.append(math.nan if knot.slope is None else knot.slope)
    found, product = column[0], 1.0
    for order in range(1, len(at)):
        for i in range(len(at) - order):
            apart = at[i + order] - at[i]
            # Nodes that coincide are one knot twice, or trials that float32 cannot tell apart.
            again = slopes[i] if order == 1 else math.nan
            column[i] = (column[i + 1] - column[i]) / apart if apart else again
        product *= g - at[order - 1]
        found += product * column[0]
    return found


def _settle(
    safe: Tensor, ratio: Tensor, allowance: float, slack: float, aim: float, knot: Knot
) -> Solved | None:
    """Makes the law in float64; what it costs corrects theta, if it has to.

    Twice by the slope of the last trial. Where that was too coarse, as it is if the risky law is
    nearly certain of a token, by the chord between the last two laws.
    """
    theta, slope, before = knot.theta, knot.slope, _ORIGIN
    for made in range(_SETTLES):
        if not 0 < theta < 1:
            return None
        law, charge = tilted(safe, ratio, theta)
        if allowance - slack <= charge <= allowance - slack / 8:
            return Solved(law, charge, theta)
        if not charge > 0 or slope is None:
            return None
        g = math.sqrt(charge)
        if made >= _BY_SLOPE and g != before.g:
            slope = (theta - before.theta) / (g - before.g)
        before = Knot(g, theta, slope)
        theta += (aim - g) * slope
    return None


_BATCH_TRIALS = 4
_BATCH_SETTLES = 3


class _ThetaTrial(NamedTuple):
    """A trial of every row [rows]: theta and its slope as a function of g = sqrt(D)."""

    g: Tensor
    theta: Tensor
    slope: Tensor

    def newton(self, aim: Tensor) -> Tensor:
        """Returns where the tangent reaches an aim."""
        return self.theta + (aim - self.g) * self.slope


def solve_batched(
    safe: Tensor, risky: Tensor, allowance: Tensor, cost: Tensor
) -> tuple[Served, Tensor]:
    """Solves rows whose risky law does not fit, or leaves them.

    Args:
        safe: Log-laws of the safe model [rows, vocabulary], float64.
        risky: Log-laws of the risky model, likewise.
        allowance: What may be charged [rows], above 0.
        cost: D_KL(risky || safe) [rows], above the allowance.

    Returns:
        What is served, and True for rows that are settled: they are charged at most their allowance
        and at least that less SLACK * min(allowance, 1 nat). Others get the safe law, and take a
        more patient search.
    """
    ratio = risky - safe
    both = ratio.abs() < torch.inf  # a NaN, where both forbid a token, is not
    ratio = torch.where(both, ratio, 0.0)
    base = torch.where(both, safe, NEG_INF)
    slack = SLACK * allowance.clamp(max=1.0)
    aim = torch.sqrt(allowance - slack / 2)
    trial = _approach_batch(base.to(torch.float32), ratio.to(torch.float32), aim, torch.sqrt(cost))
    none = torch.zeros_like(allowance)
    served, settled = Served(safe, none, none), none > 0
    for settle in range(_BATCH_SETTLES):
        theta = trial.newton(aim)
        law = geodesic(base, ratio, theta)
        charge = kl(law, safe)
        fits = (charge >= allowance - slack) & (charge <= allowance) & (theta > 0) & (theta < 1)
        served = Served(
            torch.where(fits.unsqueeze(-1), law, served.law),
            torch.where(fits, charge, served.charge),
            torch.where(fits, theta, served.theta),
        )
        settled = settled | fits
        made = _ThetaTrial(torch.sqrt(charge), theta, trial.slope)
        trial = _with_chord(trial, made) if settle else made
    return served, settled


def _approach_batch(base: Tensor, ratio: Tensor, aim: Tensor, end: Tensor) -> _ThetaTrial:
    """Tries in float32, each trial inside the bracket of those before; returns the last."""
    trial = _try(base, ratio, aim / end)
    theta = _from_ends(aim, trial, end)
    low, high = torch.zeros_like(aim), torch.ones_like(aim)
    for _ in range(_BATCH_TRIALS - 1):
        under = trial.g < aim
        low = torch.where(under, trial.theta, low)
        high = torch.where(under, high, trial.theta)
        inside = (theta > low) & (theta < high)
        trial = _try(base, ratio, torch.where(inside, theta, (low + high) / 2))
        theta = trial.newton(aim)
    return trial


def _try(base: Tensor, ratio: Tensor, theta: Tensor) -> _ThetaTrial:
    """Makes one trial in float32, summed in float64."""
    single = theta.to(torch.float32)
    weight = torch.addcmul(base, ratio, single.unsqueeze(-1)).exp_()
    mass = weight.sum(dim=-1, dtype=torch.float64)
    mean = weight.mul_(ratio).sum(dim=-1, dtype=torch.float64) / mass
    spread = weight.mul_(ratio).sum(dim=-1, dtype=torch.float64) / mass - mean * mean
    theta = single.to(torch.float64)  # what was tried is the rounded weight
    g = torch.sqrt(theta * mean - torch.log(mass))
    return _ThetaTrial(g, theta, 2 * g / (theta * spread))


def _from_ends(aim: Tensor, at: _ThetaTrial, end: Tensor) -> Tensor:
    """Evaluates the cubics through (0, 0), (end, 1) and a trial with its slope, at `aim`."""
    low = (at.slope * at.g - at.theta) / at.g**2
    above = end - at.g
    high = (1 - at.theta - at.slope * above) / above**2
    step = aim - at.g
    return at.theta + step * (at.slope + step * (low + (high - low) / end * aim))


def _with_chord(last: _ThetaTrial, made: _ThetaTrial) -> _ThetaTrial:
    """Takes the slope between two laws in float64, unless rounding has spoilt it."""
    chord = (made.theta - last.theta) / (made.g - last.g)
    sound = (chord > last.slope / 2) & (chord < 2 * last.slope)
    return made._replace(slope=torch.where(sound, chord, last.slope))
