"""Many looks, one level: what each may spend so that all of them together keep theirs."""

from __future__ import annotations

from dataclasses import dataclass

from nafaudit.core.errors import InputError
from nafaudit.stats.bound import check_level


@dataclass(frozen=True)
class Bonferroni:
    """A level shared by everything that was looked at, also by what was then left out.

    Attributes:
        delta: How often any of the statements may be wrong.
        looked: How many were looked at: classes times budgets times bounds, whatever a choice
            was made among; not what survived the choice.
    """

    delta: float
    looked: int

    def __post_init__(self) -> None:
        check_level(self.delta)
        if self.looked < 1:
            raise InputError(f"at least 1 thing was looked at, got {self.looked}.")

    @property
    def each(self) -> float:
        """Level of each statement."""
        return self.delta / self.looked

    def adjusted(self, p: float) -> float:
        """A p value after paying for all looks."""
        if not 0 <= p <= 1:
            raise InputError(f"a p value is in [0, 1], got {p}.")
        return min(1.0, p * self.looked)
