"""One trajectory in a few numbers, each by the check that defines it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from nafaudit.checks.check import Facts
from nafaudit.checks.copying import Copying
from nafaudit.checks.invariant import Invariant
from nafaudit.checks.regime import Regime
from nafaudit.checks.tails import Tails
from nafaudit.checks.utilisation import Utilisation
from nafaudit.core.trajectory import Key, Trajectory
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


def outline(trajectory: Trajectory, place: Place, facts: Facts) -> Outline:
    """Asks each check about one trajectory alone."""
    key, own = trajectory.key, facts.of_budget(trajectory.key.k)
    kept, regime, use = Invariant(own), Regime(own.edge), Utilisation(own)
    tails, copying = Tails(own), Copying(own)
    # Infinite and absurd numbers in a log are findings, not warnings.
    with np.errstate(over="ignore", invalid="ignore"):
        for check in (kept, regime, use, tails, copying):
            check.see(trajectory)
        budget = own.budget(trajectory)
    return Outline(
        key,
        place,
        len(trajectory),
        trajectory.stopped,
        trajectory.debt,
        trajectory.spend,
        budget,
        _only(use.values),
        _only(tails.values),
        _only(copying.recalls),
        regime.forced,
        regime.active,
        regime.free,
        bool(kept.violations),
    )


def _only(values: list[float]) -> float:
    return values[0] if values else math.nan


def _or(value: float) -> float:
    """NaN sorts as the smallest."""
    return -math.inf if math.isnan(value) else value
