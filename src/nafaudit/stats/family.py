"""Many looks, one level: what each may spend so that all of them together keep theirs."""

from __future__ import annotations

from collections.abc import Sequence
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


def e_bh(evidence: Sequence[float], delta: float, looked: int) -> list[int]:
    """Places of the hypotheses that may be rejected, largest e-value first.

    The share of wrong rejections is at most delta in expectation, however the e-values depend on
    one another. Whatever was looked at without evidence has the e-value 0 and need not be given.
    Sharing delta instead asks of each an e-value of `looked` / delta; here r of them need
    `looked` / (r delta) each.

    Reference: Wang and Ramdas (2022), Journal of the Royal Statistical Society B 84.

    Args:
        evidence: E-values: each has mean at most 1 if its hypothesis is true.
        delta: The expected share of wrong ones among the rejected.
        looked: Hypotheses that were looked at, these included.
    """
    check_level(delta)
    if looked < max(1, len(evidence)):
        raise InputError(f"{len(evidence)} e-values of {looked} things that were looked at.")
    if not all(value >= 0 for value in evidence):
        raise InputError("an e-value is at least 0.")
    order = sorted(range(len(evidence)), key=lambda i: (-evidence[i], i))
    enough = [r for r, i in enumerate(order, start=1) if r * delta * evidence[i] >= looked]
    return order[: enough[-1]] if enough else []
