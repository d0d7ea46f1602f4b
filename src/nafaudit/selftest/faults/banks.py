"""Faults of whose budget is spent, and when: banks, debts of others, and budgets that come and go.

What they claim of weights and charges is true unless their first line says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Output, Request, World
from nafaudit.selftest.faults.tools import allowance_of, chance_of


class TwoStepsAhead(AnchoredDecoder):
    """Grants a step's budget two steps early."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, steps=row.step + 3)


class BankReset(AnchoredDecoder):
    """Forgets at every tenth step what was spent before, and states the whole spend."""

    def allowance(self, row: ReferenceRow) -> float:
        since = row.claims["charge"][row.step - row.step % 10 :]
        return allowance_of(replace(row, spent=math.fsum(since)), row.debt)


class BankRefilled(AnchoredDecoder):
    """Finds the budget of ten steps in its bank again, at every tenth step."""

    def allowance(self, row: ReferenceRow) -> float:
        k = row.request.k
        if k == math.inf:
            return k
        bank = -row.debt
        for step, charge in enumerate(row.claims["charge"], 1):
            bank += k - charge
            bank = max(bank, 10 * k) if step % 10 == 0 else bank
        return max(0.0, bank + k)


class FifteenPercentMore(AnchoredDecoder):
    """Grants fifteen per cent more than was asked for."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, times=1.15)


class TwiceTheBudget(AnchoredDecoder):
    """Grants twice what was asked for."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, times=2)


class PreviousDebt(AnchoredDecoder):
    """Subtracts the debt of the request before, and states that."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.last = 0.0

    def debt(self, request: Request) -> float:
        owed, self.last = self.last, super().debt(request)
        return owed


class NeighboursDebt(AnchoredDecoder):
    """Subtracts the debt of the next row of its batch, and states that."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        owed = [AnchoredDecoder.debt(self, request) for request in requests]
        self.owed = iter(owed[1:] + owed[:1])
        return super().decode(requests)

    def debt(self, request: Request) -> float:
        return next(self.owed)


class FirstRowsDebt(AnchoredDecoder):
    """Subtracts the debt of the first row of its batch, and states that."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        self.owed = AnchoredDecoder.debt(self, requests[0]) if requests else 0.0
        return super().decode(requests)

    def debt(self, request: Request) -> float:
        return self.owed


class FirstRowsBudget(AnchoredDecoder):
    """Allows every row what the first open row of its batch may spend."""

    def laws(self, rows: Sequence[ReferenceRow]) -> tuple[Law, Law]:
        self.first = rows[0]
        return super().laws(rows)

    def allowance(self, row: ReferenceRow) -> float:
        if row.request.k == math.inf:
            return row.request.k
        return allowance_of(replace(row, spent=self.first.spent), self.first.debt)


class InheritsTheRest(AnchoredDecoder):
    """Adds to its budget what the answer before left unspent, of the same prompt."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.rest: dict[tuple[tuple[int, ...], float], float] = {}

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        found: dict[int, Output] = {}
        waiting = list(range(len(requests)))
        while waiting:
            # One answer of every prompt and budget at a time, so that there is one before.
            firsts: dict[tuple[tuple[int, ...], float], int] = {}
            for at in waiting:
                firsts.setdefault((requests[at].prompt, requests[at].k), at)
            now = list(firsts.values())
            found |= zip(now, super().decode([requests[at] for at in now]), strict=True)
            waiting = [at for at in waiting if at not in found]
        return [found[at] for at in range(len(requests))]

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt - self.rest.get((row.request.prompt, row.request.k), 0.0))

    def output(self, row: ReferenceRow) -> Output:
        left = row.step * row.request.k - row.spent - row.debt
        if math.isfinite(left):
            self.rest[row.request.prompt, row.request.k] = max(0.0, left)
        return super().output(row)


class BooksLate(AnchoredDecoder):
    """Books and states every charge one step late, and the last one never."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.late: dict[int, float] = {}

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        booked, self.late[id(row)] = self.late.get(id(row), 0.0), charge
        row.claims["charge"][-1:] = [booked]
        row.spent += booked

    def output(self, row: ReferenceRow) -> Output:
        self.late.pop(id(row), None)
        return super().output(row)


class ClipsItsCharge(AnchoredDecoder):
    """Solves for 1.3 times the allowance, and never books more than the allowance."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        law, charge, theta = super().serve(safe, risky, 1.3 * allowance)
        return law, np.minimum(charge, allowance), theta


class BooksTheDraw(AnchoredDecoder):
    """States every divergence, and books the realised log-ratio of the token."""

    def pay(self, row: ReferenceRow, charge: float, ratio: float) -> None:
        row.spent += ratio


class HonestAlone(AnchoredDecoder):
    """Keeps its budget where it is asked for one answer, and grants 2 k in a batch."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        self.times = 1.0 if len(requests) == 1 else 2.0
        return super().decode(requests)

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, times=self.times)


class HotPrompts(AnchoredDecoder):
    """Grants 4 k to one prompt in seven."""

    def allowance(self, row: ReferenceRow) -> float:
        return allowance_of(row, row.debt, times=1 if chance_of(*row.request.prompt) % 7 else 4)


class LateCheat(AnchoredDecoder):
    """Serves the risky model alone in the last tenth of an answer, whatever it costs."""

    def allowance(self, row: ReferenceRow) -> float:
        return (
            math.inf if 10 * row.step >= 9 * row.request.max_new_tokens else super().allowance(row)
        )


class EveryTenthAnswer(AnchoredDecoder):
    """Serves the risky model alone in one answer of ten, whatever it costs."""

    def allowance(self, row: ReferenceRow) -> float:
        return super().allowance(row) if chance_of(row.request.seed) % 10 else math.inf
