"""Black boxes that claim the truth about their laws, each with one other fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Output, Request, World


class Cold(AnchoredDecoder):
    """Sharpens the law after the solve."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        scaled = law / 0.7
        return np.asarray(scaled - np.logaddexp.reduce(scaled))


class Unwilling(AnchoredDecoder):
    """Is honest, and refuses one budget."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        if any(request.k == 0.25 for request in requests):
            raise ValueError("not at this budget")
        return super().decode(requests)


class Generous(AnchoredDecoder):
    """Grants itself half as much again as was asked for, and claims nothing."""

    def allowance(self, row: ReferenceRow) -> float:
        k = row.request.k
        if k in (0.0, np.inf):
            return k
        return max(0.0, 1.5 * (row.step + 1) * k - row.spent - row.debt)

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens)


class Silent(AnchoredDecoder):
    """Is sound, and claims nothing."""

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens)


class Frank(AnchoredDecoder):
    """Is sound, and shows the law of every step beside its numbers; at k = 0 no family."""

    dtype = "float32"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.shown: dict[int, list[Law]] = {}

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        self.shown.setdefault(id(row), []).append(law)
        return law

    def output(self, row: ReferenceRow) -> Output:
        family = "geometric" if row.request.k else None
        laws = np.stack(self.shown.pop(id(row)))
        return replace(super().output(row), laws=laws, family=family)


class Liar(AnchoredDecoder):
    """Draws from a law somewhat nearer to the risky model than the one that it claims."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        tilted = law + 0.005 * (risky - safe)
        return np.asarray(tilted - np.logaddexp.reduce(tilted))


class Contradicts(AnchoredDecoder):
    """Is sound, and states probabilities of its tokens that are none of its weights'."""

    def output(self, row: ReferenceRow) -> Output:
        out = super().output(row)
        return replace(out, served=[0.5 * value for value in row.claims["served"]])


class OwesNothing(Silent):
    """Is sound but for the prefix debt, which it does not charge."""

    def allowance(self, row: ReferenceRow) -> float:
        return super().allowance(replace(row, debt=0.0))


class GenerousAndFrank(Generous):
    """Does the same, and claims its charges as they are."""

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens, charge=row.claims["charge"])


class GenerousSometimes(Generous):
    """Is sound below k = 2."""

    def allowance(self, row: ReferenceRow) -> float:
        if row.request.k < 2:
            return AnchoredDecoder.allowance(self, row)
        return super().allowance(row)


class HalfPrecision(AnchoredDecoder):
    """Computes in single precision, and states its charges in half of it."""

    dtype = "float32"

    def output(self, row: ReferenceRow) -> Output:
        charge = np.array(row.claims["charge"]).astype(np.float16).astype(np.float64)
        return replace(super().output(row), charge=charge.tolist())


class Overclaims(AnchoredDecoder):
    """Is sound, and claims half as much again as it spent."""

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens, charge=[1.5 * charge for charge in row.claims["charge"]])


class NotTheRiskyModel(AnchoredDecoder):
    """Is sound under every budget; without one it flattens the risky law."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        if row.request.k != np.inf:
            return law
        scaled = law * 0.3
        return np.asarray(scaled - np.logaddexp.reduce(scaled))

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens)
