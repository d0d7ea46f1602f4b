"""The largest affordable weights of many rows at once, without a look at any of them.

For devices on which starting work and waiting for its end cost more than the work: every row takes
the same fixed number of trials in float32 and of laws in float64. As in `solve.py`, theta is sought
as a function of g = sqrt(D), at first by a cubic, and a law is served if its charge is just below
the allowance by the one `kl` function. A row for which that fails is left to the bracketed search
of `anchored.py`; whatever goes wrong on the way (a NaN, a weight outside (0, 1)) ends there too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nafaudit.mechanisms.laws import NEG_INF, geodesic, kl
from nafaudit.mechanisms.protocols import Served
from nafaudit.mechanisms.solve import SLACK

_TRIALS = 4
_SETTLES = 3


class _Trial(NamedTuple):
    """A trial of every row [rows]: theta and its slope as a function of g = sqrt(D)."""

    g: Tensor
    theta: Tensor
    slope: Tensor

    def newton(self, aim: Tensor) -> Tensor:
        """Where the tangent reaches an aim."""
        return self.theta + (aim - self.g) * self.slope


def solve_at_once(
    safe: Tensor, risky: Tensor, allowance: Tensor, cost: Tensor
) -> tuple[Served, Tensor]:
    """Solves rows whose risky law does not fit, or leaves them.

    Args:
        safe: Log-laws of the safe model [rows, vocabulary], float64.
        risky: The same of the risky model.
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
    trial = _approach(base.to(torch.float32), ratio.to(torch.float32), aim, torch.sqrt(cost))
    none = torch.zeros_like(allowance)
    served, settled = Served(safe, none, none), none > 0
    for settle in range(_SETTLES):
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
        made = _Trial(torch.sqrt(charge), theta, trial.slope)
        trial = _with_chord(trial, made) if settle else made
    return served, settled


def _approach(base: Tensor, ratio: Tensor, aim: Tensor, end: Tensor) -> _Trial:
    """Trials in float32, each inside the bracket of those before it; returns the last."""
    trial = _try(base, ratio, aim / end)
    theta = _from_ends(aim, trial, end)
    low, high = torch.zeros_like(aim), torch.ones_like(aim)
    for _ in range(_TRIALS - 1):
        under = trial.g < aim
        low = torch.where(under, trial.theta, low)
        high = torch.where(under, high, trial.theta)
        inside = (theta > low) & (theta < high)
        trial = _try(base, ratio, torch.where(inside, theta, (low + high) / 2))
        theta = trial.newton(aim)
    return trial


def _try(base: Tensor, ratio: Tensor, theta: Tensor) -> _Trial:
    """One trial in float32, summed in float64."""
    single = theta.to(torch.float32)
    weight = torch.addcmul(base, ratio, single.unsqueeze(-1)).exp_()
    mass = weight.sum(dim=-1, dtype=torch.float64)
    mean = weight.mul_(ratio).sum(dim=-1, dtype=torch.float64) / mass
    spread = weight.mul_(ratio).sum(dim=-1, dtype=torch.float64) / mass - mean * mean
    theta = single.to(torch.float64)  # what was tried is the rounded weight
    g = torch.sqrt(theta * mean - torch.log(mass))
    return _Trial(g, theta, 2 * g / (theta * spread))


def _from_ends(aim: Tensor, at: _Trial, end: Tensor) -> Tensor:
    """The cubics through (0, 0), (end, 1) and a trial with its slope, at `aim`."""
    low = (at.slope * at.g - at.theta) / at.g**2
    above = end - at.g
    high = (1 - at.theta - at.slope * above) / above**2
    step = aim - at.g
    return at.theta + step * (at.slope + step * (low + (high - low) / end * aim))


def _with_chord(last: _Trial, made: _Trial) -> _Trial:
    """The slope between two laws in float64, unless rounding has made nonsense of it."""
    chord = (made.theta - last.theta) / (made.g - last.g)
    sound = (chord > last.slope / 2) & (chord < 2 * last.slope)
    return made._replace(slope=torch.where(sound, chord, last.slope))
