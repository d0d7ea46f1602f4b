"""How much of a reference the outputs of an arm repeat nearly word for word."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nafaudit.checks.check import Facts, Worst
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.text import detokenize
from nafaudit.core.trajectory import Trajectory
from nafaudit.overlap import near_verbatim_recall
from nafaudit.overlap.near_verbatim import MIN_SPAN


@dataclass
class Copying:
    """Near-verbatim recall of each prompt's reference; without a reference an output is unscored.

    Attributes:
        facts: Of the run: its references and what its token ids stand for.
        recalls: One per scored trajectory.
        unscored: Trajectories without a reference that could be recalled.
    """

    facts: Facts
    recalls: list[float] = field(default_factory=list)
    unscored: int = 0
    worst: Worst = field(default_factory=Worst)

    def see(self, trajectory: Trajectory) -> None:
        """Scores one output against its prompt's reference."""
        key = trajectory.key
        reference = self.facts.references.get(key.prompt, "")
        if len(reference.split()) < MIN_SPAN or not self.facts.pieces:
            self.unscored += 1
            return
        text = detokenize(trajectory.steps.token, self.facts.pieces)
        recall = near_verbatim_recall(text, reference)
        self.recalls.append(recall)
        self.worst.offer(recall, key, max(0, len(trajectory) - 1))

    @property
    def mean(self) -> float:
        """Mean recall of the scored trajectories; NaN if there are none."""
        return math.fsum(self.recalls) / len(self.recalls) if self.recalls else math.nan

    def finding(self) -> Finding:
        """Mean and largest recall, and where."""
        if not self.recalls:
            return Finding(
                "copying", Answer.UNKNOWN, math.nan, "no prompt has a reference to recall"
            )
        text = (
            f"near-verbatim recall mean {self.mean:.1%}, largest {self.worst.value:.1%}, over "
            f"{len(self.recalls)} trajectories with a reference"
        )
        return Finding("copying", Answer.INFO, self.mean, text, self.worst.witness)
