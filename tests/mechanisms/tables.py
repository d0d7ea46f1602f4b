"""A pair of random order-1 tables, small enough to write every output out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.protocols import Law


class TableWorld:
    """Next-token laws that depend on the last token; the last id stops."""

    checkpoints = ("", "")
    decoding = Decoding()

    def __init__(self, size: int = 5, seed: int = 0, debt: int = 5) -> None:
        logits = np.random.default_rng(seed).normal(0, 1.5, (2, size, size))
        self._safe, self._risky = log_softmax(logits, axis=-1)
        self.size = size
        self.stops = frozenset({size - 1})
        self.special: frozenset[int] = frozenset()
        self.debt = DebtRule(debt)

    def laws(self, prefixes: Sequence[Sequence[int]]) -> tuple[Law, Law]:
        last = [prefix[-1] for prefix in prefixes]
        return self._safe[last], self._risky[last]

    def prefix_laws(self, tokens: Sequence[int], *, raw: bool = False) -> tuple[Law, Law]:
        return self.laws([[token] for token in tokens])
