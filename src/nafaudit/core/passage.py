"""Surprisals of passages under the safe model, which decide what a budget is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.trajectory import total

# Decimals of a surprisal that are kept: short to write, and the sum that a reader makes of the
# written numbers is the sum that was judged.
DECIMALS = 9


@dataclass(frozen=True)
class ScoredPassage:
    """One passage and -log p_safe of each of its tokens given what stands before it.

    Attributes:
        id: Which passage.
        length: Its tokens, the unscored ones included.
        surprisals: In nats, from the first token on; infinite for a token that the safe model
            forbids. May end before the passage does, where no output could be longer.
    """

    id: str
    length: int
    surprisals: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.surprisals) <= self.length:
            raise ValueError(
                f"passage {self.id!r} of {self.length} tokens needs 1 to {self.length} "
                f"surprisals, got {len(self.surprisals)}."
            )
        if not all(value >= 0 for value in self.surprisals):  # NaN fails it too
            raise ValueError(f"passage {self.id!r} has a surprisal that is negative or NaN.")

    def surprisal(self, longest: int) -> float:
        """Returns S: nats of the first `longest` tokens, which is all that one output can hold.

        Args:
            longest: Length limit T of an output; 0 if there is none.
        """
        if longest == 0 or longest > len(self.surprisals):
            longest = len(self.surprisals)
            if longest < self.length:
                return math.nan
        return total(self.surprisals[:longest])

    @property
    def prefixes(self) -> NDArray[np.float64]:
        """S of every prefix, from the first token on."""
        return np.cumsum(self.surprisals)

    def windows(self, size: int) -> NDArray[np.float64]:
        """Returns S of every run of `size` tokens given what precedes it; none if it is shorter."""
        if size < 1:
            raise ValueError(f"a window has at least 1 token, got {size}.")
        if size > len(self.surprisals):
            return np.empty(0)
        # Not differences of prefix sums: one infinite token must not spoil windows without it.
        runs = np.lib.stride_tricks.sliding_window_view(np.array(self.surprisals), size)
        return np.asarray(runs.sum(axis=1))


@dataclass(frozen=True)
class PassageScores:
    """Every passage of a run or a certificate, and what the numbers are given.

    Attributes:
        context: What stands before each passage, in words.
        anchor: Whose surprisals these are, in words.
        passages: In the order in which they were given; ids are unique.
    """

    context: str
    anchor: str
    passages: tuple[ScoredPassage, ...]

    def __len__(self) -> int:
        return len(self.passages)
