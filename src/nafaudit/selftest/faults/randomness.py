"""Noise that is used twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nafaudit.core.draws import Stream, gumbel
from nafaudit.mechanisms.doors import Law, Output, Request
from nafaudit.mechanisms.reference import AnchoredDecoder, Row


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


class BatchNoise(AnchoredDecoder):
    """Draws one noise for all rows of a batch."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        """Writes with the first row's seed."""
        shared = requests[0].seed if requests else 0
        return super().decode([replace(r, seed=shared) for r in requests])
