"""A surrogate at the wheel, or not: candidates are pre-screened only behind an open gate.

The surrogate learns the log of mean utilisation from whatever has been drawn, and is judged on
prompts that it did not see. If the gate is shut, the first candidates are drawn as they come, and
the numbers of the judgement are the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nafaudit.search.candidate import Candidate
from nafaudit.search.gate import Judgement, Limits, judge
from nafaudit.search.halving import intraclass, reliability
from nafaudit.search.surrogate import Examples, cross_predict, fit, log_mean

Array = NDArray[np.float64]
Features = Callable[[Sequence[str]], tuple[Array, Array]]
"""Texts in; their embeddings and their cheap numbers out, one row each."""

FEWEST = 15
"""Prompts from which on a surrogate can be fitted in five folds."""


@dataclass(frozen=True)
class Label:
    """A prompt with its utilisations: what a surrogate learns from."""

    text: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Steered:
    """What a surrogate did in one generation.

    Attributes:
        generation: Which.
        offered: Candidates that it could choose among.
        kept: How many were drawn.
        judgement: What the gate said.
    """

    generation: int
    offered: int
    kept: int
    judgement: Judgement

    @property
    def steers(self) -> bool:
        """True if the surrogate chose."""
        return self.judgement.steers


class Steering:
    """Asks the gate, and the surrogate behind it; remembers answers, which never change.

    Args:
        features: Makes features of texts.
        limits: What a surrogate must reach.
        seed: Of its splits.
    """

    def __init__(self, features: Features, limits: Limits | None = None, seed: int = 0) -> None:
        self._features, self._limits, self._seed = features, limits or Limits(), seed
        self._judged: dict[tuple[Label, ...], Judgement] = {}

    def screen(
        self, generation: int, offered: Sequence[Candidate], labels: Sequence[Label], keep: int
    ) -> tuple[list[Candidate], Steered]:
        """The candidates to draw: the most promising if the gate is open, else the first.

        Args:
            generation: Goes into the record.
            offered: New candidates.
            labels: Everything that was drawn so far.
            keep: How many may be drawn.
        """
        known = tuple(one for one in labels if one.values)
        judgement = self.judge(known)
        if judgement.steers:
            said = fit(self._examples(known), seed=self._seed).predict(
                Examples(*self._features([one.text for one in offered]))
            )
            best = np.argsort(-said.optimistic(), kind="stable")[:keep]
            chosen = [offered[int(i)] for i in best]
        else:
            chosen = list(offered[:keep])
        return chosen, Steered(generation, len(offered), len(chosen), judgement)

    def judge(self, labels: Sequence[Label]) -> Judgement:
        """Holds the surrogate against prompts it did not see."""
        key = tuple(labels)
        if key not in self._judged:
            self._judged[key] = self._judge(_trusted(key, self._limits))
        return self._judged[key]

    def _judge(self, labels: Sequence[Label]) -> Judgement:
        if len(labels) < FEWEST:
            why = f"{len(labels)} prompts, fewer than the {FEWEST} that a fit needs"
            return Judgement.unfitted(len(labels), why)
        groups = [one.values for one in labels]
        examples = self._examples(labels)
        each = sum(map(len, groups)) / len(groups)
        return judge(
            cross_predict(examples, seed=self._seed),
            examples.target,
            _share(groups, each),
            each,
            self._limits,
            self._seed,
        )

    def _examples(self, labels: Sequence[Label]) -> Examples:
        points, numbers = self._features([one.text for one in labels])
        return Examples(points, numbers, *log_mean([one.values for one in labels]))


def _trusted(labels: Sequence[Label], limits: Limits) -> Sequence[Label]:
    """Those with enough trajectories, if there are enough of them; else all."""
    enough = [one for one in labels if len(one.values) >= limits.trajectories]
    return enough if len(enough) >= limits.prompts else labels


def _share(groups: Sequence[Sequence[float]], each: float) -> float:
    """Reliability of means of so many values; NaN if the pool cannot show it."""
    icc = intraclass(groups)
    return math.nan if math.isnan(icc) else min(1.0, reliability(round(each), icc))


def labels_of(
    candidates: Sequence[Candidate], values: Mapping[str, tuple[float, ...]]
) -> list[Label]:
    """Candidates with their values, in the order in which they were tried."""
    return [Label(one.text, values.get(one.id, ())) for one in candidates]
