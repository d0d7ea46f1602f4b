"""Faults of budgets, debts, charges and claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Output, Request, World
from nafaudit.selftest.faults.tools import allowance_of, divergence, mixture


class NoDebt(AnchoredDecoder):
    """States the debt and does not subtract it."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, debt=0.0)


class NoDebtStated(AnchoredDecoder):
    """Neither computes nor subtracts a debt."""

    def debt(self, request: Request) -> float:
        return 0.0


class DebtAdded(AnchoredDecoder):
    """Adds the debt to the budget instead of subtracting it."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, debt=-row.debt)


class DebtHalved(AnchoredDecoder):
    """Averages the debt over twice as many tokens as it counts."""

    def debt(self, request: Request) -> float:
        return super().debt(request) / 2


class DebtDoubled(AnchoredDecoder):
    """Counts the debt twice: too careful, and not what was promised."""

    def debt(self, request: Request) -> float:
        return super().debt(request) * 2


class DebtSummed(AnchoredDecoder):
    """Adds up the five largest log-ratios instead of averaging them: too careful."""

    def debt(self, request: Request) -> float:
        return super().debt(request) * min(5, max(1, len(request.prompt) - 1))


class DebtForgiven(AnchoredDecoder):
    """Forgets the debt after ten tokens."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt if row.step < 10 else 0.0)


class DebtOfTheBatch(AnchoredDecoder):
    """Gives every row the mean debt of its batch."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        owed = [AnchoredDecoder.debt(self, request) for request in requests]
        self.mean = float(np.mean(owed)) if owed else 0.0
        return super().decode(requests)

    def debt(self, request: Request) -> float:
        return self.mean


class OneStepAhead(AnchoredDecoder):
    """Grants a step's budget one step early."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, steps=row.step + 2)


class OneStepBehind(AnchoredDecoder):
    """Grants a step's budget one step late: too careful."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, steps=row.step)


class KeepsItsSpend(AnchoredDecoder):
    """Starts every batch but its first with the bank of the last row."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.bank = 0.0

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        outputs = []
        for request in requests:
            outputs += super().decode([request])
            written = len(outputs[-1].tokens)
            if math.isfinite(request.k):
                self.bank = max(0.0, self.bank + written * request.k / 2)
        return outputs

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt - self.bank)


class ForgetsItsSpend(AnchoredDecoder):
    """Forgets every tenth step what was spent."""

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        row.spent = 0.0 if (row.step + 1) % 10 == 0 else row.spent + charge


class LargerBudget(AnchoredDecoder):
    """Grants five per cent more than was asked for."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, times=1.05)


class FirstStepFree(AnchoredDecoder):
    """Serves the risky model at the first step, whatever it costs."""

    def allowance(self, row: ReferenceRow) -> float:
        return math.inf if row.step == 0 else super().allowance(row)


class Overshoots(AnchoredDecoder):
    """Ends its search for the weight a little above the allowance."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        return super().serve(safe, risky, allowance * 1.03)


class NoBank(AnchoredDecoder):
    """Lets unspent budget lapse: every step has its own k."""

    def allowance(self, row: ReferenceRow) -> float:
        return min(row.request.k, super().allowance(row))


class PooledBudget(AnchoredDecoder):
    """Lets the rows of a batch share one budget."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        self.spent, self.rows = 0.0, max(1, len(requests))
        return super().decode(requests)

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(replace(row, spent=self.spent / self.rows), row.debt)

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        super().pay(row, charge, ratio)
        self.spent += charge


class ReverseDivergence(AnchoredDecoder):
    """Charges D(safe || served) instead of D(served || safe)."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        rows = [_solve_reverse(*row) for row in zip(safe, risky, allowance, strict=True)]
        law = np.stack([mixture(*row) for row in zip(safe, risky, rows, strict=True)])
        charge = [divergence(a, b) for a, b in zip(safe, law, strict=True)]
        return law, np.array(charge), np.array(rows)


class ChargesTheDraw(AnchoredDecoder):
    """Charges the realised log-ratio of the token instead of the divergence."""

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        row.claims["charge"][-1:] = [ratio]
        row.spent += ratio


class ChargesHalf(AnchoredDecoder):
    """Charges half of the divergence."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        law, charge, theta = super().serve(safe, risky, 2 * allowance)
        return law, charge / 2, theta


class UnitMixedUp(AnchoredDecoder):
    """Converts nats to nats once too often, and charges 0.69 of the divergence."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        law, charge, theta = super().serve(safe, risky, allowance / math.log(2))
        return law, charge * math.log(2), theta


class ChargesTwice(AnchoredDecoder):
    """Books every charge twice and claims it once."""

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        row.spent += 2 * charge


class ClaimsTwice(AnchoredDecoder):
    """Books every charge twice and claims it so."""

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        row.claims["charge"][-1:] = [2 * charge]
        row.spent += 2 * charge


class ClaimsHalf(AnchoredDecoder):
    """Ignores its budget by half and claims half of every charge."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, times=2)

    def output(self, row: ReferenceRow) -> Output:
        out = super().output(row)
        halves = [value / 2 for value in row.claims["charge"]]
        return replace(out, charge=halves, allowance=None, spend=row.spent / 2)


class ClaimsNothing(AnchoredDecoder):
    """Spends twice its budget and says nothing of any step."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, times=2)

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens)


class TotalHalved(AnchoredDecoder):
    """Claims half of its total, and says nothing of any step."""

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens, debt=row.debt, spend=row.spent / 2)


class ClaimsTheBudget(AnchoredDecoder):
    """Ignores its budget by half, and claims that every step cost its k."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, times=2)

    def output(self, row: ReferenceRow) -> Output:
        k = min(row.request.k, 1e9)
        return Output(row.tokens, charge=[k] * row.step, spend=k * row.step)


class ClaimsAnotherToken(AnchoredDecoder):
    """Claims the probabilities of the likeliest token instead of its own."""

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        super().pay(row, charge, ratio)
        row.claims["served"][-1] *= 0.5


class MeanCharge(AnchoredDecoder):
    """Charges every row the mean of its batch."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        law, charge, theta = super().serve(safe, risky, allowance)
        return law, np.full_like(charge, charge.mean()), theta


class MaxDivergence(AnchoredDecoder):
    """Charges the largest log-ratio of a step, which is another promise."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        law, _, theta = super().serve(safe, risky, allowance)
        gaps = np.where(law > -np.inf, law - safe, -np.inf)
        return law, np.maximum(0.0, gaps.max(axis=1)), theta


def _solve_reverse(safe: Law, risky: Law, allowance: float) -> float:
    """Returns the largest weight whose reversed divergence is allowed."""
    if allowance < 1e-10:
        return 0.0
    if divergence(safe, risky) <= allowance:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        fits = divergence(safe, mixture(safe, risky, middle)) <= allowance
        low, high = (middle, high) if fits else (low, middle)
    return low
