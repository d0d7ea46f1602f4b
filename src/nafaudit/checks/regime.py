"""Tested? How often the constraint acted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nafaudit.core.finding import Finding, Tested, judge_tested
from nafaudit.core.trajectory import Trajectory


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

    @property
    def verdict(self) -> Tested:
        """The second verdict."""
        return judge_tested(self.active, self.steps - self.opening)

    def finding(self) -> Finding:
        """ACTIVE or IDLE with the share of active steps."""
        text = (
            f"{self.share(self.active):.2%} of {self.steps} steps active, "
            f"{self.share(self.forced):.2%} forced to the safe model, "
            f"{self.share(self.free):.2%} the risky model unchanged"
        )
        return Finding("regime", self.verdict, self.share(self.active), text)
