"""The shadow controller: every number of a step again, sharing no code with what decodes.

Without it a mistake in the solver, the divergence, the debt or the ledger would confirm itself.
`twin.py` is the same maths one row at a time, to the last bit; this is the form that keeps up
with a run, and the tests hold it to the twin.

psi(theta) = log sum_v p_s(v) exp(theta l(v)) with l = log p_r - log p_s over the common support,
and D(theta) = KL(p_theta || p_s) = theta psi'(theta) - psi(theta), which grows with theta. The
root of D = k_t is found by false position on sqrt(D), which is nearly linear, kept inside a
bracket (the Illinois rule); whatever it does not settle is bisected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nafaudit.core.debt import DebtRule
from nafaudit.core.ledger import Account, Banking, Ledger, Payment
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.protocols import Rule, Served

_NEG_INF = -math.inf
# An allowance below this counts as none: that is part of the promise, not of the solver.
_NOTHING = 1e-10
_EXACT = 1e-11
_MOST_ITERATIONS = 120


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """D_KL(p || q) of each row of two float64 log-laws."""
    mass = torch.exp(p)
    plain: Tensor = torch.linalg.vecdot(mass, p - q)
    if torch.isfinite(plain).all():  # no row has a forbidden token, in either law
        return plain.clamp_min(0.0)
    gap = torch.where(mass > 0, p - q, 0.0)
    # A probability that underflows still makes the divergence infinite where q forbids it.
    gap = torch.where((p > _NEG_INF) & (q == _NEG_INF), math.inf, gap)
    return torch.where(gap == math.inf, math.inf, mass * gap).sum(dim=-1).clamp_min(0.0)


@dataclass(frozen=True)
class ShadowAnchored:
    """KL-anchored decoding, recomputed."""

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """What a sound decoder serves; the same answer as `Anchored`, by another way."""
        return self.serve_at_cost(safe, risky, allowance, divergence(risky, safe))

    def serve_at_cost(self, safe: Tensor, risky: Tensor, allowance: Tensor, cost: Tensor) -> Served:
        """The same, for whoever has the divergence of the risky law already."""
        free = (allowance >= _NOTHING) & (cost <= allowance)
        theta = free.to(torch.float64)
        charge = torch.where(free, cost, 0.0)
        law = risky if free.all() else torch.where(free.unsqueeze(-1), risky, safe)
        rows = ((allowance >= _NOTHING) & (cost > allowance)).nonzero().squeeze(-1)
        if rows.numel():
            curve = _Curve(safe[rows], risky[rows])
            theta[rows] = _root(curve, allowance[rows], cost[rows])
            law[rows], charge[rows] = curve.law(theta[rows])
        return Served(law, charge, theta)

    def charge_at(self, safe: Tensor, risky: Tensor, theta: Tensor, cost: Tensor) -> Tensor:
        """The true charge of serving these weights, whoever claims them."""
        charge = torch.where(theta >= 1, cost, 0.0)
        rows = ((theta > 0) & (theta < 1)).nonzero().squeeze(-1)
        if rows.numel():
            curve = _Curve(safe[rows], risky[rows])
            # Laws that share no token have no mixture to serve.
            mixed = curve(theta[rows], torch.arange(len(rows), device=rows.device))
            charge[rows] = torch.where(curve.meets, mixed, math.nan)
        return charge


class _Curve:
    """D(theta) of some rows, on the support that both laws share."""

    def __init__(self, safe: Tensor, risky: Tensor) -> None:
        shared = (safe > _NEG_INF) & (risky > _NEG_INF)
        self.safe = safe
        self.base = safe if shared.all() else torch.where(shared, safe, _NEG_INF)
        self.ratio = torch.where(shared, risky - safe, 0.0)
        self.meets = shared.any(dim=-1)

    def __call__(self, theta: Tensor, rows: Tensor) -> Tensor:
        base, ratio = self.base[rows], self.ratio[rows]
        tilted = torch.addcmul(base, theta.unsqueeze(-1), ratio)
        top = tilted.amax(dim=-1, keepdim=True)
        mass = torch.exp(tilted - top)
        total = mass.sum(dim=-1)
        mean: Tensor = torch.linalg.vecdot(mass, ratio) / total
        psi = torch.log(total) + top.squeeze(-1)
        return (theta * mean - psi).clamp_min(0.0)

    def law(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The served law and its charge; the safe law where theta is 0."""
        tilted = torch.addcmul(self.base, theta.unsqueeze(-1), self.ratio)
        mixed = torch.log_softmax(tilted, dim=-1)
        # Rows whose laws share no token have no mixture, and are never funded above theta 0.
        still = (theta == 0) | ~self.meets
        law = torch.where(still.unsqueeze(-1), self.safe, mixed)
        return law, divergence(law, self.safe)


def _root(curve: _Curve, allowance: Tensor, cost: Tensor) -> Tensor:
    """The largest theta in [0, 1) with D(theta) <= allowance, row by row."""
    found = torch.zeros_like(allowance)
    rows = curve.meets.nonzero().squeeze(-1)
    goal = torch.sqrt(allowance[rows])
    low, high = torch.zeros_like(goal), torch.ones_like(goal)
    below, above = -goal, torch.sqrt(cost[rows]) - goal
    side = torch.zeros_like(goal)
    for iteration in range(_MOST_ITERATIONS):
        if not rows.numel():
            break
        middle = (low + high) / 2
        chord = low - below * (high - low) / (above - below)
        good = (chord > low) & (chord < high) & (iteration % 8 != 7)
        theta = torch.where(good, chord, middle)
        spent = curve(theta, rows)
        miss = torch.sqrt(spent) - goal
        fits = spent <= allowance[rows]
        # Illinois: an end that stays put counts half, so that the chord lets go of it.
        above = torch.where(fits, torch.where(side > 0, above / 2, above), miss)
        below = torch.where(fits, miss, torch.where(side < 0, below / 2, below))
        side = torch.where(fits, 1.0, -1.0)
        low, high = torch.where(fits, theta, low), torch.where(fits, high, theta)
        found[rows] = low
        close = fits & (allowance[rows] - spent <= _EXACT * (1 + allowance[rows]))
        open_ = ~(close | (high - low <= 1e-15))
        if not open_.all():
            keep = open_.nonzero().squeeze(-1)
            rows, goal, low, high = rows[keep], goal[keep], low[keep], high[keep]
            below, above, side = below[keep], above[keep], side[keep]
    return found


@dataclass
class _ShadowBank:
    """k_t = max(0, (t+1) k - sum of charges - debt), written down a second time."""

    k: float
    debt: float
    charges: list[float]

    def allowance(self) -> float:
        earned = (len(self.charges) + 1) * self.k
        return earned if math.isinf(earned) else max(0.0, earned - self._spent() - self.debt)

    def pay(self, payment: Payment) -> None:
        self.charges.append(payment.charge)

    def _spent(self) -> float:
        return math.fsum(self.charges)


def shadow_account(ledger: Ledger, k: float, debt: float) -> Account:
    """An account that shares no code with the decoder's, if the ledger is one of ours."""
    return _ShadowBank(k, debt, []) if isinstance(ledger, Banking) else ledger.open(k, debt)


def shadow_rule(rule: Rule) -> tuple[Rule, bool]:
    """A rule that recomputes another, and whether it is independent of it.

    A rule from outside has no second implementation: it is asked again, with recomputed laws and
    allowances, and what it serves is charged by our own divergence.
    """
    return (ShadowAnchored(), True) if type(rule) is Anchored else (rule, False)


def shadow_debt(gains: Sequence[float], rule: DebtRule) -> float:
    """The prefix debt, from the log-ratios of the prompt tokens (0 for special ones)."""
    largest = sorted((max(0.0, gain) for gain in gains), reverse=True)[: rule.n]
    count = len(largest) if rule.definition == "official" else sum(g > 0 for g in largest)
    return math.fsum(largest) / count if count else 0.0
