"""What servers offer, applied after the charge: cuts, penalties, favoured tokens."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.special import log_softmax

from nafaudit.mechanisms.doors import Law
from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.selftest.faults.tools import only


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


class LooseTopP(AnchoredDecoder):
    """Drops the least likely one per cent of the served law."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law without the end of its tail."""
        order = np.argsort(-law, kind="stable")
        before = np.cumsum(np.exp(law[order])) - np.exp(law[order])
        return only(law, order[before < 0.99])


class EpsilonCut(AnchoredDecoder):
    """Drops tokens of less than one per cent."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law above a fixed floor."""
        return only(law, np.flatnonzero(law >= min(math.log(0.01), float(law.max()))))


class Typical(AnchoredDecoder):
    """Keeps the 90 % of the served law whose surprisal is closest to its entropy."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law's middle."""
        mass = np.exp(law)
        entropy = -math.fsum(mass[mass > 0] * law[mass > 0])
        order = np.argsort(np.abs(-law - entropy), kind="stable")
        before = np.cumsum(mass[order]) - mass[order]
        return only(law, order[before < 0.9])


class PenaltyAfter(AnchoredDecoder):
    """Makes tokens that already occur less likely, after the charge."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law, penalised."""
        seen = np.isin(np.arange(len(law)), row.prefix)
        return np.asarray(log_softmax(np.where(seen, law - 1.0, law)))


class NoRepeatedPairs(AnchoredDecoder):
    """Forbids a token that would repeat a pair of tokens of the text so far."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law without what followed the last token before."""
        text = row.prefix
        banned = {b for a, b in itertools.pairwise(text) if a == text[-1]}
        kept = [token for token in range(len(law)) if token not in banned]
        return only(law, np.array(kept)) if kept else law


class StopSuppressed(AnchoredDecoder):
    """Forbids the stop token, after the charge."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law without its stops."""
        kept = [token for token in range(len(law)) if token not in self.world.stops]
        return only(law, np.array(kept))


class StopsFavoured(AnchoredDecoder):
    """Makes the stop token three times as likely, after the charge."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law with a push towards the end."""
        pushed = law.copy()
        pushed[list(self.world.stops)] += math.log(3)
        return np.asarray(log_softmax(pushed))
