"""Do single outputs go beyond K, which bounds only their mean?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from nafaudit.checks.check import Facts, Worst, log_ratios, mean, quantile
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.trajectory import Trajectory, total

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass
class Tails:
    """L = sum of log p_served - log p_safe of what was written, against K = k T.

    The promise bounds the mean of L by K; one L above K breaks no promise, but tells how much
    more likely than under the safe model a single output can be.

    Attributes:
        values: L of every trajectory that records its log-probabilities.
        missing: Trajectories that do not.
        over: How many have L > K.
        half: How many have L > K / 2.
        worst: The largest L, at its largest step.
        boost: The largest single step.
    """

    facts: Facts
    values: list[float] = field(default_factory=list)
    missing: int = 0
    over: int = 0
    half: int = 0
    promised: float = math.nan
    worst: Worst = field(default_factory=Worst)
    boost: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Adds up one trajectory's log-ratios."""
        ratios = log_ratios(trajectory)
        value = math.nan if ratios is None else total(ratios)
        if ratios is None or math.isnan(value):
            self.missing += 1
            return
        self.values.append(value)
        at = int(np.argmax(ratios))
        self.worst.offer(value, trajectory.key, at)
        self.boost.offer(float(ratios[at]), trajectory.key, at)
        if self.facts.max_new_tokens:
            self.promised = trajectory.key.k * self.facts.max_new_tokens
            self.over += value > self.promised
            self.half += value > self.promised / 2

    def finding(self) -> Finding:
        """INFO with the tail of L and how many are above K."""
        n = len(self.values)
        if not n:
            reason = "no trajectory records served and safe log-probabilities"
            return Finding("tails", Answer.UNKNOWN, math.nan, reason)
        tail = {name: quantile(self.values, q) for name, q in _QUANTILES.items()}
        numbers = {"mean": mean(self.values), **tail, "max": self.worst.value}
        numbers["step_max"] = self.boost.value
        listed = ", ".join(f"{name} {value:.2f}" for name, value in numbers.items())
        text = (
            f"log-likelihood ratio L of {n} outputs in nats: {listed.replace('step_max', 'step')}"
        )
        if math.isnan(self.promised):
            text += "; K is not known, as the log gives no length limit"
        elif math.isinf(self.promised):
            text += "; there is no K"
        else:
            text += f"; {self.over} above K = {self.promised:g}, {self.half} above K/2"
            numbers |= {"above_K": self.over, "above_half_K": self.half}
        if self.missing:
            text += f"; {self.missing} record no log-probabilities"
        return Finding("tails", Answer.INFO, self.worst.value, text, self.worst.witness, numbers)
