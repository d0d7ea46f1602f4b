"""Chooses the prompts that a search builds upon: good ones that differ from each other.

Texts become TF-IDF vectors, and the greedy likeliest set of a k-DPP is kept. A k-DPP gives a set S
of k items the probability det(L_S) / (sum over all sets of that size). The archive is apart from
the result of a search, which forgets nothing.

Reference: Chen, Zhang and Zhou (2018), "Fast greedy MAP inference for DPPs", NeurIPS.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nafaudit.core.errors import InputError

Array = NDArray[np.float64]

JITTER = 1e-3
"""Weight of the identity in the similarity: makes every kernel positive definite."""
_CLIP = 1.5
_RESIDUAL = 1e-10


def quality_weights(scores: ArrayLike) -> Array:
    """Computes exp of half the robust z score, clipped: the best weigh e^1.5, the worst e^-1.5.

    The z score is taken from the median and the median absolute deviation; where more than half of
    the scores are equal, from mean and standard deviation.
    """
    values = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError("a quality must be a finite number; leave out what was not measured.")
    centre = np.median(values) if values.size else 0.0
    scale = 1.4826 * float(np.median(np.abs(values - centre))) if values.size else 0.0
    if scale == 0.0 and values.size:
        centre, scale = values.mean(), float(values.std())
    z = (values - centre) / scale if scale else np.zeros_like(values)
    return np.asarray(np.exp(np.clip(z / 2.0, -_CLIP, _CLIP)))


def kernel(embeddings: ArrayLike, scores: ArrayLike | None = None, jitter: float = JITTER) -> Array:
    """Returns L with entries w_i S_ij w_j, S the cosine similarity mixed with the identity.

    Args:
        embeddings: One row per item; a row of zeros is similar to no other row.
        scores: Quality of each item, the larger the better; all equal if None.
        jitter: Weight of the identity, in (0, 1).
    """
    points = np.asarray(embeddings, dtype=np.float64)
    if points.ndim != 2 or not np.isfinite(points).all():
        raise InputError(f"embeddings must be a table of finite numbers, got {points.shape}.")
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    unit = np.divide(points, norms, out=np.zeros_like(points), where=norms > 0)
    similar = (1.0 - jitter) * (unit @ unit.T)
    np.fill_diagonal(similar, 1.0)
    weights = np.ones(len(points)) if scores is None else quality_weights(scores)
    if weights.size != len(points):
        raise InputError(f"{weights.size} scores for {len(points)} embeddings.")
    return np.asarray(weights[:, None] * (similar + similar.T) / 2.0 * weights[None, :])


def greedy_map(likelihood: ArrayLike, k: int) -> list[int]:
    """Adds the item that raises det(L_S) most, k times; ties go to the first.

    Stops early if every item left is a combination of those chosen: of exact copies it takes one.
    Deterministic; its determinant is within a factor of the largest, and not always the largest.
    """
    matrix = np.asarray(likelihood, dtype=np.float64)
    gain = matrix.diagonal().copy()
    least = _RESIDUAL * gain.max(initial=0.0)
    factors = np.zeros((k, len(matrix)))
    taken: list[int] = []
    for step in range(min(k, len(matrix))):
        gain[taken] = -np.inf
        item = int(np.argmax(gain))
        if gain[item] <= least:
            break
        along = matrix[item] - factors[:step, item] @ factors[:step]
        factors[step] = along / np.sqrt(gain[item])
        gain = gain - factors[step] ** 2
        taken.append(item)
    return taken


ARCHIVE_KEEP = 24


def dpp_archive(scores: ArrayLike, embeddings: ArrayLike, keep: int = ARCHIVE_KEEP) -> list[int]:
    """Returns the places of the greedy likeliest, quality-weighted k-DPP set, in that order."""
    return greedy_map(kernel(embeddings, scores), keep)


FEATURES = 3000


def sklearn(module: str) -> Any:
    """Imports a module of scikit-learn.

    Raises:
        InputError: It is not installed.
    """
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise InputError(
            "this needs scikit-learn, which is not installed; pip install 'nafaudit[models]'."
        ) from error


@dataclass(frozen=True)
class Tfidf:
    """An embedding by words and pairs of words, weighted by how rare they are in a corpus.

    Words that the corpus does not have are ignored; a text of only such words is a row of zeros.
    """

    vectorizer: Any

    @classmethod
    def of(cls, corpus: Sequence[str], features: int = FEATURES, least: int = 1) -> Tfidf:
        """Learns the weights.

        Args:
            corpus: Texts like those that will be embedded.
            features: Largest number of words and pairs.
            least: Smallest number of texts that a word or pair must occur in.
        """
        if not any(text.strip() for text in corpus):
            raise InputError("TF-IDF needs a corpus with words, got none.")
        make = sklearn("feature_extraction.text").TfidfVectorizer
        vectorizer = make(
            ngram_range=(1, 2), sublinear_tf=True, max_features=features, min_df=least,
            token_pattern=r"(?u)\S+",
        )  # fmt: skip
        return cls(vectorizer.fit(corpus))

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"TF-IDF ({len(self.vectorizer.vocabulary_)} words and pairs)"

    def embed(self, texts: Sequence[str]) -> Array:
        """Returns one row per text."""
        return np.asarray(self.vectorizer.transform(texts).toarray(), dtype=np.float64)
