"""What a check is: it sees every trajectory of one arm, then answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from nafaudit.core.finding import Finding, Witness
from nafaudit.core.trajectory import Key, Trajectory


class Check(Protocol):
    """Trajectories of one arm in, one finding out; a new check is a class with these methods."""

    def see(self, trajectory: Trajectory) -> None:
        """Takes in one trajectory; keeps what it needs and no more."""
        ...

    def finding(self) -> Finding:
        """Answers."""
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
