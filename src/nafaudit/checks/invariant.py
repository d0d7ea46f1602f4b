"""Kept? No step above its allowance, no prefix above what it was granted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nafaudit.checks.check import Facts, Worst
from nafaudit.core.finding import (
    MIN_TRAJECTORIES,
    Finding,
    Kept,
    judge_kept,
)
from nafaudit.core.trajectory import Trajectory
from nafaudit.stats import zero_count_upper


@dataclass
class Invariant:
    """Compares every charge with its allowance and every prefix with its grant.

    Attributes:
        facts: Of the run; without its ledger only steps and logged grants are compared.
        trajectories: How many were seen.
        violations: How many of them overspent.
        unjudged: How many hold a NaN, or a negative charge that would hide a later excess.
        prompts: Ids of the prompts seen.
    """

    facts: Facts
    trajectories: int = 0
    violations: int = 0
    unjudged: int = 0
    prompts: set[str] = field(default_factory=set)
    worst: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Compares every step and every prefix with its limit."""
        steps, key = trajectory.steps, trajectory.key
        self.trajectories += 1
        self.prompts.add(key.prompt)
        if len(trajectory):
            limit = steps.allowance
            excess = _excess(steps.charge, limit)
            unusable = bool(np.isnan(excess).any() or (steps.charge < 0).any())
            granted = self.facts.granted(trajectory)
            if granted is not None:
                # fmax: a NaN in the sums must not cover an excess of a step.
                grants = np.maximum(granted, 0.0)
                excess = np.fmax(excess, _excess(np.cumsum(steps.charge), grants))
        else:
            limit = np.maximum([self.facts.budget(trajectory)], 0.0)
            excess = _excess(np.array([trajectory.spend]), limit)
            unusable = bool(np.isnan(excess).any())
        over = excess > self.facts.tolerance(limit)
        if over.any():
            self.violations += 1
            at = int(np.argmax(np.where(over, excess, -np.inf)))
            self.worst.offer(float(excess[at]), key, at)
        elif unusable:
            self.unjudged += 1

    @property
    def verdict(self) -> Kept:
        """The first verdict."""
        return judge_kept(self.trajectories, self.violations, self.unjudged)

    def finding(self) -> Finding:
        """VIOLATED with the worst step, WITHIN with what 0 of n says, or INCONCLUSIVE."""
        n = self.trajectories
        if self.violations:
            text = (
                f"{self.violations} of {n} trajectories exceed their budget, the worst by "
                f"{self.worst.value:.3g} nats"
            )
            return Finding("invariant", self.verdict, self.violations, text, self.worst.witness)
        if not n:
            return Finding("invariant", self.verdict, 0, "no trajectory recorded")
        text = (
            f"0 of {n} trajectories exceed their budget: true rate below "
            f"{zero_count_upper(n):.2%} at 95 % (of prompts: below "
            f"{zero_count_upper(len(self.prompts)):.2%})"
        )
        if self.unjudged:
            text = (
                f"{self.unjudged} of {n} trajectories hold a NaN or a negative charge: not judged"
            )
        elif n < MIN_TRAJECTORIES:
            text += f"; a verdict needs {MIN_TRAJECTORIES} trajectories"
        if self.facts.ledger is None:
            text += "; by its own steps and grants, as its ledger is not known here"
        return Finding("invariant", self.verdict, 0, text)


def _excess(spent: NDArray[np.float64], limit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spent - limit, with no limit meaning no excess even for an infinite charge."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(np.isposinf(limit), -np.inf, spent - limit))
