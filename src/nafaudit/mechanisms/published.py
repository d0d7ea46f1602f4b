"""Published rules: CP-Delta, CP-Fuse, MemFree, TokenSwap.

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

The risky model with some of its tokens taken away or replaced: MemFree and TokenSwap.

Neither promises a budget: the first protects the listed text from verbatim n-grams, the second
takes the frequent words from the safe model. Both are charged the KL of what they serve, to inform.

References:
    Ippolito et al. (2023), Preventing verbatim memorization in language models gives a false
    sense of privacy: MemFree.
    Prashant, Ponkshe, Salimi (2025), TokenSwap. The list of words here is our own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from nafaudit.core.errors import LawError
from nafaudit.core.ledger import KL, NONE, renyi_spec
from nafaudit.mechanisms.divergences import renyi
from nafaudit.mechanisms.laws import NEG_INF, kl, normalise
from nafaudit.protocols import Served

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
        """Serves the common law where its own price is within the allowance, else the safe law."""
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
        """Serves the grid's best law by row; `allowance` is log p_s(y_<t) - log p_r(y_<t)."""
        laws = [_fuse(*row) for row in zip(safe, risky, allowance.tolist(), strict=True)]
        law = torch.stack(laws)
        return Served(law, kl(law, safe), torch.full_like(allowance, math.nan))


def _fuse(safe: Tensor, risky: Tensor, lead: float) -> Tensor:
    open_ = (safe > NEG_INF) | (risky > NEG_INF)
    s, r = safe.clamp_min(_FORBIDDEN), risky.clamp_min(_FORBIDDEN)
    one, other = _best_weights(s, r, open_, lead)
    return normalise(torch.where(open_, one * s + other * r, NEG_INF))


def _best_weights(s: Tensor, r: Tensor, open_: Tensor, lead: float) -> tuple[float, float]:
    """Returns the first pair of the grid with the least objective.

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
    """Computes the sums pair by pair, where a product of powers underflows."""
    tilted = grid[:, None, None] * s + grid[None, :, None] * r
    tilted = torch.where(open_, tilted, NEG_INF)
    total = torch.logsumexp(tilted, dim=-1)
    weight = torch.exp(tilted - total.unsqueeze(-1))
    return total, (weight * s).sum(dim=-1), (weight * r).sum(dim=-1)


Tokens = tuple[int, ...]


@dataclass(frozen=True)
class MemFree:
    """The risky law without the tokens that would complete a listed n-gram.

    Attributes:
        n: Length of the n-grams, in tokens.
        banned: Which ids complete one, by the n - 1 tokens before.
    """

    n: int
    banned: Mapping[Tokens, frozenset[int]] = field(repr=False)

    currency = NONE

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """Serves the risky law, renormalised where something is banned."""
        law, theta = risky.clone(), torch.ones_like(allowance)
        for row, prefix in enumerate(prefixes):
            ids = self.banned.get(tuple(prefix[len(prefix) - self.n + 1 :]))
            if ids is None or len(prefix) < self.n - 1:
                continue
            law[row, list(ids)] = NEG_INF
            if not (law[row] > NEG_INF).any():
                raise LawError("memfree: the block list forbids every token; shorten the list.")
            law[row] = normalise(law[row : row + 1])[0]
            theta[row] = math.nan
        return Served(law, kl(law, safe), theta)


def block_list(texts: Iterable[Tokens], n: int) -> dict[Tokens, frozenset[int]]:
    """Returns which ids complete an n-gram of some texts, by the n - 1 tokens before."""
    found: dict[Tokens, set[int]] = {}
    for tokens in texts:
        for end in range(n - 1, len(tokens)):
            found.setdefault(tokens[end - n + 1 : end], set()).add(tokens[end])
    return {before: frozenset(ids) for before, ids in found.items()}


@dataclass(frozen=True)
class TokenSwap:
    """The risky law, but the words of a list in the proportions of the safe model.

    Attributes:
        swapped: Token ids of the list. Their mass stays what the risky model gives them.
    """

    swapped: Tokens = field(repr=False)

    currency = NONE

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """Serves the risky law off the list, the safe law scaled on it."""
        ids = torch.tensor(self.swapped, dtype=torch.long, device=safe.device)
        ours, theirs = risky[:, ids], safe[:, ids]
        scale = torch.logsumexp(ours, dim=-1) - torch.logsumexp(theirs, dim=-1)
        # A list to which either model gives nothing cannot be swapped.
        known = torch.isfinite(scale)
        swapped = torch.where(known.unsqueeze(-1), theirs + scale.unsqueeze(-1), ours)
        law = risky.clone()
        law[:, ids] = swapped
        same = (law == risky).all(dim=-1)
        theta = torch.full_like(allowance, math.nan).masked_fill(same, 1.0)
        return Served(law, kl(law, safe), theta)


def ids_of_words(pieces: Sequence[bytes | None], words: Iterable[str]) -> Tokens:
    """Returns token ids that are a word of a list, whatever its case and the space before it."""
    wanted = {word.strip().lower() for word in words}
    found = []
    for token, piece in enumerate(pieces):
        text = (piece or b"").decode("utf-8", errors="replace").strip().lower()
        if text and text in wanted:
            found.append(token)
    return tuple(found)


def digest(values: object) -> str:
    """Returns a short hash of what decides a filter, for the name that records carry."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


# Articles, pronouns, prepositions, conjunctions, auxiliaries and the like: 110 of the commonest.
_WORDS = """
a about after all also an and any are as at be because been before being between both but by can
could did do does down during each either few for from had has have he her here him his how i if
in into is it its just like may me might more most much must my no nor not now of off on one
only or other our out over own shall she should since so some such than that the their them then
there these they this those through to too under until up upon us very was we were what when
where which while who will
"""
FUNCTION_WORDS = tuple(_WORDS.split())
