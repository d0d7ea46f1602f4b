"""From records to verdicts, arm by arm, in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nafaudit.checks.checks import Invariant, Regime, Utilisation
from nafaudit.core.finding import Finding
from nafaudit.core.trajectory import Arm, Trajectory


@dataclass
class ArmResult:
    """Every check of one mechanism at one budget."""

    arm: Arm
    invariant: Invariant = field(default_factory=Invariant)
    regime: Regime = field(default_factory=Regime)
    utilisation: Utilisation = field(default_factory=Utilisation)

    def see(self, trajectory: Trajectory) -> None:
        """Shows one trajectory to every check."""
        for check in (self.invariant, self.regime, self.utilisation):
            check.see(trajectory)

    @property
    def findings(self) -> list[Finding]:
        """One finding per check."""
        return [check.finding() for check in (self.invariant, self.regime, self.utilisation)]

    @property
    def is_baseline(self) -> bool:
        """True for the safe model alone and the risky model alone."""
        return self.arm.k in (0.0, float("inf"))


def judge(trajectories: Iterable[Trajectory]) -> list[ArmResult]:
    """Runs every check over a run's trajectories; arms from the smallest budget up."""
    arms: dict[Arm, ArmResult] = {}
    for trajectory in trajectories:
        arm = trajectory.key.arm
        arms.setdefault(arm, ArmResult(arm)).see(trajectory)
    return [arms[arm] for arm in sorted(arms, key=lambda arm: (arm.mechanism, arm.k))]
