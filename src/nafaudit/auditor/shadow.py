"""The shadow controller: every number of a step again, sharing no code with what decodes.

Without it a mistake in the solver, the divergence, the debt or the ledger would confirm itself.
The slow twin (`selftest/faults/tools.py`) is the same maths one row at a time, to the last bit;
this is the form that keeps up with a run, and the tests hold it to the twin.

psi(theta) = log sum_v p_s(v) exp(theta l(v)) with l = log p_r - log p_s over the common support,
and D(theta) = KL(p_theta || p_s) = theta psi'(theta) - psi(theta), which grows with theta. The
root of D = k_t is bracketed, and sought where a parabola says. For a Rényi divergence
D_alpha(p_theta || p_s) = [psi(alpha theta) - alpha psi(theta)] / (alpha - 1), and for the largest
log-ratio theta max l - psi(theta): by psi alone, never by the served law, bracketed and halved.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nafaudit.core.debt import DebtRule
from nafaudit.core.ledger import (
    REALISED,
    Account,
    Banking,
    Bucket,
    Ledger,
    Payment,
    renyi_spec,
)
from nafaudit.protocols import Mechanism, Rule, Served

_NEG_INF = -math.inf
# An allowance below this counts as none: that is part of the promise, not of the solver.
_NOTHING = 1e-10
_EXACT = 1e-11
_TINY = 1e-280
_MOST_ITERATIONS = 120
# Halvings of [0, 1] that leave no float64 between.
_HALVINGS = 52


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Computes D_KL(p || q) of each row of two float64 log-laws."""
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
        """Serves what a sound decoder does, by another way than `Anchored`."""
        return self.serve_at_cost(safe, risky, allowance, divergence(risky, safe))

    def cost(self, safe: Tensor, risky: Tensor) -> Tensor:
        """Computes what the risky law itself costs."""
        return divergence(risky, safe)

    def serve_at_cost(
        self,
        safe: Tensor,
        risky: Tensor,
        allowance: Tensor,
        cost: Tensor,
        tried: Tried | None = None,
    ) -> Served:
        """Serves, given what the risky law itself costs (`cost`).

        Weights that were tried are where the search begins, not what it finds.
        """
        funded = allowance >= _NOTHING
        free = funded & (cost <= allowance)
        theta = free.to(torch.float64)
        charge = torch.where(free, cost, 0.0)
        rows = (funded & ~free).nonzero().squeeze(-1)
        if len(rows) == len(safe):
            return _root(_Curve(safe, risky), allowance, cost, tried and tried.at(rows))
        if free.all():
            return Served(risky, charge, theta)
        law = safe.clone()
        unbound = free.nonzero().squeeze(-1)
        law[unbound] = risky[unbound]
        if rows.numel():
            curve = _Curve(safe[rows], risky[rows])
            part = _root(curve, allowance[rows], cost[rows], tried and tried.at(rows))
            law[rows], charge[rows], theta[rows] = part
        return Served(law, charge, theta)

    def charge_at(self, safe: Tensor, risky: Tensor, theta: Tensor, cost: Tensor) -> Tensor:
        """Computes the true charge of serving these weights, which may be claims."""
        return self.try_weights(safe, risky, theta, cost).charge

    def try_weights(self, safe: Tensor, risky: Tensor, theta: Tensor, cost: Tensor) -> Tried:
        """Computes the same, and how fast the charge grows there."""
        charge = torch.where(theta >= 1, cost, 0.0)
        slope = torch.full_like(charge, math.nan)
        rows = ((theta > 0) & (theta < 1)).nonzero().squeeze(-1)
        if rows.numel():
            curve = _Curve(*_only(rows, safe, risky))
            spent, slope[rows] = curve(theta[rows])[:2]
            # Laws that share no token have no mixture to serve.
            charge[rows] = torch.where(curve.meets, spent, math.nan)
        return Tried(theta, charge, slope)


class Tried(NamedTuple):
    """Weights and what they cost, row by row; the slope is NaN where a weight is 0 or 1."""

    theta: Tensor
    charge: Tensor
    slope: Tensor

    def at(self, rows: Tensor) -> Tried:
        """Returns some of the rows."""
        return Tried(*_only(rows, *self))


def _only(rows: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns some rows of tensors, without a copy where that is all of them; rows ascend."""
    return tensors if len(rows) == len(tensors[0]) else tuple(one[rows] for one in tensors)


class _Curve:
    """D(theta) of some rows, on the support that both laws share."""

    def __init__(self, safe: Tensor, risky: Tensor) -> None:
        self.safe, self.base, self.ratio = safe, safe, risky - safe
        self.meets = torch.ones(len(safe), dtype=torch.bool, device=safe.device)
        if not torch.isfinite(self.ratio.sum()):  # a token is forbidden in one of the laws
            shared = (safe > _NEG_INF) & (risky > _NEG_INF)
            self.meets = shared.any(dim=-1)
            self.base = torch.where(shared, safe, _NEG_INF)
            self.ratio = torch.where(shared, self.ratio, 0.0)

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Computes D(theta), its slope theta Var_theta[l], and the mixture's log-law."""
        tilted = torch.addcmul(self.base, theta.unsqueeze(-1), self.ratio)
        top = torch.zeros_like(theta)
        mass = torch.exp(tilted)
        total = mass.sum(dim=-1)
        if (total < _TINY).any():  # laws so far apart that their product underflows
            top = tilted.amax(dim=-1)
            mass = torch.exp(tilted - top.unsqueeze(-1))
            total = mass.sum(dim=-1)
        weighted = mass.mul_(self.ratio)
        mean = weighted.sum(dim=-1) / total
        square: Tensor = torch.linalg.vecdot(weighted, self.ratio) / total
        psi = torch.log(total) + top
        spent = (theta * mean - psi).clamp_min(0.0)
        return spent, theta * (square - mean**2), tilted.sub_(psi.unsqueeze(-1))

    def only(self, rows: Tensor) -> _Curve:
        """Returns the curve of some of the rows."""
        part = copy.copy(self)
        part.safe, part.meets, part.base, part.ratio = _only(
            rows, self.safe, self.meets, self.base, self.ratio
        )
        return part


def _root(curve: _Curve, allowance: Tensor, cost: Tensor, tried: Tried | None) -> Served:
    """Serves the largest theta in [0, 1) with D(theta) <= allowance, row by row.

    D lies on a parabola through 0 near the root, so the next trial is where such a parabola with
    the value and the slope of this one meets the allowance; a trial that leaves the bracket, and
    every eighth, is its middle. A little below the allowance is aimed at, to come out feasible.
    """
    rows = curve.meets.nonzero().squeeze(-1)
    part = curve.only(rows)
    limit, most = _only(rows, allowance, cost)
    low, high = torch.zeros_like(limit), torch.ones_like(limit)
    theta = torch.sqrt(limit / most).clamp(1e-6, 1 - 1e-6)
    if tried is not None:
        trial = _parabola(*tried.at(rows), limit)
        theta = torch.where((trial > low) & (trial < high), trial, theta)  # NaN is not
    found = Served(curve.safe, torch.zeros_like(allowance), torch.zeros_like(allowance))
    for iteration in range(_MOST_ITERATIONS):
        spent, slope, law = part(theta)
        fits = spent <= limit
        low, high = torch.where(fits, theta, low), torch.where(fits, high, theta)
        near = fits & (limit - spent <= _EXACT * (1 + limit))
        if len(rows) == len(allowance) and near.all():
            return Served(law, spent, theta)
        if not iteration:
            found = found._replace(law=curve.safe.clone())
        closed = (high - low <= 1e-15) | (iteration + 1 == _MOST_ITERATIONS)
        for whole, new in zip(found, (law, spent, theta), strict=True):
            whole[rows[near]] = new[near]
        # The last that fitted was tried before.
        kept = (closed & ~near & (low > 0)).nonzero().squeeze(-1)
        if kept.numel():
            charge, _, mixed = part.only(kept)(low[kept])
            for whole, new in zip(found, (mixed, charge, low[kept]), strict=True):
                whole[rows[kept]] = new
        going = (~(near | closed)).nonzero().squeeze(-1)
        if not going.numel():
            break
        part = part.only(going)
        rows, limit, low, high, theta, spent, slope = _only(
            going, rows, limit, low, high, theta, spent, slope
        )
        trial = _parabola(theta, spent, slope, limit)
        good = (trial > low) & (trial < high) & (iteration % 8 != 7)  # NaN is not
        theta = torch.where(good, trial, (low + high) / 2)
    return found


def _parabola(theta: Tensor, spent: Tensor, slope: Tensor, limit: Tensor) -> Tensor:
    """Computes where a parabola through 0 with this value and slope meets the allowance."""
    aim = limit - _EXACT * (1 + limit) / 2
    root = torch.sqrt(spent)
    return theta + (torch.sqrt(aim.clamp_min(0.0)) - root) * 2 * root / slope


@dataclass(frozen=True)
class ShadowOrder:
    """Rényi-anchored or pathwise decoding, recomputed.

    Attributes:
        alpha: The order, above 1.
        realised: True if a step is booked at what its token realised.
    """

    alpha: float
    realised: bool = False

    @property
    def currency(self) -> str:
        """What is charged."""
        return REALISED if self.realised else renyi_spec(self.alpha)

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """Serves what a sound decoder does."""
        return self.serve_at_cost(safe, risky, allowance, self.cost(safe, risky))

    def serve_at_cost(self, safe: Tensor, risky: Tensor, allowance: Tensor, cost: Tensor) -> Served:
        """Serves, given what the risky law itself costs (`cost`)."""
        funded = allowance >= _NOTHING
        free = funded & (cost <= allowance)
        theta = free.to(torch.float64)
        rows = (funded & ~free).nonzero().squeeze(-1)
        if rows.numel():
            theta[rows] = self._root(safe[rows], risky[rows], allowance[rows])
        law = self.law_at(safe, risky, theta)
        return Served(law, self.charge_at(safe, risky, theta, cost), theta)

    def cost(self, safe: Tensor, risky: Tensor) -> Tensor:
        """Computes what the risky law itself costs: sum p_r^alpha p_s^(1-alpha), written out."""
        served = risky > _NEG_INF
        if self.alpha == math.inf:
            ratio = torch.where(served, risky - safe, _NEG_INF)
            return ratio.max(dim=-1).values.clamp_min(0.0)
        terms = self.alpha * risky - (self.alpha - 1) * safe  # inf where only p_s forbids
        total = torch.logsumexp(torch.where(served, terms, _NEG_INF), dim=-1)
        return (total / (self.alpha - 1)).clamp_min(0.0)

    def charge_at(self, safe: Tensor, risky: Tensor, theta: Tensor, cost: Tensor) -> Tensor:
        """Computes the true charge of serving these weights, which may be claims."""
        charge = torch.where(theta >= 1, cost, 0.0)
        rows = ((theta > 0) & (theta < 1)).nonzero().squeeze(-1)
        if rows.numel():
            tilt = _Tilt(safe[rows], risky[rows])
            charge[rows] = self._price(tilt, theta[rows])
        return charge

    def law_at(self, safe: Tensor, risky: Tensor, theta: Tensor) -> Tensor:
        """Computes p_theta of each row; its end points are the two laws themselves."""
        law = torch.where((theta >= 1).unsqueeze(-1), risky, safe)
        rows = ((theta > 0) & (theta < 1)).nonzero().squeeze(-1)
        if rows.numel():
            tilt = _Tilt(safe[rows], risky[rows])
            law[rows] = torch.log_softmax(tilt.at(theta[rows]), dim=-1)
        return law

    def _price(self, tilt: _Tilt, theta: Tensor) -> Tensor:
        psi = tilt.psi(theta)
        if self.alpha == math.inf:
            return (theta * tilt.most - psi).clamp_min(0.0)
        return ((tilt.psi(self.alpha * theta) - self.alpha * psi) / (self.alpha - 1)).clamp_min(0.0)

    def _root(self, safe: Tensor, risky: Tensor, allowance: Tensor) -> Tensor:
        """Finds the largest theta in [0, 1) that fits; 0 where the two laws share no token."""
        tilt = _Tilt(safe, risky)
        low, high = torch.zeros_like(allowance), torch.ones_like(allowance)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = self._price(tilt, middle) <= allowance  # NaN does not
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
        return low


class _Tilt:
    """log p_s + u l on the support that both laws share."""

    def __init__(self, safe: Tensor, risky: Tensor) -> None:
        shared = (safe > _NEG_INF) & (risky > _NEG_INF)
        self._base = torch.where(shared, safe, _NEG_INF)
        self._ratio = torch.where(shared, risky - safe, 0.0)
        self.most = torch.where(shared, risky - safe, _NEG_INF).max(dim=-1).values

    def at(self, power: Tensor) -> Tensor:
        return self._base + power.unsqueeze(-1) * self._ratio

    def psi(self, power: Tensor) -> Tensor:
        return torch.logsumexp(self.at(power), dim=-1)


# Rules on the line between the two laws, for which any claimed weight can be charged.
Mixing = ShadowAnchored | ShadowOrder


def shadow_of(mechanism: Mechanism) -> Rule:
    """Returns the rule that recomputes a mechanism's own, as its `shadow` names it.

    Without a name there is no second implementation, as for every rule from outside: the rule
    itself is asked again, with recomputed laws and allowances.
    """
    name, _, order = mechanism.shadow.partition(":")
    if not name:
        return mechanism.rule
    if name == "kl":
        return ShadowAnchored()
    if name == "renyi":
        return ShadowOrder(float(order))
    if name == "pathwise":
        return ShadowOrder(math.inf, realised=True)
    raise ValueError(f"no second implementation is called {mechanism.shadow!r}.")


@dataclass
class ShadowBank:
    """k_t = max(0, (t+1) k - sum of charges - debt), written down a second time."""

    k: float
    debt: float
    charges: list[float]

    def allowance(self) -> float:
        """Returns what the next step may spend."""
        earned = (len(self.charges) + 1) * self.k
        return earned if math.isinf(earned) else max(0.0, earned - self._spent() - self.debt)

    def pay(self, payment: Payment) -> None:
        """Books a step."""
        self.charges.append(payment.charge)

    def foresee(self, costs: Iterable[float]) -> list[float]:
        """Returns the allowances of the next steps if each spends all it needs or all it may."""
        owed, steps = self._spent() + self.debt, len(self.charges)
        found = []
        for step, cost in enumerate(costs, steps + 1):
            earned = step * self.k
            found.append(earned if earned == math.inf else max(0.0, earned - owed))
            owed += min(cost, found[-1])
        return found

    def __deepcopy__(self, memo: object) -> ShadowBank:
        return ShadowBank(self.k, self.debt, self.charges.copy())

    def _spent(self) -> float:
        return math.fsum(self.charges)


@dataclass
class _ShadowBucket:
    """A token bucket by its closed form.

    With X = what was earned less what was paid, bank_t = X_t + min(start - debt, cap - max X_s),
    the maximum over steps s up to t.
    """

    bucket: Bucket
    k: float
    start: float
    flow: float = 0.0
    peak: float = -math.inf

    def __post_init__(self) -> None:
        self._earn(self.k if self.bucket.refill == "token" else 0.0)

    def allowance(self) -> float:
        return max(0.0, self.flow + min(self.start, self.bucket.cap - self.peak))

    def pay(self, payment: Payment) -> None:
        earned = self.k
        if self.bucket.refill == "character":
            earned *= self.bucket.characters[payment.token]
        self._earn(earned - payment.charge)

    def _earn(self, nats: float) -> None:
        self.flow += nats
        self.peak = max(self.peak, self.flow)


def shadow_account(ledger: Ledger, k: float, debt: float) -> Account:
    """Opens an account that shares no code with the decoder's, if the ledger is a shipped one."""
    if isinstance(ledger, Banking):
        return ShadowBank(k, debt, [])
    if isinstance(ledger, Bucket):
        return _ShadowBucket(ledger, k, ledger.bank - debt)
    return ledger.open(k, debt)


def shadow_debt(gains: Sequence[float], rule: DebtRule) -> float:
    """Computes the prefix debt from the log-ratios of the prompt tokens (0 for special ones)."""
    largest = sorted((max(0.0, gain) for gain in gains), reverse=True)[: rule.n]
    count = len(largest) if rule.over_all else sum(g > 0 for g in largest)
    return math.fsum(largest) / count if count else 0.0
