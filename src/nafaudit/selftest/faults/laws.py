"""Laws that are not those of the two models at this prefix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax

from nafaudit.mechanisms.doors import Law, Output
from nafaudit.mechanisms.reference import AnchoredDecoder, Row


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


class StaleAnchor(AnchoredDecoder):
    """Keeps the safe model's law of the step before."""

    def laws(self, rows: Sequence[Row]) -> tuple[Law, Law]:
        """A safe law that is one token late."""
        late = [row.prefix[:-1] if row.step else row.prefix for row in rows]
        return self.world.laws(late)[0], self.world.laws([row.prefix for row in rows])[1]


class SometimesStale(AnchoredDecoder):
    """Serves the laws of the step before at every tenth step, and claims nothing."""

    def laws(self, rows: Sequence[Row]) -> tuple[Law, Law]:
        """Laws that are now and then one token late."""
        late = [row.prefix[:-1] if row.step % 10 == 9 else row.prefix for row in rows]
        return self.world.laws(late)

    def output(self, row: Row) -> Output:
        """Tokens only."""
        return Output(row.tokens)


class ForgetsThePrompt(AnchoredDecoder):
    """Loses all but the last token of the prompt."""

    def laws(self, rows: Sequence[Row]) -> tuple[Law, Law]:
        """Laws of a shorter text."""
        return self.world.laws([(row.request.prompt[-1], *row.tokens) for row in rows])


class ColdRisky(AnchoredDecoder):
    """Cools the risky law before the solve, and does not say so."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        """A mixture with a model that nobody named; it is charged rightly."""
        return super().serve(safe, np.asarray(log_softmax(risky / 0.7, axis=1)), allowance)


class SilentColdRisky(ColdRisky):
    """The same, and claims nothing: it keeps the budget with another risky model."""

    def output(self, row: Row) -> Output:
        """Tokens only."""
        return Output(row.tokens)


def _rounded(law: Law) -> Law:
    """A law as sixteen bits with eight of mantissa keep it."""
    bits = law.astype(np.float32).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
