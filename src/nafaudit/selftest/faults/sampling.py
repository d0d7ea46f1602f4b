"""What is sampled is not what was served and charged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import log_softmax

from nafaudit.mechanisms.doors import Law, Output, Request
from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.mechanisms.twin import mixture
from nafaudit.selftest.faults.tools import blend, only, weight_of


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


class Greedy(AnchoredDecoder):
    """Writes the likeliest token of the served law."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """A point mass."""
        return only(law, np.array([np.argmax(law)]))


class ArithmeticMixture(AnchoredDecoder):
    """Solves for the geometric mixture, draws from the arithmetic one of the same weight."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The arithmetic mixture."""
        return blend(safe, risky, weight_of(law, safe, risky))


class ThetaPlus(AnchoredDecoder):
    """Draws with a weight a tenth above the one it was charged for."""

    shift = 0.1

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The mixture of another weight."""
        weight = weight_of(law, safe, risky)
        return mixture(safe, risky, min(1.0, max(0.0, weight + self.shift)))


class ThetaPlusSmall(ThetaPlus):
    """Draws with a weight a fiftieth above the one it was charged for."""

    shift = 0.02


class ThetaMinus(ThetaPlus):
    """Draws with a weight a fifth below the one it was charged for: safe, but not as claimed."""

    shift = -0.2


class CoarseWeights(AnchoredDecoder):
    """Rounds the weight up to a grid of twentieths, and charges for the exact one."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The mixture of a rounded weight."""
        weight = weight_of(law, safe, risky)
        return mixture(safe, risky, min(1.0, math.ceil(weight * 20) / 20))


class BadSpeculation(AnchoredDecoder):
    """Drafts with the risky model, and replaces a refused draft by a draw from the served law."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """Accepted drafts and wrong replacements."""
        accepted = np.minimum(law, risky)
        refused = max(1e-300, 1 - float(np.exp(accepted).sum()))
        return np.asarray(np.logaddexp(accepted, law + math.log(refused)))


class BestOfFour(AnchoredDecoder):
    """Writes four outputs and hands back the likeliest."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """One of four for every request."""
        many = [replace(r, seed=(4 * r.seed + i) % (1 << 63)) for r in requests for i in range(4)]
        outputs = super().decode(many)
        groups = [outputs[i : i + 4] for i in range(0, len(outputs), 4)]
        return [max(group, key=lambda o: math.fsum(o.served or ())) for group in groups]
