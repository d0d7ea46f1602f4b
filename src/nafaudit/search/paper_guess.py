"""The paper's surrogate at work in its loop: fitted on the archive's history each generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nafaudit.models.pair import PromptTokenizer
from nafaudit.search.allocation import Prediction
from nafaudit.search.archive import Tfidf
from nafaudit.search.finals import Item
from nafaudit.search.paper_heads import Training
from nafaudit.search.paper_surrogate import (
    TFIDF_WIDTH,
    Diagnostics,
    Inputs,
    Labels,
    Options,
    PaperSurrogate,
    fit_paper,
)

Array = NDArray[np.float64]
LEAST_TEXTS = 2
"""In how many texts a word must occur to be a feature."""


class Guesser:
    """What the surrogate says of texts, and where texts lie; forgets nothing that it embedded.

    Args:
        tokenizer: Splits prompts.
        embedder: In the place of the paper's Sentence-T5.
        vocabulary: How many token ids there are.
        total: K, which the label "within budget" is about.
        epochs: Most epochs of every network.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        embedder: Tfidf,
        vocabulary: int,
        total: float,
        epochs: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._embedder = embedder
        self._options = Options(training=Training(epochs=epochs), vocabulary=vocabulary)
        self._total = total
        self._points: dict[str, Array] = {}
        self._features: Callable[[Sequence[str]], Array] = _no_features
        self._surrogate = PaperSurrogate(Diagnostics(ready=False, rows=0))
        self.labels: tuple[bool, ...] = ()

    @property
    def name(self) -> str:
        """Which embedding stands for the paper's."""
        return self._embedder.name

    @property
    def diagnostics(self) -> Diagnostics:
        """Of the last fit."""
        return self._surrogate.diagnostics

    def fit(self, history: Sequence[Item], debts: Mapping[str, float]) -> None:
        """Trains all heads on archived prompts, if there are enough of them."""
        if not history:
            return
        texts = [item.candidate.text for item in history]
        self._features = _features_of(texts)
        labels = Labels.of([item.row for item in history], self._total)
        self.labels = tuple(map(bool, labels.safe))
        known = np.array([debts[item.candidate.id] for item in history])
        self._surrogate = fit_paper(self._inputs(texts, known), labels, self._options)

    def predict(self, texts: Sequence[str]) -> list[Prediction] | None:
        """What it says of texts, with a debt of 0 as the paper has it; None if it is not ready."""
        if not self.diagnostics.ready:
            return None
        return self._surrogate.predict(self._inputs(texts, np.zeros(len(texts)))) if texts else []

    def points(self, texts: Sequence[str]) -> Array:
        """One row per text."""
        new = [text for text in dict.fromkeys(texts) if text not in self._points]
        if new:
            self._points |= dict(zip(new, self._embedder.embed(new), strict=True))
        return np.stack([self._points[text] for text in texts]) if texts else np.zeros((0, 1))

    def _inputs(self, texts: Sequence[str], debts: Array) -> Inputs:
        tokens = [self._tokenizer.ids(text) for text in texts]
        return Inputs(self.points(texts), tokens, self._features(texts), debts)


def _no_features(texts: Sequence[str]) -> Array:
    return np.zeros((len(texts), 0))


def _features_of(texts: Sequence[str]) -> Callable[[Sequence[str]], Array]:
    """TF-IDF of words and pairs that two texts have; where no two share one there is none."""
    seen: set[str] = set()
    for text in texts:
        words = set(text.lower().split())
        if seen & words:
            return Tfidf.of(texts, TFIDF_WIDTH, LEAST_TEXTS).embed
        seen |= words
    return _no_features
