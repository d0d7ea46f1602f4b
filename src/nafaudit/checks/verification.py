"""What a verification says, in a form that needs no models to be read or shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nafaudit.core.finding import Answer, Finding, Kept, Overall
from nafaudit.core.trajectory import Arm, Trajectory

# The numbers of a record that a replay compares, and what each is.
QUANTITIES: Mapping[str, str] = {
    "debt": "prefix debt",
    "allowance": "allowance, from the replayed charges",
    "charge": "charge of each step",
    "theta": "weight, as the charge that it implies",
    "served": "log p_served of the token",
    "safe": "log p_safe of the token",
    "risky": "log p_risky of the token",
    "spend": "charges summed up to each step",
    "token": "score missing to the best token",
    "end": "stop token and length (0 right, 1 wrong)",
}
# Name of the finding on executions that the two counts of a debt judge differently.
COUNTS = "replay: counts of the debt"


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
    def overall(self) -> Overall:
        """0 the numbers are true, 1 they are not, 3 some were asked for and cannot be replayed."""
        if self.failed:
            return Overall(Answer.FAILED, "the claims are refuted", 1)
        if not self.trajectories:
            return Overall(Kept.INCONCLUSIVE, "nothing could be replayed: inconclusive", 3)
        why = "the claims are true as far as replayed"
        return (
            Overall(Kept.INCONCLUSIVE, why, 3) if self.unfinished else Overall(Answer.FINE, why, 0)
        )
