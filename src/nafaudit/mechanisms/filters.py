"""The risky model with some of its tokens taken away or replaced: MemFree and TokenSwap.

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

import torch
from torch import Tensor

from nafaudit.core.errors import LawError
from nafaudit.core.ledger import NONE
from nafaudit.mechanisms.laws import NEG_INF, kl, normalise
from nafaudit.mechanisms.protocols import Served

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
        """The risky law, renormalised where something is banned."""
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
    """Which ids complete an n-gram of some texts, by the n - 1 tokens before."""
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
        """The risky law off the list, the safe law scaled on it."""
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
    """Token ids that are a word of a list, whatever its case and the space before it."""
    wanted = {word.strip().lower() for word in words}
    found = []
    for token, piece in enumerate(pieces):
        text = (piece or b"").decode("utf-8", errors="replace").strip().lower()
        if text and text in wanted:
            found.append(token)
    return tuple(found)


def digest(values: object) -> str:
    """Short hash of what decides a filter, for the name that records carry."""
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
