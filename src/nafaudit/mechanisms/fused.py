"""Two models fused without a search along the line between them: CP-Delta and CP-Fuse.

CP-Delta serves p ~ min(p_s, p_r), which no token makes more than 1 / (1 - TV) likelier than either
model does, or p ~ sqrt(p_s p_r), whose KL from both together is -2 log(1 - H^2). It is served here
where the allowance pays for it, and the safe law elsewhere: with a budget that never binds this is
the published rule, token by token, and its own promise is what its charges sum up to.

CP-Fuse serves p ~ p_s^b1 p_r^b2 with the weights of a grid that minimise
max_i [KL(p || p_i) - log p_i(y_<t)], so that the model that finds the text so far likelier is held
back. The weights do not sum to 1, and no budget is promised.

References:
    Vyas, Kakade, Barak (2023), On provable copyright protection for generative models: CP-Delta.
    Abad et al. (2025), Copyright-protected language generation via adaptive model fusion: CP-Fuse;
    objective and grid as in the published code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nafaudit.core.ledger import KL, NONE, renyi_spec
from nafaudit.mechanisms.laws import NEG_INF, kl, normalise
from nafaudit.mechanisms.orders import renyi
from nafaudit.mechanisms.protocols import Served

# Ten even points from 0 to 2, then whole numbers to 10.
GRID = (*(2 * i / 9 for i in range(9)), *(float(b) for b in range(2, 11)))
# A forbidden token counts as this unlikely: no weighting that serves it can be the best.
_FORBIDDEN = -1e4
# Below this a product of two powers has underflowed.
_TINY = 1e-250


@dataclass(frozen=True)
class CpDelta:
    """The law that both models can live with, where it is paid for.

    Attributes:
        divergence: `max` for p ~ min(p_s, p_r), `kl` for p ~ sqrt(p_s p_r).
    """

    divergence: Literal["max", "kl"] = "max"

    @property
    def currency(self) -> str:
        """What is charged."""
        return renyi_spec(math.inf) if self.divergence == "max" else KL

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """The common law where its own price is within the allowance, else the safe law."""
        if self.divergence == "max":
            law = normalise(torch.minimum(safe, risky))
            price = renyi(law, safe, math.inf)
        else:
            law = normalise((safe + risky) / 2)
            price = kl(law, safe)
        # Laws that share no token have no common law: NaN, which is not within.
        paid = price <= allowance
        weight = 0.5 if self.divergence == "kl" else math.nan
        return Served(
            torch.where(paid.unsqueeze(-1), law, safe),
            torch.where(paid, price, 0.0),
            torch.zeros_like(price).masked_fill(paid, weight),
        )


@dataclass(frozen=True)
class CpFuse:
    """Balances two models; its ledger hands it how much likelier the safe one finds the text."""

    currency = NONE

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """The best law of the grid, row by row; `allowance` is log p_s(y_<t) - log p_r(y_<t)."""
        laws = [_fuse(*row) for row in zip(safe, risky, allowance.tolist(), strict=True)]
        law = torch.stack(laws)
        return Served(law, kl(law, safe), torch.full_like(allowance, math.nan))


def _fuse(safe: Tensor, risky: Tensor, lead: float) -> Tensor:
    open_ = (safe > NEG_INF) | (risky > NEG_INF)
    s, r = safe.clamp_min(_FORBIDDEN), risky.clamp_min(_FORBIDDEN)
    one, other = _best_weights(s, r, open_, lead)
    return normalise(torch.where(open_, one * s + other * r, NEG_INF))


def _best_weights(s: Tensor, r: Tensor, open_: Tensor, lead: float) -> tuple[float, float]:
    """The first pair of the grid with the least objective.

    With A = p_s^b1 and B = p_r^b2 as rows of tables, the mass of every pair is A B', and the means
    of log p_s and log p_r are those of tables weighted once: three small products, no table of
    pairs times tokens.
    """
    grid = torch.tensor(GRID, dtype=s.dtype, device=s.device)
    tops = s.max(), r.max()
    left = torch.exp(grid.unsqueeze(-1) * (s - tops[0])) * open_
    right = torch.exp(grid.unsqueeze(-1) * (r - tops[1]))
    mass = left @ right.T
    if (mass < _TINY).any():
        logs = _log_sums(s, r, open_, grid)
    else:
        shift = grid.unsqueeze(-1) * tops[0] + grid * tops[1]
        means = (left * s) @ right.T / mass, left @ (right * r).T / mass
        logs = torch.log(mass) + shift, *means
    total, mean_s, mean_r = logs
    entropy = grid.unsqueeze(-1) * mean_s + grid * mean_r - total
    loss = entropy + torch.maximum(-mean_s, -mean_r + lead)
    at = int(loss.flatten().argmin())
    return GRID[at // len(GRID)], GRID[at % len(GRID)]


def _log_sums(s: Tensor, r: Tensor, open_: Tensor, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same pair by pair, where a product of powers underflows."""
    tilted = grid[:, None, None] * s + grid[None, :, None] * r
    tilted = torch.where(open_, tilted, NEG_INF)
    total = torch.logsumexp(tilted, dim=-1)
    weight = torch.exp(tilted - total.unsqueeze(-1))
    return total, (weight * s).sum(dim=-1), (weight * r).sum(dim=-1)
