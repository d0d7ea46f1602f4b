"""The shadow of decoding under a Rényi divergence: by psi alone, never by the served law.

D_alpha(p_theta || p_s) = [psi(alpha theta) - alpha psi(theta)] / (alpha - 1), and for the largest
log-ratio theta max l - psi(theta). The root is bracketed and halved; `divergences.py` is not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nafaudit.core.ledger import REALISED, renyi_spec
from nafaudit.protocols import Served

_NEG_INF = -math.inf
_NOTHING = 1e-10
_HALVINGS = 52


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
        """What a sound decoder serves."""
        return self.serve_at_cost(safe, risky, allowance, self.cost(safe, risky))

    def serve_at_cost(self, safe: Tensor, risky: Tensor, allowance: Tensor, cost: Tensor) -> Served:
        """The same, for whoever has the price of the risky law already."""
        funded = allowance >= _NOTHING
        free = funded & (cost <= allowance)
        theta = free.to(torch.float64)
        rows = (funded & ~free).nonzero().squeeze(-1)
        if rows.numel():
            theta[rows] = self._root(safe[rows], risky[rows], allowance[rows])
        law = self.law_at(safe, risky, theta)
        return Served(law, self.charge_at(safe, risky, theta, cost), theta)

    def cost(self, safe: Tensor, risky: Tensor) -> Tensor:
        """What the risky law itself costs: sum p_r^alpha p_s^(1-alpha), written out."""
        served = risky > _NEG_INF
        if self.alpha == math.inf:
            ratio = torch.where(served, risky - safe, _NEG_INF)
            return ratio.max(dim=-1).values.clamp_min(0.0)
        terms = self.alpha * risky - (self.alpha - 1) * safe  # inf where only p_s forbids
        total = torch.logsumexp(torch.where(served, terms, _NEG_INF), dim=-1)
        return (total / (self.alpha - 1)).clamp_min(0.0)

    def charge_at(self, safe: Tensor, risky: Tensor, theta: Tensor, cost: Tensor) -> Tensor:
        """The true charge of serving these weights, whoever claims them."""
        charge = torch.where(theta >= 1, cost, 0.0)
        rows = ((theta > 0) & (theta < 1)).nonzero().squeeze(-1)
        if rows.numel():
            tilt = _Tilt(safe[rows], risky[rows])
            charge[rows] = self._price(tilt, theta[rows])
        return charge

    def law_at(self, safe: Tensor, risky: Tensor, theta: Tensor) -> Tensor:
        """p_theta of each row; its end points are the two laws themselves."""
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
        """The largest theta in [0, 1) that fits; 0 where the two laws share no token."""
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
