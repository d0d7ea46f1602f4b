"""Tested? How often the constraint acted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nafaudit.core.finding import Finding, Tested, judge_tested
from nafaudit.core.trajectory import Trajectory


@dataclass
class Regime:
    """Tested? Shares of steps forced to the safe law, active in between, and free.

    Shares are of all steps pooled, not means of trajectories.

    Attributes:
        edge: How far from 0 or 1 a weight still counts as that.
        own: True for records of our own engine: where they have no weight but a probability that is
            neither model's, a rule without weights acted.
        trajectories: How many have a step with a weight.
        acted: How many of them have an active step.
    """

    edge: float = 0.0
    own: bool = False
    forced: int = 0
    active: int = 0
    free: int = 0
    opening: int = 0
    unweighted: int = 0
    trajectories: int = 0
    acted: int = 0

    def see(self, trajectory: Trajectory) -> None:
        """Counts steps by the weight of the risky law."""
        theta = trajectory.steps.theta
        forced, free = theta <= self.edge, theta >= 1 - self.edge
        missing = np.isnan(theta)
        if self.own:
            steps = trajectory.steps
            other = (steps.served != steps.safe) & (steps.served != steps.risky)
            missing &= ~(other & ~np.isnan(steps.served))
        active = int((~(forced | free | missing)).sum())
        self.forced += int(forced.sum())
        self.free += int(free.sum())
        self.active += active
        self.unweighted += int(missing.sum())
        self.trajectories += not missing.all()
        self.acted += active > 0
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

    @property
    def acted_share(self) -> float:
        """Share of trajectories with an active step; NaN if there are none."""
        return self.acted / self.trajectories if self.trajectories else math.nan

    @property
    def verdict(self) -> Tested:
        """The second verdict."""
        # A step without a weight may have been active, but is no sign of it.
        steps = self.steps + self.unweighted if self.steps else 0
        return judge_tested(self.active, steps - self.opening, self.unweighted)

    def finding(self) -> Finding:
        """ACTIVE or IDLE with the share of active steps."""
        if not self.steps:
            return Finding("regime", self.verdict, math.nan, "no step records a weight theta")
        text = (
            f"{self.share(self.active):.2%} of {self.steps} steps active, "
            f"{self.share(self.forced):.2%} forced to the safe model, "
            f"{self.share(self.free):.2%} the risky model unchanged; {self.acted} of "
            f"{self.trajectories} trajectories have an active step"
        )
        if self.unweighted:
            text += f"; {self.unweighted} steps record no weight"
        elif self.verdict == Tested.UNKNOWN:
            text += "; every step is of an opening that the debt forces"
        numbers = {
            "forced": self.share(self.forced),
            "active": self.share(self.active),
            "free": self.share(self.free),
            "trajectories_active": self.acted_share,
        }
        return Finding("regime", self.verdict, self.share(self.active), text, None, numbers)
