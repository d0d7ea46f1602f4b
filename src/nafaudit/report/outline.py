"""One trajectory in a few numbers, each by the check that defines it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nafaudit.checks.check import Facts
from nafaudit.checks.tails import Tails
from nafaudit.checks.verdict import ArmResult
from nafaudit.core.trajectory import Arm, Key, Trajectory
from nafaudit.store.run import Place


@dataclass(frozen=True, slots=True)
class Outline:
    """What tables and charts need of a trajectory; its steps stay on disk.

    Attributes:
        key: Which one.
        place: Where its record is.
        length: Tokens written.
        stopped: True if a stop token ended it.
        debt: Prefix debt, in nats.
        spend: Total charge Z, in nats.
        budget: B at its own end; infinite for the risky model alone, NaN if unknown.
        utilisation: Z / B; NaN where there is no such ratio.
        ratio: L, the log-likelihood ratio of what was written; NaN if not recorded.
        recall: Near-verbatim recall of the reference; NaN if unscored.
        forced: Steps that served the safe law.
        active: Steps that served a mixture.
        free: Steps that served the risky law.
        violated: True if it exceeded an allowance or its budget.
    """

    key: Key
    place: Place
    length: int
    stopped: bool
    debt: float
    spend: float
    budget: float
    utilisation: float
    ratio: float
    recall: float
    forced: int
    active: int
    free: int
    violated: bool

    @property
    def badness(self) -> tuple[bool, float, float, float]:
        """What makes a trajectory worth reading: an excess, then use, recall and spend."""
        return (self.violated, _or(self.utilisation), _or(self.recall), _or(self.spend))

    @property
    def lot(self) -> bytes:
        """A number drawn from prompt and trajectory alone: samples are the same in every arm."""
        return lot_of(self.key.prompt, self.key.trajectory)


def lot_of(prompt: str, trajectory: int) -> bytes:
    """A number drawn from a prompt and a trajectory number, for samples that never change."""
    text = f"{trajectory}\n{prompt}".encode(errors="replace")
    return hashlib.blake2b(text, digest_size=8).digest()


class Tally(NamedTuple):
    """How far the checks of an arm have counted."""

    uses: int = 0
    ratios: int = 0
    forced: int = 0
    active: int = 0
    free: int = 0
    violations: int = 0

    @classmethod
    def of(cls, arm: ArmResult, tails: Tails) -> Tally:
        """The counts now."""
        regime = arm.regime
        return cls(
            len(arm.utilisation.values),
            len(tails.values),
            regime.forced,
            regime.active,
            regime.free,
            arm.invariant.violations,
        )


@dataclass
class Outliner:
    """Outlines trajectories by what the checks of their arm took in last.

    Attributes:
        facts: Of the run.
        place: Of the trajectory that the checks are about to see.
        outlines: One per trajectory, in the order they were seen.
    """

    facts: Facts
    place: Place = field(default_factory=lambda: Place("", 0))
    outlines: list[Outline] = field(default_factory=list)
    _tallies: dict[Arm, Tally] = field(default_factory=dict)
    _recalled: dict[tuple[Arm, str], int] = field(default_factory=dict)

    def watch(self, trajectory: Trajectory, arm: ArmResult) -> None:
        """Notes the difference that one trajectory made."""
        key = trajectory.key
        tails = next(check for check in arm.others if isinstance(check, Tails))
        label = self.facts.label(key.prompt)
        recalls = arm.copying.classes[label].values["near_verbatim_recall"]
        before, now = self._tallies.get(key.arm, Tally()), Tally.of(arm, tails)
        self._tallies[key.arm] = now
        recalled = self._recalled.get((key.arm, label), 0)
        self._recalled[key.arm, label] = len(recalls)
        with np.errstate(over="ignore", invalid="ignore"):
            budget = arm.invariant.facts.budget(trajectory)
        self.outlines.append(
            Outline(
                key,
                self.place,
                len(trajectory),
                trajectory.stopped,
                trajectory.debt,
                trajectory.spend,
                budget,
                _added(arm.utilisation.values, before.uses),
                _added(tails.values, before.ratios),
                _added(recalls, recalled),
                now.forced - before.forced,
                now.active - before.active,
                now.free - before.free,
                now.violations > before.violations,
            )
        )


def _added(values: list[float], before: int) -> float:
    """The value that came last; NaN if none was added."""
    return values[-1] if len(values) > before else math.nan


def _or(value: float) -> float:
    """NaN sorts as the smallest."""
    return -math.inf if math.isnan(value) else value
