"""What is known of a prompt before a trajectory is paid for: where it lies, and five numbers.

Debt, surprisal per token under both models, their gap, and length, from one pass of each model
over the prompt. A text is read alone, so that its numbers do not depend on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.debt import DebtRule, prefix_debt
from nafaudit.core.design import Decoding
from nafaudit.engine.lanes import Scorer
from nafaudit.models.pair import Pair
from nafaudit.search.archive import Embedder

Array = NDArray[np.float64]
NUMBERS = ("debt", "safe surprisal", "risky surprisal", "gap", "log length")


class PromptFeatures:
    """Features of texts, each computed once.

    Args:
        pair: The models.
        decoding: Warps of their laws.
        debt: Definition of the debt.
        ids: Token ids of a text.
        embedder: Makes points of texts.
        context: Positions that the models have.
    """

    def __init__(
        self,
        pair: Pair,
        decoding: Decoding,
        debt: DebtRule,
        ids: Callable[[str], tuple[int, ...]],
        embedder: Embedder,
        *,
        context: int,
    ) -> None:
        self._scorers = [
            Scorer(model, pair.vocabulary, decoding, context=context)
            for model in (pair.safe, pair.risky)
        ]
        # A raw debt is counted in the models' own laws.
        self._own = [
            Scorer(model, pair.vocabulary, Decoding(), context=context)
            for model in (pair.safe, pair.risky)
        ]
        self._debt, self._ids = debt, ids
        self._special = frozenset(pair.vocabulary.special)
        self.embedder = embedder
        self._known: dict[str, tuple[Array, Array]] = {}

    def __call__(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """Embeddings and numbers, one row per text."""
        rows = [self._row(text) for text in texts]
        return np.array([point for point, _ in rows]), np.array([found for _, found in rows])

    def _row(self, text: str) -> tuple[Array, Array]:
        if text not in self._known:
            # Alone: in a batch, padding would change the last bits.
            self._known[text] = self.embedder.embed([text])[0], self.numbers(text)
        return self._known[text]

    def numbers(self, text: str) -> Array:
        """The numbers of `NUMBERS`."""
        ids = self._ids(text)
        if len(ids) < 2:
            return np.array([0.0, 0.0, 0.0, 0.0, math.log(1 + len(ids))])
        safe, risky = (one.surprisals(ids[:1], ids[1:]) for one in self._scorers)
        counted = np.array([token not in self._special for token in ids[1:]])
        owing = safe - risky
        if self._debt.raw:
            one, other = (own.surprisals(ids[:1], ids[1:]) for own in self._own)
            owing = one - other
        debt = prefix_debt(owing, counted, self._debt)
        means = float(safe.mean()), float(risky.mean())
        return np.array([debt, *means, means[0] - means[1], math.log(1 + len(ids))])
