"""What the records alone show: each check sees every trajectory of an arm, then answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from nafaudit.core.finding import (
    Finding,
    Witness,
    judge_kept,
    judge_tested,
    own_tolerance,
)
from nafaudit.core.ledger import Banking, Ledger
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.stats import zero_count_upper


@dataclass
class Worst:
    """The largest value seen and where; ties go to the first key, whatever the order."""

    value: float = -math.inf
    witness: Witness | None = None

    def offer(self, value: float, key: Key, step: int) -> None:
        """Takes a value that may be the largest."""
        if value > self.value or (
            self.witness is not None and value == self.value and key < self.witness.key
        ):
            self.value, self.witness = value, Witness(key, step)


class Check(Protocol):
    """Trajectories of one arm in, one finding out. A new check is a class like those below."""

    def see(self, trajectory: Trajectory) -> None:
        """Takes in one trajectory; keeps what it needs and no more."""
        ...

    def finding(self) -> Finding:
        """Answers."""
        ...


@dataclass
class Invariant:
    """Kept? No step is charged above its allowance, no prefix above what it was granted."""

    ledger: Ledger = field(default_factory=Banking)
    trajectories: int = 0
    violations: int = 0
    prompts: set[str] = field(default_factory=set)
    worst: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Compares every step and every prefix with its limit."""
        steps = trajectory.steps
        granted = self.ledger.accrued(trajectory.key.k, trajectory.debt, steps.token)
        step_excess = _excess(steps.charge, steps.allowance)
        prefix_excess = _excess(np.cumsum(steps.charge), np.maximum(granted, 0.0))
        excess = np.maximum(step_excess, prefix_excess)
        over = excess - own_tolerance(steps.allowance)
        at = int(np.argmax(over))
        self.trajectories += 1
        self.prompts.add(trajectory.key.prompt)
        self.violations += bool(over[at] > 0)
        self.worst.offer(float(over[at]), trajectory.key, at)

    def finding(self) -> Finding:
        """VIOLATED with the worst step, WITHIN with what 0 of n says, or INCONCLUSIVE."""
        verdict = judge_kept(self.trajectories, self.violations)
        if self.violations:
            text = (
                f"{self.violations} of {self.trajectories} trajectories exceed their budget, the "
                f"worst by {self.worst.value:.3g} nats"
            )
            return Finding("invariant", verdict, self.violations, text, self.worst.witness)
        if not self.trajectories:
            return Finding("invariant", verdict, 0, "no trajectory recorded")
        text = (
            f"0 of {self.trajectories} trajectories exceed their budget: true rate below "
            f"{zero_count_upper(self.trajectories):.2%} at 95 % (of prompts: below "
            f"{zero_count_upper(len(self.prompts)):.2%})"
        )
        return Finding("invariant", verdict, 0, text)


@dataclass
class Regime:
    """Tested? Shares of steps forced to the safe law, active in between, and free."""

    forced: int = 0
    active: int = 0
    free: int = 0
    opening: int = 0

    def see(self, trajectory: Trajectory) -> None:
        """Counts steps by the weight of the risky law."""
        theta = trajectory.steps.theta
        forced = theta == 0
        self.forced += int(forced.sum())
        self.free += int((theta == 1).sum())
        self.active += int(((theta > 0) & (theta < 1)).sum())
        # The debt's share: steps from the first on that had nothing to spend.
        unpaid = np.cumprod(forced & (trajectory.steps.allowance <= 0))
        self.opening += int(unpaid.sum()) if trajectory.debt > 0 else 0

    @property
    def steps(self) -> int:
        """Steps with a weight."""
        return self.forced + self.active + self.free

    def share(self, count: int) -> float:
        """A count as a share of all steps; NaN if there are none."""
        return count / self.steps if self.steps else math.nan

    def finding(self) -> Finding:
        """ACTIVE or IDLE with the share of active steps."""
        verdict = judge_tested(self.active, self.steps - self.opening)
        text = (
            f"{self.share(self.active):.2%} of {self.steps} steps active, "
            f"{self.share(self.forced):.2%} forced to the safe model, "
            f"{self.share(self.free):.2%} the risky model unchanged"
        )
        return Finding("regime", verdict, self.share(self.active), text)


@dataclass
class Utilisation:
    """How much of its own budget each trajectory spent."""

    ledger: Ledger = field(default_factory=Banking)
    spends: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    broke: int = 0
    worst: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Divides spend by the budget at the trajectory's own end."""
        spend = trajectory.spend
        self.spends.append(spend)
        steps = trajectory.steps
        budget = float(self.ledger.accrued(trajectory.key.k, trajectory.debt, steps.token)[-1])
        if budget <= 0:
            # It ended before its debt was paid: nothing could be spent, so there is no ratio.
            self.broke += 1
            return
        value = 0.0 if math.isinf(budget) else spend / budget
        self.values.append(value)
        self.worst.offer(value, trajectory.key, len(trajectory) - 1)

    def quantile(self, q: float) -> float:
        """A quantile of utilisation; NaN if there is none."""
        return float(np.quantile(self.values, q)) if self.values else math.nan

    @property
    def mean(self) -> float:
        """Mean utilisation; NaN if there is none."""
        # fsum is exact, so the order in which parts were written cannot show.
        return math.fsum(self.values) / len(self.values) if self.values else math.nan

    @property
    def mean_spend(self) -> float:
        """Mean spend in nats."""
        return math.fsum(self.spends) / len(self.spends) if self.spends else math.nan

    def finding(self) -> Finding:
        """The worst utilisation and where it is."""
        worst = self.worst.value if self.values else math.nan
        text = (
            f"utilisation mean {self.mean:.1%}, 95 % of trajectories below "
            f"{self.quantile(0.95):.1%}, worst {worst:.1%}"
        )
        if self.broke:
            text += f"; {self.broke} ended before their debt was paid"
        return Finding("utilisation", "INFO", worst, text, self.worst.witness)


def _excess(spent: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Spent - limit, with no limit meaning no excess even for an infinite charge."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isposinf(limit), -np.inf, spent - limit)
