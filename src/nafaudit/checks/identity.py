"""Does a budget change anything? Outputs against those of larger budgets, on the same draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nafaudit.checks.check import Facts, token_digest
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.ledger import RISKY_ONLY
from nafaudit.core.trajectory import Arm, Trajectory

_Digests = dict[tuple[str, int], bytes]


@dataclass
class Identity:
    """Share of outputs that equal those of the risky model alone, and of the next budget.

    Outputs are matched by prompt and trajectory number. Our own arms share their draws, so an
    equal output means that the budget made no difference; logs of others need not.
    """

    facts: Facts
    digests: dict[Arm, _Digests] = field(default_factory=dict)

    def see(self, trajectory: Trajectory) -> None:
        """Remembers a digest of the tokens."""
        key = trajectory.key
        mine = self.digests.setdefault(key.arm, {})
        digest = token_digest(trajectory)
        if digest is not None:
            mine[key.prompt, key.trajectory] = digest

    def findings(self, arm: Arm) -> list[Finding]:
        """Two shares for every budget that has a larger one, none for the largest."""
        if not arm.k < RISKY_ONLY:
            return []
        # A decoder may have answered nothing at some budget, which was run all the same.
        failed = {fault.key.arm for fault in self.facts.faults if fault.key is not None}
        above = [
            other
            for other in failed | self.digests.keys()
            if other.mechanism == arm.mechanism and other.k > arm.k
        ]
        following = min(above, key=lambda other: other.k, default=None)
        risky = Arm(arm.mechanism, RISKY_ONLY)
        return [
            self._compare("same-as-risky", arm, risky if risky in above else None),
            self._compare("same-as-next", arm, following),
        ]

    def _compare(self, name: str, arm: Arm, other: Arm | None) -> Finding:
        whom = "the risky model alone" if name == "same-as-risky" else "the next larger budget"
        if other is None:
            return Finding(name, Answer.UNKNOWN, math.nan, f"{whom} was not run")
        mine, theirs = self.digests.get(arm, {}), self.digests.get(other, {})
        shared = [unit for unit in mine if unit in theirs]
        if not shared:
            reason = f"no output of {whom} can be matched by prompt, number and tokens"
            return Finding(name, Answer.UNKNOWN, math.nan, reason)
        equal = sum(mine[unit] == theirs[unit] for unit in shared)
        if name == "same-as-next":
            whom += f", k = {other.k:g}" if math.isfinite(other.k) else ", the risky model alone"
        text = f"{equal} of {len(shared)} outputs are those of {whom} ({equal / len(shared):.1%})"
        if self.facts.foreign:
            text += ", which says something only if both were drawn with the same seeds"
        numbers = {"equal": equal, "compared": len(shared), "k": other.k}
        return Finding(name, Answer.INFO, equal / len(shared), text, None, numbers)
