"""Debts, clocks and ledgers that grant too much or too little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nafaudit.mechanisms.doors import Law, Output, Request, World
from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.selftest.faults.tools import allowance_of


class NoDebt(AnchoredDecoder):
    """States the debt and does not subtract it."""

    def allowance(self, row: Row) -> float:
        """The allowance of a prompt that owes nothing."""
        return allowance_of(row, debt=0.0)


class NoDebtStated(AnchoredDecoder):
    """Neither computes nor subtracts a debt."""

    def debt(self, request: Request) -> float:
        """Nothing."""
        return 0.0


class DebtAdded(AnchoredDecoder):
    """Adds the debt to the budget instead of subtracting it."""

    def allowance(self, row: Row) -> float:
        """The allowance of a prompt that is owed."""
        return allowance_of(row, debt=-row.debt)


class DebtHalved(AnchoredDecoder):
    """Averages the debt over twice as many tokens as it counts."""

    def debt(self, request: Request) -> float:
        """Half of what is owed."""
        return super().debt(request) / 2


class DebtDoubled(AnchoredDecoder):
    """Counts the debt twice: too careful, and not what was promised."""

    def debt(self, request: Request) -> float:
        """Twice what is owed."""
        return super().debt(request) * 2


class DebtSummed(AnchoredDecoder):
    """Adds up the five largest log-ratios instead of averaging them: too careful."""

    def debt(self, request: Request) -> float:
        """Up to five times what is owed."""
        return super().debt(request) * min(5, max(1, len(request.prompt) - 1))


class DebtForgiven(AnchoredDecoder):
    """Forgets the debt after ten tokens."""

    def allowance(self, row: Row) -> float:
        """An allowance without its debt, later."""
        return allowance_of(row, row.debt if row.step < 10 else 0.0)


class DebtOfTheBatch(AnchoredDecoder):
    """Gives every row the mean debt of its batch."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes with one debt for all."""
        owed = [AnchoredDecoder.debt(self, request) for request in requests]
        self.mean = float(np.mean(owed)) if owed else 0.0
        return super().decode(requests)

    def debt(self, request: Request) -> float:
        """What the batch owes on average."""
        return self.mean


class OneStepAhead(AnchoredDecoder):
    """Grants a step's budget one step early."""

    def allowance(self, row: Row) -> float:
        """An allowance with one k too many."""
        return allowance_of(row, row.debt, steps=row.step + 2)


class OneStepBehind(AnchoredDecoder):
    """Grants a step's budget one step late: too careful."""

    def allowance(self, row: Row) -> float:
        """An allowance with one k too few."""
        return allowance_of(row, row.debt, steps=row.step)


class KeepsItsSpend(AnchoredDecoder):
    """Starts every batch but its first with the bank of the last row."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.bank = 0.0

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes the rows one after another, out of one bank."""
        outputs = []
        for request in requests:
            outputs += super().decode([request])
            written = len(outputs[-1].tokens)
            if math.isfinite(request.k):
                self.bank = max(0.0, self.bank + written * request.k / 2)
        return outputs

    def allowance(self, row: Row) -> float:
        """An allowance out of somebody else's bank too."""
        return allowance_of(row, row.debt - self.bank)


class ForgetsItsSpend(AnchoredDecoder):
    """Forgets every tenth step what was spent."""

    def pay(self, row: Row, charge: float, ratio: float) -> None:
        """Books a step, and forgets."""
        row.spent = 0.0 if (row.step + 1) % 10 == 0 else row.spent + charge


class LargerBudget(AnchoredDecoder):
    """Grants five per cent more than was asked for."""

    def allowance(self, row: Row) -> float:
        """Five per cent too much."""
        request = replace(row.request, k=row.request.k * 1.05)
        return allowance_of(replace(row, request=request), row.debt)


class FirstStepFree(AnchoredDecoder):
    """Serves the risky model at the first step, whatever it costs."""

    def allowance(self, row: Row) -> float:
        """No limit at first."""
        return math.inf if row.step == 0 else super().allowance(row)


class Overshoots(AnchoredDecoder):
    """Ends its search for the weight a little above the allowance."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A law that costs up to three per cent too much."""
        return super().serve(safe, risky, allowance * 1.03)


class NoBank(AnchoredDecoder):
    """Lets unspent budget lapse: every step has its own k."""

    def allowance(self, row: Row) -> float:
        """k, whatever was left."""
        return min(row.request.k, super().allowance(row))


class PooledBudget(AnchoredDecoder):
    """Lets the rows of a batch share one budget."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes with one bank for all."""
        self.spent, self.rows = 0.0, max(1, len(requests))
        return super().decode(requests)

    def allowance(self, row: Row) -> float:
        """What the mean spend of the batch leaves."""
        return allowance_of(replace(row, spent=self.spent / self.rows), row.debt)

    def pay(self, row: Row, charge: float, ratio: float) -> None:
        """Books for all."""
        super().pay(row, charge, ratio)
        self.spent += charge
