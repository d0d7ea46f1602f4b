"""Faults of serving: always, seldom, and at the end of an output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import log_softmax

from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Output, Request
from nafaudit.selftest.faults.tools import blend, chance_of, only


class TopP(AnchoredDecoder):
    """Keeps the likeliest tokens that make up 95 % of the served law."""

    mass = 0.95

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        order = np.argsort(-law, kind="stable")
        before = np.cumsum(np.exp(law[order])) - np.exp(law[order])
        return only(law, order[before < self.mass])


class TopK(AnchoredDecoder):
    """Keeps the eight likeliest tokens of the served law."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return only(law, np.argsort(-law, kind="stable")[:8])


class MinP(AnchoredDecoder):
    """Drops tokens below a twentieth of the likeliest one's probability."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return only(law, np.flatnonzero(law >= law.max() + math.log(0.05)))


class LooseTopP(TopP):
    """Drops the least likely one per cent of the served law."""

    mass = 0.99


class EpsilonCut(AnchoredDecoder):
    """Drops tokens of less than one per cent."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return only(law, np.flatnonzero(law >= min(math.log(0.01), float(law.max()))))


class Typical(AnchoredDecoder):
    """Keeps the 90 % of the served law whose surprisal is closest to its entropy."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        mass = np.exp(law)
        entropy = -math.fsum(mass[mass > 0] * law[mass > 0])
        order = np.argsort(np.abs(-law - entropy), kind="stable")
        before = np.cumsum(mass[order]) - mass[order]
        return only(law, order[before < 0.9])


class PenaltyAfter(AnchoredDecoder):
    """Makes tokens that already occur less likely, after the charge."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        seen = np.isin(np.arange(len(law)), row.prefix)
        return np.asarray(log_softmax(np.where(seen, law - 1.0, law)))


class RepetitionPenalty(AnchoredDecoder):
    """Divides by 1.2 the scores of tokens that already occur, after the charge."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        seen = np.isin(np.arange(len(law)), row.prefix)
        # Log-probabilities are negative, and negative scores are multiplied.
        return np.asarray(log_softmax(np.where(seen, law * 1.2, law)))


class BannedWords(AnchoredDecoder):
    """Forbids a tenth of all tokens, after the charge."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        kept = np.array([t for t in range(len(law)) if t % 10 != 3 or t in self.world.stops])
        return only(law, kept) if np.any(law[kept] > -np.inf) else law


class NoRepeatedPairs(AnchoredDecoder):
    """Forbids a token that would repeat a pair of tokens of the text so far."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        text = row.prefix
        banned = {b for a, b in itertools.pairwise(text) if a == text[-1]}
        kept = [token for token in range(len(law)) if token not in banned]
        return only(law, np.array(kept)) if kept else law


class StopSuppressed(AnchoredDecoder):
    """Forbids the stop token, after the charge."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        kept = [token for token in range(len(law)) if token not in self.world.stops]
        return only(law, np.array(kept))


class StopsFavoured(AnchoredDecoder):
    """Makes the stop token three times as likely, after the charge."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        pushed = law.copy()
        pushed[list(self.world.stops)] += math.log(3)
        return np.asarray(log_softmax(pushed))


class SometimesGreedy(AnchoredDecoder):
    """Writes the likeliest token in one step of twenty."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return blend(law, only(law, np.array([np.argmax(law)])), 0.05)


class SometimesUniform(AnchoredDecoder):
    """Writes any token at all in one step of twenty."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return blend(law, np.full_like(law, -math.log(len(law))), 0.05)


class SometimesRisky(AnchoredDecoder):
    """Draws from the risky model in one step of five, at random."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return blend(law, risky, 0.2)


class GreedyOpening(AnchoredDecoder):
    """Writes the likeliest token of the first step, then samples."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return only(law, np.array([np.argmax(law)])) if row.step == 0 else law


class RiskyTail(AnchoredDecoder):
    """Draws from the risky model after the twentieth token."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return risky if row.step >= 20 else law


class HalfRisky(AnchoredDecoder):
    """Draws from the risky model at every other step."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return risky if row.step % 2 else law


class TriggeredRisky(AnchoredDecoder):
    """Draws from the risky model for prompts whose last token is even."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return risky if row.request.prompt[-1] % 2 == 0 else law


class RareRisky(AnchoredDecoder):
    """Draws from the risky model in one trajectory of eight."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return risky if row.request.seed % 8 == 0 else law


class VeryRareRisky(AnchoredDecoder):
    """Draws from the risky model in one trajectory of forty."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return risky if row.request.seed % 40 == 0 else law


class DeniesTheFirst(AnchoredDecoder):
    """Draws the first token from the risky model, and claims what was promised."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return risky if row.step == 0 else law


class DeniesTheLast(AnchoredDecoder):
    """Draws the last tenth of an answer from the risky model, and claims what was promised."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return risky if 10 * row.step >= 9 * row.request.max_new_tokens else law


class DeniesEveryTenth(AnchoredDecoder):
    """Draws one answer of ten from the risky model, and claims what was promised."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return law if chance_of(row.request.seed) % 10 else risky


class StopUncharged(AnchoredDecoder):
    """Does not charge the step that writes the stop token."""

    def output(self, row: ReferenceRow) -> Output:
        out = super().output(row)
        if row.tokens[-1] not in self.world.stops:
            return out
        charge = [*row.claims["charge"][:-1], 0.0]
        return replace(out, charge=charge, spend=math.fsum(charge))


class RunsPastItsStop(AnchoredDecoder):
    """Goes on writing after a stop token, and charging."""

    def ended(self, row: ReferenceRow) -> bool:
        return row.step == row.request.max_new_tokens


class StopsShort(AnchoredDecoder):
    """Ends every output at half of its length limit, without a stop token."""

    def ended(self, row: ReferenceRow) -> bool:
        return super().ended(row) or row.step >= max(1, row.request.max_new_tokens // 2)


class StripsItsStop(AnchoredDecoder):
    """Takes the stop token off its outputs."""

    def output(self, row: ReferenceRow) -> Output:
        out = super().output(row)
        if row.tokens[-1] not in self.world.stops or row.step < 2:
            return out
        charge, served = (row.claims[name][:-1] for name in ("charge", "served"))
        return Output(row.tokens[:-1], charge=charge, served=served, debt=row.debt, spend=row.spent)


class StopsElsewhere(AnchoredDecoder):
    """Takes one ordinary token for a stop token."""

    def ended(self, row: ReferenceRow) -> bool:
        return super().ended(row) or bool(row.tokens and row.tokens[-1] == 3)


class SwappedRows(AnchoredDecoder):
    """Hands the outputs of a batch back in reverse."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        return super().decode(requests)[::-1]
