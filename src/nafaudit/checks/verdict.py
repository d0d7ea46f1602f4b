"""From records to verdicts, arm by arm, in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nafaudit.checks.check import Check
from nafaudit.checks.invariant import Invariant
from nafaudit.checks.regime import Regime
from nafaudit.checks.utilisation import Utilisation
from nafaudit.core.errors import StoreError
from nafaudit.core.finding import Finding, Kept, Tested, Worth
from nafaudit.core.ledger import Banking, Ledger, is_baseline
from nafaudit.core.trajectory import Arm, Key, Trajectory


@dataclass(frozen=True)
class ArmResult:
    """Every check of one mechanism at one budget."""

    mechanism: str
    k: float
    invariant: Invariant
    regime: Regime
    utilisation: Utilisation

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks, in the order of their findings."""
        return (self.invariant, self.regime, self.utilisation)

    @property
    def findings(self) -> list[Finding]:
        """One finding per check."""
        return [check.finding() for check in self.checks]

    @property
    def kept(self) -> Kept:
        """The first verdict."""
        return self.invariant.verdict

    @property
    def tested(self) -> Tested:
        """The second verdict."""
        return self.regime.verdict

    @property
    def worth(self) -> Worth:
        """The third verdict; unknown as long as no passage was given."""
        return Worth.UNKNOWN

    @property
    def is_baseline(self) -> bool:
        """True for the safe model alone and the risky model alone."""
        return is_baseline(self.k)


def judge(trajectories: Iterable[Trajectory], ledger: Ledger | None) -> list[ArmResult]:
    """Runs every check over a run's trajectories; arms from the smallest budget up.

    Args:
        trajectories: In any order; the findings do not depend on it.
        ledger: What grants budget in this run, if it is known here.

    Raises:
        StoreError: A trajectory was recorded twice.
    """
    arms: dict[Arm, ArmResult] = {}
    seen: set[Key] = set()
    for trajectory in trajectories:
        key = trajectory.key
        if key in seen:
            raise StoreError(
                f"trajectory {tuple(key)} is recorded twice, which no run of ours does; the "
                "directory was edited or merged. Restore it, or start again with another --out."
            )
        seen.add(key)
        if key.arm not in arms:
            arms[key.arm] = _new_arm(key.arm, Banking() if is_baseline(key.k) else ledger)
        for check in arms[key.arm].checks:
            check.see(trajectory)
    return [arms[arm] for arm in sorted(arms)]


def _new_arm(arm: Arm, ledger: Ledger | None) -> ArmResult:
    return ArmResult(*arm, Invariant(ledger), Regime(), Utilisation(ledger))
