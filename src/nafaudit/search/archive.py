"""What a search remembers: three rules for which prompts stay, one of them the paper's.

Nothing is forgotten for being bad news: an archive is what the search builds upon, and the result
is kept apart from it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nafaudit.core.errors import InputError
from nafaudit.search.dpp import greedy_map, kernel

ARCHIVE_KEEP = 24


def dpp_archive(scores: ArrayLike, embeddings: ArrayLike, keep: int = ARCHIVE_KEEP) -> list[int]:
    """Places of the greedy likeliest k-DPP set, quality-weighted, in the order of choice."""
    return greedy_map(kernel(embeddings, scores), keep)


def paper_archive(
    ratios: Sequence[float], embeddings: NDArray[np.float64], keep: int = ARCHIVE_KEEP
) -> list[int]:
    """The rule that the paper calls a k-DPP: half quality, half distance to the nearest chosen.

    Starts from the largest ratio; quality is the ratio scaled to [0, 1]. The result is sorted by
    ratio. With at most `keep` items all stay.
    """
    rho = np.asarray(ratios, dtype=np.float64)
    everyone = sorted(range(rho.size), key=lambda i: (-rho[i], i))
    if rho.size <= keep:
        return everyone
    spread = rho.max() - rho.min()
    quality = (rho - rho.min()) / spread if spread > 0 else np.zeros_like(rho)
    taken = [everyone[0]]
    away = np.linalg.norm(embeddings - embeddings[taken[0]], axis=1)
    while len(taken) < keep:
        score = 0.5 * quality + 0.5 * away
        score[taken] = -np.inf
        taken.append(int(np.argmax(score)))
        away = np.minimum(away, np.linalg.norm(embeddings - embeddings[taken[-1]], axis=1))
    return sorted(taken, key=lambda i: (-rho[i], i))


@dataclass(frozen=True)
class MapElites:
    """One elite per cell of (class, length, debt), so that no kind of prompt crowds out others.

    Attributes:
        lengths: Where a longer bin begins, in tokens.
        debts: Where a deeper bin begins, in nats.
    """

    lengths: tuple[float, ...] = (40.0, 80.0, 160.0)
    debts: tuple[float, ...] = (1.0, 3.0, 6.0)

    def __post_init__(self) -> None:
        for name, edges in (("length", self.lengths), ("debt", self.debts)):
            if list(edges) != sorted(set(edges)):
                raise InputError(f"{name} edges must increase, got {edges}.")

    def cell(self, label: str, length: float, debt: float) -> tuple[str, int, int]:
        """The cell of a prompt; a debt that is not known has a cell of its own."""
        deep = -1 if math.isnan(debt) else bisect.bisect_right(self.debts, debt)
        return label, bisect.bisect_right(self.lengths, length), deep

    def elites(
        self, scores: Sequence[float], cells: Sequence[tuple[str, int, int]]
    ) -> dict[tuple[str, int, int], int]:
        """Place of the best of each cell; a score that is not known never wins, ties stay."""
        best: dict[tuple[str, int, int], int] = {}
        for place, (score, cell) in enumerate(zip(scores, cells, strict=True)):
            if not math.isnan(score) and (cell not in best or score > scores[best[cell]]):
                best[cell] = place
        return best
