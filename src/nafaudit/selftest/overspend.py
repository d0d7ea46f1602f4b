"""What a decoder truly spends, whatever it says: the law that it really draws from, metered.

A fault that nobody notices matters only as far as it costs something; this is how far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nafaudit.mechanisms.doors import Law, Output, Request, World, debt_of
from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.selftest.exact import divergence

# Sums of float64 numbers differ by less than this.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Overspend:
    """True spend against budget, over some executions.

    Attributes:
        executions: How many.
        exceeding: How many of them truly spend more than their budget.
        ratio: Mean of the true spend over mean of the budget.
    """

    executions: int
    exceeding: int
    ratio: float

    @property
    def share(self) -> float:
        """Share of executions beyond their budget."""
        return self.exceeding / self.executions


def overspend(decoder: AnchoredDecoder, requests: Sequence[Request]) -> Overspend:
    """Lets a decoder write, and meters every law that it samples against the safe model."""
    spent = _metered(decoder)
    outputs = decoder.decode(requests)
    true = np.array([spent[i] for i in range(len(requests))])
    budget = np.array(
        [_budget(decoder.world, r, o) for r, o in zip(requests, outputs, strict=True)]
    )
    exceeding = int((true > budget * (1 + _ROUNDING) + _ROUNDING).sum())
    return Overspend(len(requests), exceeding, float(true.mean() / budget.mean()))


def _budget(world: World, request: Request, output: Output) -> float:
    return max(0.0, len(output.tokens) * request.k - debt_of(world, request.prompt))


def _metered(decoder: AnchoredDecoder) -> list[float]:
    """Meters a decoder; the list has the true spend of every output, in order, once it is done."""
    sampled, output = decoder.sampled, decoder.output
    open_: dict[int, float] = {}
    finished: list[float] = []

    def meter(row: Row, law: Law, safe: Law, risky: Law) -> Law:
        drawn_from = sampled(row, law, safe, risky)
        # The decoder may have asked for another prefix than its own.
        anchor = decoder.world.laws([row.prefix])[0][0]
        open_[id(row)] = open_.get(id(row), 0.0) + divergence(drawn_from, anchor)
        return drawn_from

    def close(row: Row) -> Output:
        finished.append(open_.pop(id(row)))
        return output(row)

    setattr(decoder, "sampled", meter)  # noqa: B010  one decoder, not its class
    setattr(decoder, "output", close)  # noqa: B010
    return finished
