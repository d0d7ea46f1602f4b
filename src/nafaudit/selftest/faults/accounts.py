"""Faults of budgets, debts, charges and claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.protocols import Law, Output, Request, World
from nafaudit.selftest.faults.tools import allowance_of, divergence, mixture


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


class ReverseDivergence(AnchoredDecoder):
    """Charges D(safe || served) instead of D(served || safe)."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A law whose reversed divergence is paid for."""
        rows = [_solve_reverse(*row) for row in zip(safe, risky, allowance, strict=True)]
        law = np.stack([mixture(*row) for row in zip(safe, risky, rows, strict=True)])
        charge = [divergence(a, b) for a, b in zip(safe, law, strict=True)]
        return law, np.array(charge), np.array(rows)


class ChargesTheDraw(AnchoredDecoder):
    """Charges the realised log-ratio of the token instead of the divergence."""

    def pay(self, row: Row, charge: float, ratio: float) -> None:
        """Books and claims the ratio."""
        row.claims["charge"][-1:] = [ratio]
        row.spent += ratio


class ChargesHalf(AnchoredDecoder):
    """Charges half of the divergence."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A law that costs twice what is charged."""
        law, charge, theta = super().serve(safe, risky, 2 * allowance)
        return law, charge / 2, theta


class UnitMixedUp(AnchoredDecoder):
    """Converts nats to nats once too often, and charges 0.69 of the divergence."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A law whose charge is too small by log 2."""
        law, charge, theta = super().serve(safe, risky, allowance / math.log(2))
        return law, charge * math.log(2), theta


class ChargesTwice(AnchoredDecoder):
    """Books every charge twice and claims it once."""

    def pay(self, row: Row, charge: float, ratio: float) -> None:
        """Books twice."""
        row.spent += 2 * charge


class ClaimsTwice(AnchoredDecoder):
    """Books every charge twice and claims it so."""

    def pay(self, row: Row, charge: float, ratio: float) -> None:
        """Books and claims twice."""
        row.claims["charge"][-1:] = [2 * charge]
        row.spent += 2 * charge


class ClaimsHalf(AnchoredDecoder):
    """Ignores its budget by half and claims half of every charge."""

    def allowance(self, row: Row) -> float:
        """Twice the budget."""
        return allowance_of(
            replace(row, request=replace(row.request, k=2 * row.request.k)), row.debt
        )

    def output(self, row: Row) -> Output:
        """Claims that fit the budget."""
        out = super().output(row)
        halves = [value / 2 for value in row.claims["charge"]]
        return replace(out, charge=halves, allowance=None, spend=row.spent / 2)


class ClaimsNothing(AnchoredDecoder):
    """Spends twice its budget and says nothing of any step."""

    def allowance(self, row: Row) -> float:
        """Twice the budget."""
        return allowance_of(
            replace(row, request=replace(row.request, k=2 * row.request.k)), row.debt
        )

    def output(self, row: Row) -> Output:
        """Tokens only."""
        return Output(row.tokens)


class TotalHalved(AnchoredDecoder):
    """Claims half of its total, and says nothing of any step."""

    def output(self, row: Row) -> Output:
        """Tokens and a wrong total."""
        return Output(row.tokens, debt=row.debt, spend=row.spent / 2)


class ClaimsTheBudget(AnchoredDecoder):
    """Ignores its budget by half, and claims that every step cost its k."""

    def allowance(self, row: Row) -> float:
        """Twice the budget."""
        doubled = replace(row.request, k=2 * row.request.k)
        return allowance_of(replace(row, request=doubled), row.debt)

    def output(self, row: Row) -> Output:
        """A charge that looks well behaved."""
        k = min(row.request.k, 1e9)
        return Output(row.tokens, charge=[k] * row.step, spend=k * row.step)


class ClaimsAnotherToken(AnchoredDecoder):
    """Claims the probabilities of the likeliest token instead of its own."""

    def pay(self, row: Row, charge: float, ratio: float) -> None:
        """Books right, claims a log-probability that is too large."""
        super().pay(row, charge, ratio)
        row.claims["served"][-1] *= 0.5


class MeanCharge(AnchoredDecoder):
    """Charges every row the mean of its batch."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Right laws, shared charges."""
        law, charge, theta = super().serve(safe, risky, allowance)
        return law, np.full_like(charge, charge.mean()), theta


class MaxDivergence(AnchoredDecoder):
    """Charges the largest log-ratio of a step, which is another promise."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Right laws, other charges."""
        law, _, theta = super().serve(safe, risky, allowance)
        gaps = np.where(law > -np.inf, law - safe, -np.inf)
        return law, np.maximum(0.0, gaps.max(axis=1)), theta


def _solve_reverse(safe: Law, risky: Law, allowance: float) -> float:
    """The largest weight whose reversed divergence is allowed."""
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
