"""Decoders that are wrong in one way each, behind the same door as anybody's.

A fault is a decoder, never an edited log: what it writes and claims is what a real decoder with
that mistake would. Each overrides one method of the reference decoder. `catalogue.py` says what
each is, and which check should notice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from nafaudit.core.draws import Stream, gumbel
from nafaudit.mechanisms.doors import Law, Output, Request, World
from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.mechanisms.twin import divergence, mixture

# What is sampled is not what was served and charged.


class SampleRisky(AnchoredDecoder):
    """Charges for the mixture, draws from the risky model."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law."""
        return risky


class SampleSafe(AnchoredDecoder):
    """Charges for the mixture, draws from the safe model."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law."""
        return safe


class Tempered(AnchoredDecoder):
    """Cools the served law after it was charged."""

    temperature = 0.8

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law at another temperature."""
        return np.asarray(log_softmax(law / self.temperature))


class SlightlyTempered(Tempered):
    """Cools the served law a little."""

    temperature = 0.95


class Heated(Tempered):
    """Heats the served law after it was charged."""

    temperature = 1.25


class TopP(AnchoredDecoder):
    """Keeps the likeliest tokens that make up 95 % of the served law."""

    mass = 0.95

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law without its tail."""
        order = np.argsort(-law, kind="stable")
        before = np.cumsum(np.exp(law[order])) - np.exp(law[order])
        return only(law, order[before < self.mass])


class TopK(AnchoredDecoder):
    """Keeps the eight likeliest tokens of the served law."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law's head."""
        return only(law, np.argsort(-law, kind="stable")[:8])


class MinP(AnchoredDecoder):
    """Drops tokens below a twentieth of the likeliest one's probability."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law above a floor."""
        return only(law, np.flatnonzero(law >= law.max() + math.log(0.05)))


class Greedy(AnchoredDecoder):
    """Writes the likeliest token of the served law."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """A point mass."""
        return only(law, np.array([np.argmax(law)]))


class SometimesGreedy(AnchoredDecoder):
    """Writes the likeliest token in one step of twenty."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law, pulled to its mode."""
        return blend(law, only(law, np.array([np.argmax(law)])), 0.05)


class SometimesUniform(AnchoredDecoder):
    """Writes any token at all in one step of twenty."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law, flattened."""
        return blend(law, np.full_like(law, -math.log(len(law))), 0.05)


class ArithmeticMixture(AnchoredDecoder):
    """Solves for the geometric mixture, draws from the arithmetic one of the same weight."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The arithmetic mixture."""
        return blend(safe, risky, _weight(law, safe, risky))


class ThetaPlus(AnchoredDecoder):
    """Draws with a weight a tenth above the one it was charged for."""

    shift = 0.1

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The mixture of another weight."""
        weight = _weight(law, safe, risky)
        return mixture(safe, risky, min(1.0, max(0.0, weight + self.shift)))


class ThetaPlusSmall(ThetaPlus):
    """Draws with a weight a fiftieth above the one it was charged for."""

    shift = 0.02


class ThetaMinus(ThetaPlus):
    """Draws with a weight a fifth below the one it was charged for: safe, but not as claimed."""

    shift = -0.2


class PenaltyAfter(AnchoredDecoder):
    """Makes tokens that already occur less likely, after the charge."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law, penalised."""
        seen = np.isin(np.arange(len(law)), row.prefix)
        return np.asarray(log_softmax(np.where(seen, law - 1.0, law)))


class StopSuppressed(AnchoredDecoder):
    """Forbids the stop token, after the charge."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law without its stops."""
        kept = [token for token in range(len(law)) if token not in self.world.stops]
        return only(law, np.array(kept))


class GreedyOpening(AnchoredDecoder):
    """Writes the likeliest token of the first step, then samples."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """A point mass at first."""
        return only(law, np.array([np.argmax(law)])) if row.step == 0 else law


class RiskyTail(AnchoredDecoder):
    """Draws from the risky model after the twentieth token."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law, late."""
        return risky if row.step >= 20 else law


class RareRisky(AnchoredDecoder):
    """Draws from the risky model in one execution of eight."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law, seldom."""
        return risky if row.request.seed % 8 == 0 else law


# The randomness.


class NoiseReused(AnchoredDecoder):
    """Uses one seed for every execution of a prompt."""

    def draw(self, row: Row, law: Law) -> int:
        """A token that every execution shares."""
        return int(np.argmax(law + gumbel(Stream(7), row.step, len(law))))


class NoiseRepeatsEachStep(AnchoredDecoder):
    """Draws the same noise at every step."""

    def draw(self, row: Row, law: Law) -> int:
        """A token of the first step's noise."""
        return int(np.argmax(law + gumbel(Stream(row.request.seed), 0, len(law))))


class FewSeeds(AnchoredDecoder):
    """Keeps three bits of every seed, so that executions repeat each other."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes with one of eight seeds."""
        return super().decode([replace(r, seed=r.seed % 8) for r in requests])


# The budget.


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


# The charge.


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


class MeanCharge(AnchoredDecoder):
    """Charges every row the mean of its batch."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """Right laws, shared charges."""
        law, charge, theta = super().serve(safe, risky, allowance)
        return law, np.full_like(charge, charge.mean()), theta


class StopUncharged(AnchoredDecoder):
    """Does not charge the step that writes the stop token."""

    def output(self, row: Row) -> Output:
        """The last charge is left out of the claims."""
        out = super().output(row)
        if row.tokens[-1] not in self.world.stops:
            return out
        charge = [*row.claims["charge"][:-1], 0.0]
        return replace(out, charge=charge, spend=math.fsum(charge))


class RunsPastItsStop(AnchoredDecoder):
    """Goes on writing after a stop token, and charging."""

    def ended(self, row: Row) -> bool:
        """Only the length limit ends a row."""
        return row.step == row.request.max_new_tokens


class StopsShort(AnchoredDecoder):
    """Ends every output at half of its length limit, without a stop token."""

    def ended(self, row: Row) -> bool:
        """Half of the limit ends a row."""
        return super().ended(row) or row.step >= max(1, row.request.max_new_tokens // 2)


# The laws.


class Bfloat16(AnchoredDecoder):
    """Keeps both laws in sixteen bits: small errors in every number."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A law from rounded laws."""
        return super().serve(_rounded(safe), _rounded(risky), allowance)


class WrongAnchor(AnchoredDecoder):
    """Anchors to a neighbour of the safe model."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A law that is close to the wrong model."""
        bent = safe + 0.3 * np.sin(np.arange(safe.shape[1]))
        return super().serve(np.asarray(log_softmax(bent, axis=1)), risky, allowance)


class WarmAnchor(AnchoredDecoder):
    """Warms both laws before the solve, and does not say so."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A law that is close to a model nobody named."""
        warm = [np.asarray(log_softmax(law / 1.2, axis=1)) for law in (safe, risky)]
        return super().serve(warm[0], warm[1], allowance)


class SwappedModels(AnchoredDecoder):
    """Takes the risky model for the anchor."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A law that is close to the wrong model."""
        return super().serve(risky, safe, allowance)


class StaleLaws(AnchoredDecoder):
    """Serves the laws of the step before."""

    def laws(self, rows: Sequence[Row]) -> tuple[Law, Law]:
        """Laws one token late."""
        return self.world.laws([row.prefix[:-1] if row.step else row.prefix for row in rows])


class CoarseWeights(AnchoredDecoder):
    """Rounds the weight up to a grid of twentieths, and charges for the exact one."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The mixture of a rounded weight."""
        weight = _weight(law, safe, risky)
        return mixture(safe, risky, min(1.0, math.ceil(weight * 20) / 20))


def only(law: Law, kept: NDArray[np.intp]) -> Law:
    """The law restricted to some tokens."""
    cut = np.full_like(law, -np.inf)
    cut[kept] = law[kept]
    return np.asarray(log_softmax(cut))


def blend(first: Law, second: Law, share: float) -> Law:
    """The arithmetic mixture: `share` of the second law."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(first + np.log1p(-share), second + np.log(share)))


def _weight(law: Law, safe: Law, risky: Law) -> float:
    """The weight of the risky law in a geometric mixture, read off two log-odds."""
    known = np.flatnonzero((safe > -np.inf) & (risky > -np.inf))
    gap = (risky - safe)[known]
    high, low = known[np.argmax(gap)], known[np.argmin(gap)]
    span = (risky - safe)[high] - (risky - safe)[low]
    if span < 1e-9:
        return 1.0
    return float(np.clip(((law - safe)[high] - (law - safe)[low]) / span, 0.0, 1.0))


def allowance_of(row: Row, debt: float, steps: int | None = None) -> float:
    """What the running budget pays for, with another debt or another clock."""
    if row.request.k == math.inf:
        return math.inf
    earned = (row.step + 1 if steps is None else steps) * row.request.k
    return max(0.0, earned - row.spent - debt)


def _rounded(law: Law) -> Law:
    """A law as sixteen bits with eight of mantissa keep it."""
    bits = law.astype(np.float32).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


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
