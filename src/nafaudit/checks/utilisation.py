"""How much of its own budget each trajectory spent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nafaudit.checks.check import Facts, Worst, mean, quantile
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.trajectory import Trajectory


@dataclass
class Utilisation:
    """Spend over budget at each trajectory's own end; without a budget there is no ratio."""

    facts: Facts
    spends: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    broke: int = 0
    worst: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Divides spend by the budget at the trajectory's own end."""
        spend = trajectory.spend
        self.spends.append(spend)
        budget = self.facts.budget(trajectory)
        if math.isinf(trajectory.key.k) or math.isnan(budget):
            return
        if budget <= 0:
            # It ended before its debt was paid: nothing could be spent, so there is no ratio.
            self.broke += 1
            return
        value = spend / budget
        self.values.append(value)
        self.worst.offer(value, trajectory.key, max(0, len(trajectory) - 1))

    def quantile(self, q: float) -> float:
        """A quantile of utilisation; NaN if there is none."""
        return quantile(self.values, q)

    @property
    def mean(self) -> float:
        """Mean utilisation; NaN if there is none."""
        return mean(self.values)

    @property
    def mean_spend(self) -> float:
        """Mean spend in nats."""
        return mean(self.spends)

    def finding(self) -> Finding:
        """The worst utilisation and where it is."""
        broke = f"{self.broke} ended before their debt was paid"
        if not self.values:
            reason = "no trajectory has a known budget above 0"
            text = f"{reason}; {broke}" if self.broke else reason
            return Finding("utilisation", Answer.UNKNOWN, math.nan, text)
        text = (
            f"utilisation mean {self.mean:.1%}, 95 % of trajectories below "
            f"{self.quantile(0.95):.1%}, worst {self.worst.value:.1%}"
        )
        numbers = {
            "mean": self.mean,
            "p95": self.quantile(0.95),
            "max": self.worst.value,
            "above_90_percent": sum(value > 0.9 for value in self.values),
            "ended_in_debt": self.broke,
        }
        if self.broke:
            text += f"; {broke}"
        return Finding(
            "utilisation", Answer.INFO, self.worst.value, text, self.worst.witness, numbers
        )
