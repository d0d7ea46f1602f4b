"""Decoding under a Rényi divergence, and under the log-ratio of every single output.

p_theta ~ p_s^(1-theta) p_r^theta with the largest theta such that D_alpha(p_theta || p_s) <= k_t.
With psi(u) = log sum_v p_s(v) exp(u l(v)) and l = log p_r - log p_s this is
[psi(alpha theta) - alpha psi(theta)] / (alpha - 1), which grows with theta; alpha = 1 is KL, and
alpha = inf is theta max l - psi(theta), the largest log-ratio of any token.

Charges of one order add up over steps that depend on each other, so a kept budget K bounds D_alpha
of the whole output's law, and p(E) <= (e^K p_s(E))^((alpha-1)/alpha) for every event E. The
pathwise rule pays what the drawn token realised instead of the largest it could have been: then
every output has log p(y)/p_s(y) <= K, so p(E) <= e^K p_s(E).

References:
    van Erven, Harremoës (2014), Rényi divergence and Kullback-Leibler divergence.
    Feldman, Zrnic (2021), Individual privacy accounting via a Rényi filter: adaptive composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nafaudit.core.ledger import KL, REALISED, renyi_spec
from nafaudit.mechanisms.anchored import (
    ABSOLUTE_SLACK,
    ITERATIONS,
    LEAST_ALLOWANCE,
    SLACK,
    Anchored,
)
from nafaudit.mechanisms.laws import NEG_INF, geodesic
from nafaudit.protocols import Served


def renyi(p: Tensor, q: Tensor, alpha: float) -> Tensor:
    """Computes D_alpha(p || q) per row in nats, 1 < alpha <= inf, from log-probabilities.

    The one definition: every charge in such a divergence is a value of this function.
    """
    inside = p != NEG_INF  # NaN is inside, and makes the divergence NaN
    ratio = torch.where(inside, p - q, NEG_INF)  # inf where q forbids what p serves
    if alpha == math.inf:
        return ratio.amax(dim=-1).clamp_min(0.0)
    scaled = torch.where(inside, p + (alpha - 1) * ratio, NEG_INF)
    return (torch.logsumexp(scaled, dim=-1) / (alpha - 1)).clamp_min(0.0)


@dataclass(frozen=True)
class Renyi:
    """The rule of Rényi-anchored decoding; charge and allowance are D_alpha of the step.

    Attributes:
        alpha: The order, from 1 (KL, bit by bit the KL-anchored rule) to inf.
    """

    alpha: float

    @property
    def currency(self) -> str:
        """Name of the divergence that is charged."""
        return KL if self.alpha == 1 else renyi_spec(self.alpha)

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """Serves the law with the largest risky weight whose divergence is within the allowance."""
        if self.alpha == 1:
            return Anchored().serve(prefixes, safe, risky, allowance)
        cost = renyi(risky, safe, self.alpha)
        funded = allowance >= LEAST_ALLOWANCE
        free = funded & (cost <= allowance)
        law = torch.where(free.unsqueeze(-1), risky, safe)
        charge = torch.where(free, cost, 0.0)
        theta = free.to(torch.float64)
        rows = (funded & ~free).nonzero().squeeze(-1)
        if rows.numel():
            solved = _illinois_search(
                safe[rows],
                risky[rows],
                allowance[rows],
                cost[rows],
                lambda law, anchor: renyi(law, anchor, self.alpha),
                # Near 0 the divergence is quadratic in theta, the largest ratio linear.
                1.0 if self.alpha == math.inf else 0.5,
            )
            law[rows], charge[rows], theta[rows] = solved
        return Served(law, charge, theta)


@dataclass(frozen=True)
class Pathwise:
    """The rule of pathwise decoding: no token's log-ratio is above the allowance.

    The account pays the log-ratio of the token that was drawn.
    """

    currency = REALISED

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """Serves as the Rényi rule of order inf; the charge is the largest log-ratio of a token."""
        return Renyi(math.inf).serve(prefixes, safe, risky, allowance)


def _illinois_search(
    safe: Tensor,
    risky: Tensor,
    allowance: Tensor,
    cost: Tensor,
    price: Callable[[Tensor, Tensor], Tensor],
    power: float,
) -> Served:
    """Finds the mixture with the largest theta whose price is within the allowance.

    For rows whose risky law costs more than the allowance, and any price that grows with theta. The
    search takes secants between the ends of a bracket (the Illinois variant of regula falsi) of
    price^power, which is about linear in theta. A law is taken only if its price, computed from the
    law itself, is within the allowance.

    Args:
        safe: Log-laws [rows, vocabulary].
        risky: Log-laws of the risky model, likewise.
        allowance: What each row may cost.
        cost: What the risky law costs, above the allowance.
        price: Price of a law, given the safe one.
        power: Makes the price about linear in theta near 0.
    """
    both = torch.isfinite(safe) & torch.isfinite(risky)
    base = torch.where(both, safe, NEG_INF)
    ratio = torch.where(both, risky - safe, 0.0)
    zero = torch.zeros_like(allowance)
    best = Served(safe.clone(), zero.clone(), zero.clone())
    target = (allowance * (1 - SLACK / 2)) ** power
    enough = allowance - SLACK * allowance - ABSOLUTE_SLACK
    # The ends of the bracket, and price^power less target there; the value of an end that stays
    # twice is halved.
    low, high = zero, zero + 1
    below, above = -target, cost**power - target
    last = zero
    theta = _secant(low, high, below, above)
    for iteration in range(ITERATIONS):
        law = geodesic(base, ratio, theta)
        charge = price(law, safe)
        feasible = charge <= allowance  # a NaN charge is not
        better = feasible & (theta > best.theta)
        best = Served(
            torch.where(better.unsqueeze(-1), law, best.law),
            torch.where(better, charge, best.charge),
            torch.where(better, theta, best.theta),
        )
        side = torch.where(feasible, -1.0, 1.0)
        gap = charge**power - target
        halved = torch.where(side == last, 0.5, 1.0)
        below, above = (
            torch.where(feasible, gap, below * halved),
            torch.where(feasible, above * halved, gap),
        )
        low, high = torch.where(feasible, theta, low), torch.where(feasible, high, theta)
        last = side
        middle = (low + high) / 2
        done = (feasible & (charge >= enough)) | (middle <= low) | (middle >= high)
        if done.all():
            break
        step = middle if iteration % 3 == 2 else _secant(low, high, below, above)
        theta = torch.where(done, theta, step)
    return best


def _secant(low: Tensor, high: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Returns where a line between the ends meets the target; the middle where there is none."""
    point = low + (high - low) * below / (below - above)
    return torch.where((point > low) & (point < high), point, (low + high) / 2)
