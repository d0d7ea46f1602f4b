"""Charges that are wrong, and claims that are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from nafaudit.mechanisms.doors import Law, Output
from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.mechanisms.twin import divergence, mixture
from nafaudit.selftest.faults.tools import allowance_of


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
