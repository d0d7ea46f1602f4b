"""A trajectory in the making, and what both models have said about its next positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from nafaudit.core.draws import Stream
from nafaudit.core.ledger import Account, Payment, recorded_gap
from nafaudit.core.trajectory import STEP_TYPES, Key, Steps, Trajectory


class Step(NamedTuple):
    """One step's record, in the order of `Steps`."""

    token: int
    allowance: float
    charge: float
    theta: float
    served: float
    safe: float
    risky: float


class Known(NamedTuple):
    """What is known of a position ahead of a row.

    Attributes:
        safe: The safe model's logits there.
        risky: The risky model's.
        guess: The token that the next position was read after; None if it was not.
    """

    safe: Tensor
    risky: Tensor
    guess: int | None


@dataclass
class Row:
    """A trajectory in the making."""

    key: Key
    stream: Stream
    debt: float
    account: Account
    prefix: list[int]
    records: list[Step] = field(default_factory=list)
    ahead: list[Known] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Number of the next step."""
        return len(self.records)

    def write(self, record: Step) -> None:
        """Takes in one step: the record, the prefix and the account."""
        self.records.append(record)
        self.prefix.append(record.token)
        gap = recorded_gap(record.risky, record.safe)
        self.account.pay(Payment(record.charge, record.served - record.safe, record.token, gap))
        # Whatever was read after another token is void.
        known = self.ahead.pop(0)
        if known.guess != record.token:
            self.ahead = []

    def trajectory(self, stopped: bool) -> Trajectory:
        """The finished record."""
        columns = zip(Step._fields, zip(*self.records, strict=True), strict=True)
        arrays = {name: np.array(values, STEP_TYPES[name]) for name, values in columns}
        return Trajectory(self.key, self.debt, stopped, Steps(**arrays))
