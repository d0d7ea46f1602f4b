"""How many opening tokens does the debt leave to the safe model?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from nafaudit.checks.check import Facts, Worst, mean, quantile
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.trajectory import Trajectory

# As for the solver: less than this counts as nothing to spend.
_NOTHING = 1e-10


@dataclass
class Opening:
    """Compares the leading steps with theta = 0 with those that were granted nothing.

    On the banking ledger nothing is granted to the first floor(debt / k) steps. A shorter
    opening means that something was served before the debt was paid.
    """

    facts: Facts
    debts: list[float] = field(default_factory=list)
    observed: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    worst: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Counts the steps of the opening, predicted and observed."""
        if not math.isnan(trajectory.debt):
            self.debts.append(trajectory.debt)
        granted, theta = self.facts.granted(trajectory), trajectory.steps.theta
        if granted is None or not theta.size or granted.size != theta.size:
            return
        predicted = _leading(granted <= _NOTHING)
        observed = _leading(theta <= self.facts.edge)
        if np.isnan(theta[: predicted + 1]).any():
            return
        self.predicted.append(predicted)
        self.observed.append(observed)
        self.worst.offer(predicted - observed, trajectory.key, observed)

    @property
    def equal(self) -> int:
        """Trajectories whose opening is as long as predicted."""
        return sum(a == b for a, b in zip(self.predicted, self.observed, strict=True))

    @property
    def short(self) -> int:
        """Trajectories whose opening is shorter than the debt asks for."""
        return sum(a > b for a, b in zip(self.predicted, self.observed, strict=True))

    def finding(self) -> Finding:
        """FINE or SUSPECT with the share of trajectories that open as predicted."""
        debt = {
            "debt_mean": mean(self.debts),
            "debt_median": quantile(self.debts, 0.5),
            "debt_min": min(self.debts, default=math.nan),
            "debt_max": max(self.debts, default=math.nan),
        }
        text = (
            f"debt mean {debt['debt_mean']:.3f}, median {debt['debt_median']:.3f}, "
            f"max {debt['debt_max']:.3f} nats; "
            if self.debts
            else ""
        )
        n = len(self.observed)
        if not n:
            text += "no step records both a weight theta and what was granted"
            return Finding("opening", Answer.UNKNOWN, math.nan, text, None, debt)
        numbers = debt | {
            "observed_mean": mean(self.observed),
            "observed_max": max(self.observed),
            "predicted_mean": mean(self.predicted),
            "equal": self.equal,
        }
        text += (
            f"the safe model writes the first {numbers['observed_mean']:.2f} tokens (mean, max "
            f"{numbers['observed_max']}), as the debt predicts in {self.equal} of {n} trajectories"
        )
        if not self.short:
            return Finding("opening", Answer.FINE, self.equal / n, text, None, numbers)
        text += f"; {self.short} begin before their debt is paid"
        return Finding("opening", Answer.SUSPECT, self.equal / n, text, self.worst.witness, numbers)


def _leading(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """How many are true before the first that is not."""
    return int(flags.size if flags.all() else np.argmin(flags))
