"""How much of its own budget each trajectory spent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from nafaudit.checks.check import Facts, Worst
from nafaudit.core.finding import Finding
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
