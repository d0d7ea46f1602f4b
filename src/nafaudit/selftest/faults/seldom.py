"""Sound most of the time: some steps, some outputs, some prompts are not."""

from __future__ import annotations

import math

import numpy as np

from nafaudit.mechanisms.doors import Law
from nafaudit.mechanisms.reference import AnchoredDecoder, Row
from nafaudit.selftest.faults.tools import blend, only


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


class SometimesRisky(AnchoredDecoder):
    """Draws from the risky model in one step of five, at random."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The served law with a share of the risky one."""
        return blend(law, risky, 0.2)


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


class HalfRisky(AnchoredDecoder):
    """Draws from the risky model at every other step."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law, half of the time."""
        return risky if row.step % 2 else law


class TriggeredRisky(AnchoredDecoder):
    """Draws from the risky model for prompts whose last token is even."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law, for some."""
        return risky if row.request.prompt[-1] % 2 == 0 else law


class RareRisky(AnchoredDecoder):
    """Draws from the risky model in one execution of eight."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law, seldom."""
        return risky if row.request.seed % 8 == 0 else law


class VeryRareRisky(AnchoredDecoder):
    """Draws from the risky model in one execution of forty."""

    def sampled(self, row: Row, law: Law, safe: Law, risky: Law) -> Law:
        """The wrong law, hardly ever."""
        return risky if row.request.seed % 40 == 0 else law
