"""What a check is: it sees every trajectory of one arm, then answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.finding import Finding, Witness, foreign_tolerance, own_tolerance
from nafaudit.core.ledger import Ledger
from nafaudit.core.trajectory import Key, Trajectory


@dataclass(frozen=True)
class Facts:
    """What checks need to know of a run beyond its trajectories.

    Attributes:
        ledger: What grants budget; None if it is not known here.
        foreign: True for an imported log.
        max_new_tokens: Length limit T; 0 if not known.
        stops: Token ids that end a row; empty if not known.
    """

    ledger: Ledger | None
    foreign: bool = False
    max_new_tokens: int = 0
    stops: frozenset[int] = frozenset()

    def tolerance(self, limit: NDArray[np.float64]) -> NDArray[np.float64]:
        """By how many nats a limit may seem to be exceeded."""
        return foreign_tolerance(limit) if self.foreign else own_tolerance(limit)

    def granted(self, trajectory: Trajectory) -> NDArray[np.float64] | None:
        """B_t at every step: by the ledger, else as logged, else unknown."""
        if self.ledger is not None and not math.isnan(trajectory.debt):
            key, tokens = trajectory.key, trajectory.steps.token
            return self.ledger.accrued(key.k, trajectory.debt, tokens)
        logged = trajectory.logged
        return logged.granted if logged is not None and logged.granted.size else None

    def budget(self, trajectory: Trajectory) -> float:
        """B at the trajectory's own end; NaN if unknown."""
        granted = self.granted(trajectory)
        if granted is not None and granted.size:
            return float(granted[-1])
        return trajectory.logged.budget if trajectory.logged is not None else math.nan


class Check(Protocol):
    """Trajectories of one arm in, one finding out; a new check is a class with these methods."""

    def see(self, trajectory: Trajectory) -> None:
        """Takes in one trajectory; keeps what it needs and no more."""
        ...

    def finding(self) -> Finding:
        """Answers; says UNKNOWN, and why, if what it needs is missing."""
        ...


@dataclass
class Worst:
    """The largest value seen and where; ties go to the first key, whatever the order."""

    value: float = -math.inf
    witness: Witness | None = None

    def offer(self, value: float, key: Key, step: int) -> None:
        """Takes a value that may be the largest."""
        if value > self.value or (
            self.witness is not None and value == self.value and key < self.witness.key
        ):
            self.value, self.witness = value, Witness(key, step)
