"""Does one way of searching beat another, with search seeds as units?

Fresh draws of two prompts tell these two prompts apart, and nothing of the next search. Over
several search seeds the differences themselves are a sample: their median has an exact interval
that rests on nothing but independent seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nafaudit.core.errors import InputError
from nafaudit.stats.bound import check_level


def median_ranks(count: int, delta: float) -> int:
    """How many values may be left out at each end; 0 if not even the extremes hold.

    The interval from the r-th smallest to the r-th largest of n independent values misses their
    median with chance at most 2 P(Bin(n, 1/2) < r), whatever they are.

    Reference: Thompson (1936), Annals of Mathematical Statistics 7.
    """
    check_level(delta)
    mass, rank = 0.0, 0
    while rank < count // 2:
        mass += math.comb(count, rank) * 0.5 ** (count - 1)
        if mass > delta:
            break
        rank += 1
    return rank


@dataclass(frozen=True)
class Paired:
    """A search against a control, one difference per search seed.

    Attributes:
        control: Which.
        differences: Search minus control, of confirmed mean utilisation.
        delta: How often the limits may miss.
    """

    control: str
    differences: tuple[float, ...]
    delta: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.differences)):
            raise InputError("a difference is no number; leave out seeds without a value.")

    @property
    def mean(self) -> float:
        """Of the differences; NaN if there are none."""
        return statistics.fmean(self.differences) if self.differences else math.nan

    @property
    def median(self) -> float:
        """Of the differences; NaN if there are none."""
        return statistics.median(self.differences) if self.differences else math.nan

    @property
    def limits(self) -> tuple[float, float]:
        """Exact limits of the median difference; infinite with too few seeds."""
        rank = median_ranks(len(self.differences), self.delta)
        if not rank:
            return -math.inf, math.inf
        ordered = sorted(self.differences)
        return ordered[rank - 1], ordered[-rank]

    @property
    def wins(self) -> int:
        """Seeds in which the search is ahead."""
        return sum(one > 0 for one in self.differences)

    @property
    def answer(self) -> str:
        """Said in one word; a difference that 0 may explain is no difference."""
        low, high = self.limits
        if low > 0:
            return "beats"
        return "loses" if high < 0 else "not told apart"


def paired(
    search: Sequence[float], controls: Mapping[str, Sequence[float]], delta: float
) -> list[Paired]:
    """Compares seed by seed, all controls together at level delta; NaN is left out."""
    return [
        Paired(
            name,
            tuple(
                mine - other
                for mine, other in zip(search, values, strict=True)
                if math.isfinite(mine) and math.isfinite(other)
            ),
            delta / len(controls),
        )
        for name, values in controls.items()
    ]
