"""What a verification says, in a form that needs no models to be read or shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nafaudit.core.finding import Answer, Finding, Kept
from nafaudit.core.trajectory import Arm, Trajectory


@dataclass(frozen=True)
class ArmFinding:
    """A finding about one arm, or about the whole run."""

    arm: Arm | None
    finding: Finding


@dataclass(frozen=True)
class Verification:
    """What came out.

    Attributes:
        findings: Of the comparison, then of the sampler tests.
        deviation: Largest deviation and both levels of every quantity.
        trajectories: How many were replayed.
        recorded: How many there are.
        tokens: Tokens replayed.
        seconds: Time for all of it, loading the models apart.
        notes: What could not be done, or was done in a weaker way, in words.
        truth: For a black box, what it really did; its own numbers are claims.
        unfinished: True if the run lacks something that it was asked for; a note says what.
    """

    findings: list[ArmFinding]
    deviation: dict[str, dict[str, float]]
    trajectories: int
    recorded: int
    tokens: int
    seconds: float
    notes: list[str]
    truth: Sequence[Trajectory] = ()
    unfinished: bool = False

    @property
    def failed(self) -> bool:
        """True if a claim is refuted or a budget was truly exceeded."""
        bad = (Answer.FAILED, Kept.VIOLATED)
        return any(found.finding.verdict in bad for found in self.findings)

    @property
    def exit_status(self) -> int:
        """0 the numbers are true, 1 they are not, 3 some were asked for and cannot be replayed."""
        if self.failed:
            return 1
        return 0 if self.trajectories and not self.unfinished else 3
