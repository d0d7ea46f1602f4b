"""How much can banking release at once?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from nafaudit.checks.check import Worst, quantile
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.ledger import is_baseline
from nafaudit.core.trajectory import Trajectory

WINDOW = 20


@dataclass
class Burst:
    """The largest charge of any W consecutive steps, over the W k that they earn.

    Above 1 the window spent what earlier steps had saved. A trajectory shorter than W is one
    window.

    Attributes:
        ratios: The largest ratio of every trajectory with whole charges.
        missing: Trajectories without.
        bank: The largest allowance of any step.
    """

    ratios: list[float] = field(default_factory=list)
    missing: int = 0
    budgeted: bool = True
    worst: Worst = field(default_factory=Worst)
    bank: float = -math.inf

    def see(self, trajectory: Trajectory) -> None:
        """Finds the most expensive window of one trajectory."""
        charge, k = trajectory.steps.charge, trajectory.key.k
        if is_baseline(k) or math.isnan(k):
            self.budgeted = False
            return
        if not charge.size or np.isnan(charge.min()):
            self.missing += 1
            return
        width = min(WINDOW, charge.size)
        sums = charge[: charge.size - width + 1].copy()
        for shift in range(1, width):
            sums += charge[shift : charge.size - width + 1 + shift]
        at = int(np.argmax(sums))
        ratio = float(sums[at]) / (WINDOW * k)
        self.ratios.append(ratio)
        self.worst.offer(ratio, trajectory.key, at)
        self.bank = max(self.bank, float(np.fmax.reduce(trajectory.steps.allowance)))

    def finding(self) -> Finding:
        """INFO with the worst window and the largest bank."""
        if not self.ratios:
            reason = "no trajectory records the charge of every step"
            if not self.budgeted:
                reason = "no budget per step, so none per window"
            return Finding("burst", Answer.UNKNOWN, math.nan, reason)
        numbers = {
            "median": quantile(self.ratios, 0.5),
            "p99": quantile(self.ratios, 0.99),
            "max": self.worst.value,
            "above_2": sum(ratio > 2 for ratio in self.ratios),
            "bank_max": self.bank,
        }
        text = (
            f"the most expensive {WINDOW} steps of an output cost up to {self.worst.value:.2f} "
            f"times the {WINDOW} k that they earn (median {numbers['median']:.2f}, p99 "
            f"{numbers['p99']:.2f}); largest allowance of a step {self.bank:.1f} nats"
        )
        if self.missing:
            text += f"; {self.missing} trajectories without charges left out"
        return Finding("burst", Answer.INFO, self.worst.value, text, self.worst.witness, numbers)
