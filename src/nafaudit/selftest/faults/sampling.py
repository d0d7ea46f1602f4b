"""Faults of laws, sampling and noise.

The first line of a class's docstring is its entry in the column "what it does" of the table of
faults (`FaultCase.about`), so it begins with a verb.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import log_softmax

from nafaudit.core.draws import Stream, gumbel
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Output, Request
from nafaudit.selftest.faults.tools import blend, mixture, only, weight_of


class SampleRisky(AnchoredDecoder):
    """Charges for the mixture, draws from the risky model."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return risky


class SampleSafe(AnchoredDecoder):
    """Charges for the mixture, draws from the safe model."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return safe


class Tempered(AnchoredDecoder):
    """Cools the served law after it was charged."""

    temperature = 0.8

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return np.asarray(log_softmax(law / self.temperature))


class SlightlyTempered(Tempered):
    """Cools the served law a little after it was charged."""

    temperature = 0.95


class Heated(Tempered):
    """Heats the served law after it was charged."""

    temperature = 1.25


class Greedy(AnchoredDecoder):
    """Writes the likeliest token of the served law."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return only(law, np.array([np.argmax(law)]))


class ArithmeticMixture(AnchoredDecoder):
    """Solves for the geometric mixture, draws from the arithmetic one of the same weight."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        return blend(safe, risky, weight_of(law, safe, risky))


class ThetaPlus(AnchoredDecoder):
    """Draws with a weight a tenth above the one it was charged for."""

    shift = 0.1

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        weight = weight_of(law, safe, risky)
        return mixture(safe, risky, min(1.0, max(0.0, weight + self.shift)))


class ThetaPlusSmall(ThetaPlus):
    """Draws with a weight a fiftieth above the one it was charged for."""

    shift = 0.02


class ThetaMinus(ThetaPlus):
    """Draws with a weight a fifth below the charged one: within the budget, but not as claimed."""

    shift = -0.2


class CoarseWeights(AnchoredDecoder):
    """Rounds the weight up to a grid of twentieths, and charges for the exact one."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        weight = weight_of(law, safe, risky)
        return mixture(safe, risky, min(1.0, math.ceil(weight * 20) / 20))


class ThetaRoundedUp(AnchoredDecoder):
    """Serves the weight rounded up to a tenth, and charges and states the exact one."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        _, charge, theta = super().serve(safe, risky, allowance)
        rows = zip(safe, risky, map(self.weight, theta.tolist()), strict=True)
        return np.stack([mixture(*row) for row in rows]), charge, theta

    def weight(self, theta: float) -> float:
        return min(1.0, math.ceil(theta * 10) / 10)


class ThetaPlusTwentieth(ThetaRoundedUp):
    """Adds a twentieth to every weight above 0, and charges and states the exact one."""

    def weight(self, theta: float) -> float:
        return min(1.0, theta + 0.05) if theta else theta


class ArithmeticServed(AnchoredDecoder):
    """Serves the arithmetic mixture at the geometric one's weight, charge and claims."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        _, charge, theta = super().serve(safe, risky, allowance)
        rows = zip(safe, risky, theta.tolist(), strict=True)
        return np.stack([blend(*row) for row in rows]), charge, theta


class BadSpeculation(AnchoredDecoder):
    """Drafts with the risky model, and replaces a refused draft by a draw from the served law."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        accepted = np.minimum(law, risky)
        refused = max(1e-300, 1 - float(np.exp(accepted).sum()))
        return np.asarray(np.logaddexp(accepted, law + math.log(refused)))


class BestOfFour(AnchoredDecoder):
    """Writes four outputs and hands back the likeliest."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        many = [replace(r, seed=(4 * r.seed + i) % (1 << 63)) for r in requests for i in range(4)]
        outputs = super().decode(many)
        groups = [outputs[i : i + 4] for i in range(0, len(outputs), 4)]
        return [max(group, key=lambda o: math.fsum(o.served or ())) for group in groups]


class Bfloat16(AnchoredDecoder):
    """Keeps both laws in sixteen bits: small errors in every number."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        return super().serve(_rounded(safe), _rounded(risky), allowance)


class WrongAnchor(AnchoredDecoder):
    """Anchors to the safe law with every log-probability moved by up to 0.3."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        bent = safe + 0.3 * np.sin(np.arange(safe.shape[1]))
        return super().serve(np.asarray(log_softmax(bent, axis=1)), risky, allowance)


class WarmAnchor(AnchoredDecoder):
    """Warms both laws before the solve, and does not say so."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        warm = [np.asarray(log_softmax(law / 1.2, axis=1)) for law in (safe, risky)]
        return super().serve(warm[0], warm[1], allowance)


class SwappedModels(AnchoredDecoder):
    """Swaps the two models, so that the output is anchored to the risky one."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        return super().serve(risky, safe, allowance)


class StaleLaws(AnchoredDecoder):
    """Serves the laws of the step before."""

    def laws(self, rows: Sequence[ReferenceRow]) -> tuple[Law, Law]:
        return self.world.laws([row.prefix[:-1] if row.step else row.prefix for row in rows])


class StaleAnchor(AnchoredDecoder):
    """Keeps the safe model's law of the step before."""

    def laws(self, rows: Sequence[ReferenceRow]) -> tuple[Law, Law]:
        late = [row.prefix[:-1] if row.step else row.prefix for row in rows]
        return self.world.laws(late)[0], self.world.laws([row.prefix for row in rows])[1]


class SometimesStale(AnchoredDecoder):
    """Serves the laws of the step before at every tenth step, and claims nothing."""

    def laws(self, rows: Sequence[ReferenceRow]) -> tuple[Law, Law]:
        late = [row.prefix[:-1] if row.step % 10 == 9 else row.prefix for row in rows]
        return self.world.laws(late)

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens)


class ForgetsThePrompt(AnchoredDecoder):
    """Loses all but the last token of the prompt."""

    def laws(self, rows: Sequence[ReferenceRow]) -> tuple[Law, Law]:
        return self.world.laws([(row.request.prompt[-1], *row.tokens) for row in rows])


class ColdRisky(AnchoredDecoder):
    """Cools the risky law before the solve, and does not say so."""

    def serve(self, safe: Law, risky: Law, allowance: Law) -> tuple[Law, Law, Law]:
        return super().serve(safe, np.asarray(log_softmax(risky / 0.7, axis=1)), allowance)


class SilentColdRisky(ColdRisky):
    """Cools the risky law before the solve and claims nothing; the budget is kept."""

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens)


def _rounded(law: Law) -> Law:
    """Returns a law rounded to bfloat16: sign, 8 bits of exponent, 7 stored bits of significand."""
    bits = law.astype(np.float32).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


class NoiseReused(AnchoredDecoder):
    """Uses one seed for every trajectory of every prompt."""

    def draw(self, row: ReferenceRow, law: Law) -> int:
        return int(np.argmax(law + gumbel(Stream(7), row.step, len(law))))


class NoiseRepeatsEachStep(AnchoredDecoder):
    """Draws the same noise at every step."""

    def draw(self, row: ReferenceRow, law: Law) -> int:
        return int(np.argmax(law + gumbel(Stream(row.request.seed), 0, len(law))))


class FewSeeds(AnchoredDecoder):
    """Keeps three bits of every seed, so that trajectories repeat each other."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        return super().decode([replace(r, seed=r.seed % 8) for r in requests])


class BatchNoise(AnchoredDecoder):
    """Uses the first request's seed for every row of a batch."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        shared = requests[0].seed if requests else 0
        return super().decode([replace(r, seed=shared) for r in requests])
