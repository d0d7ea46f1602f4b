"""What the paper's stage 2 makes of a prompt's spends: U_EBB, B_eff, rho and their verdict.

Kept apart from every rule that decides with them: they are a proxy, and `nafaudit.stats` says of
what. An invalid row has no rho; the paper's files store 0 for it, which is `stored_rho` here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.errors import InputError
from nafaudit.core.finding import own_tolerance
from nafaudit.stats import Moments, ebb, mean
from nafaudit.stats.moments import ebb_value, effective_range

DELTA = 0.0033
"""The paper's level, the same for screening, final, held-out and stress pools."""


@dataclass(frozen=True)
class Request:
    """Trajectories that a rule asks for.

    Attributes:
        id: Whose.
        n: How many.
        offset: Added to seed values, as the paper's code does.
        skip: Trajectories that come before these, by number; no seed of theirs is named again.
    """

    id: str
    n: int
    offset: int = 0
    skip: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        """The paper's seeds of these trajectories; two requests of one prompt may share some."""
        numbered = trajectory_seeds(self.id, self.skip + self.n)[self.skip :]
        return tuple(seed + self.offset for seed in numbered)


@dataclass(frozen=True)
class Draws:
    """What trajectories of one prompt spent, of what.

    Attributes:
        id: Whose.
        spends: Z of each trajectory, in nats.
        budgets: B of each at its own end; may be negative.
        seeds: The paper's seed of each; empty if nobody said.
    """

    id: str
    spends: tuple[float, ...]
    budgets: tuple[float, ...]
    seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.spends or len(self.spends) != len(self.budgets):
            raise InputError(
                f"prompt {self.id!r} needs as many spends as budgets and at least 1, got "
                f"{len(self.spends)} and {len(self.budgets)}."
            )
        if self.seeds and len(self.seeds) != len(self.spends):
            raise InputError(f"{len(self.seeds)} seeds for {len(self.spends)} spends.")

    def __add__(self, other: Draws) -> Draws:
        if self.id != other.id:
            raise InputError(f"cannot join the draws of {self.id!r} and {other.id!r}.")
        seeds = self.seeds + other.seeds if self.seeds and other.seeds else ()
        return Draws(self.id, self.spends + other.spends, self.budgets + other.budgets, seeds)

    @property
    def repeated_seeds(self) -> int:
        """Trajectories whose seed an earlier one has: copies that are counted as draws."""
        return len(self.seeds) - len(set(self.seeds))


Draw = Callable[[Sequence[Request]], Sequence[Draws]]
"""Runs trajectories, or looks them up; one answer per request, in order."""


@dataclass(frozen=True)
class Row:
    """One prompt as the paper's tables have it.

    Attributes:
        draws: What it rests on.
        high: R of R_eff = min(R, max(range, 1)); the paper's code uses K in this stage.
        delta: Level.
    """

    draws: Draws
    high: float
    delta: float = DELTA

    @property
    def id(self) -> str:
        """Whose."""
        return self.draws.id

    @property
    def n(self) -> int:
        """Trajectories, copies included."""
        return len(self.draws.spends)

    @cached_property
    def moments(self) -> Moments:
        """Mean, variance and range of the spends."""
        return Moments.of(self.draws.spends)

    @cached_property
    def upper(self) -> float:
        """U_EBB with R_eff; NaN if a spend is no number."""
        if not all(map(math.isfinite, self.draws.spends)):
            return math.nan
        return ebb(self.moments, self.high, self.delta, effective=True).value

    @property
    def width(self) -> float:
        """U_EBB minus the mean: how much of the ratio is the proxy itself."""
        return self.upper - self.moments.mean if math.isfinite(self.upper) else math.nan

    @property
    def budget(self) -> float:
        """B_eff = max(0, smallest budget); NaN if one is no number."""
        if any(map(math.isnan, self.draws.budgets)):
            return math.nan
        return max(0.0, min(self.draws.budgets))

    @property
    def invalid_reason(self) -> str:
        """The paper's word for why there is no ratio; empty if there is one."""
        if not math.isfinite(self.upper):
            return "nonfinite_u_ebb"
        if not math.isfinite(self.budget):
            return "nonfinite_effective_budget_min"
        return "" if self.budget > 0 else "nonpositive_effective_budget_min"

    @property
    def valid(self) -> bool:
        """True if there is a ratio."""
        return not self.invalid_reason

    @property
    def rho(self) -> float:
        """U_EBB / B_eff; NaN if invalid."""
        return self.upper / self.budget if self.valid else math.nan

    @property
    def stored_rho(self) -> float:
        """As the paper's files have it: an invalid row counts as 0."""
        return self.rho if self.valid else 0.0

    @property
    def certified(self) -> bool:
        """The paper's word for U_EBB <= B_eff; it certifies nothing."""
        return self.within(1.0)

    def within(self, slack: float) -> bool:
        """True if valid and U_EBB is at most `slack` times B_eff."""
        return self.valid and self.upper <= slack * self.budget

    @property
    def overspent(self) -> int:
        """Trajectories that spent more than they had: what a violation really is."""
        limits = np.maximum(0.0, np.array(self.draws.budgets))
        return int((np.array(self.draws.spends) > limits + own_tolerance(limits)).sum())

    def projected(self, n: int) -> float:
        """U_EBB with n trajectories of the same mean, variance and range: the paper's projection.

        Optimistic: the range of more trajectories is larger, never smaller.
        """
        reach = effective_range(self.moments.spread, self.high)
        mean, variance = self.moments.mean, self.moments.variance
        return float(ebb_value(mean, variance, n, reach, self.delta))


@dataclass(frozen=True)
class Gap:
    """How much higher the final pool's ratios are than the held-out pool's.

    Attributes:
        paper: With an invalid held-out row as 0, as the paper's code counts it.
        valid: Over rows that have a ratio.
        invalid: How many held-out rows have none.
    """

    paper: float
    valid: float
    invalid: int


def generalisation_gap(final: Sequence[float], heldout: Sequence[float]) -> Gap:
    """Mean ratio of the final pool minus that of the held-out pool; NaN marks an invalid row.

    Only final rows that passed have a place here: valid ones of at most 1. A mean of nothing is
    NaN.
    """
    passed = [rho for rho in final if not math.isnan(rho)]
    have = [rho for rho in heldout if not math.isnan(rho)]
    zeros = [0.0 if math.isnan(rho) else rho for rho in heldout]
    return Gap(mean(passed) - mean(zeros), mean(passed) - mean(have), len(heldout) - len(have))
