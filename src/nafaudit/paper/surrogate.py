"""The paper's surrogate, which saturates because it is trained on archived prompts only.

An archived prompt is certified, so that its label "within budget" is always true, and a classifier
of one class cannot discriminate. Two heads predict the ratio from embedding and first tokens, two
from TF-IDF; a fusion network predicts the margin, and an ensemble of five the label. It is fitted
anew in each generation, on the archive's history (`Guesser`).

The paper does not say how replay rows are chosen. Here they are a quarter each of violators, of
rows nearest to ratio 1, of the latest and of the others. They are joined to the training rows
without repetition, so that they only move validation rows into training, as in the paper's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from nafaudit.core.errors import InputError
from nafaudit.models.pair import PromptTokenizer
from nafaudit.paper.embedding import Embedder
from nafaudit.paper.evaluator import UNREADY, Prediction
from nafaudit.paper.heads import (
    TOKENS,
    Task,
    TokenHead,
    Training,
    answers,
    embedding_head,
    fusion_head,
    trained,
)
from nafaudit.paper.proxy import ProxyItem, ProxyRow
from nafaudit.search.archive import Tfidf, sklearn

Array = NDArray[np.float64]
Places = NDArray[np.int64]

READY = 24
"""Smallest number of rows for a fit."""
TFIDF_WIDTH, FUSED, LONGEST = 3000, 256, 250
ENSEMBLE = (101, 103, 107, 109, 113)
_EMBEDDING_SEED, _TOKEN_SEED, _MARGIN_SEED = 11, 17, 23


@dataclass(frozen=True)
class Inputs:
    """Inputs of the surrogate.

    Attributes:
        embeddings: One row per prompt.
        tokens: Token ids of each prompt; the first 64 are read.
        tfidf: One row per prompt, at most 3000 wide.
        debts: delta of each prompt; the paper uses 0 in predictions.
    """

    embeddings: Array
    tokens: Sequence[Sequence[int]]
    tfidf: Array
    debts: Array

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def ids(self) -> NDArray[np.float32]:
        """First tokens, padded with 0 on the right."""
        table = np.zeros((len(self), TOKENS), dtype=np.float32)
        for row, tokens in zip(table, self.tokens, strict=True):
            row[: min(TOKENS, len(tokens))] = tokens[:TOKENS]
        return table

    def meta(self, *, debt: bool) -> Array:
        """Returns length over 250, at most 1, and the debt, or 0 in its place."""
        lengths = np.minimum(np.array([len(t) for t in self.tokens]) / LONGEST, 1.0)
        return np.column_stack([lengths, self.debts if debt else np.zeros(len(self))])

    @property
    def padded(self) -> Array:
        """TF-IDF, padded to its full width."""
        return _width(self.tfidf, TFIDF_WIDTH)


def _width(table: Array, width: int) -> Array:
    cut = table[:, :width]
    return np.pad(cut, ((0, 0), (0, width - cut.shape[1])))


@dataclass(frozen=True)
class Options:
    """The paper's settings.

    Attributes:
        training: Training of every network.
        replay: Share of rows that are replayed.
        violator: Weight of a violator's row.
        held: Share of rows for validation.
        vocabulary: Number of token ids.
        seed: Added to the seeds of all networks.
    """

    training: Training = field(default_factory=Training)
    replay: float = 0.4
    violator: float = 4.0
    held: float = 0.15
    vocabulary: int = 128_256
    seed: int = 0


@dataclass(frozen=True)
class Labels:
    """Targets of the paper's training."""

    rho: Array
    safe: NDArray[np.bool_]
    margin: Array

    @classmethod
    def of(cls, rows: Sequence[ProxyRow], budget: float) -> Labels:
        """Computes the targets of evaluated rows.

        Args:
            rows: Each with a ratio.
            budget: K; the label compares with it, not with B_eff.
        """
        if not all(row.valid for row in rows):
            raise InputError("the paper's surrogate is trained on rows with a ratio only.")
        upper = np.array([row.upper for row in rows])
        effective = np.array([row.budget for row in rows])
        return cls(upper / effective, upper <= budget, (effective - upper) / budget)


@dataclass(frozen=True)
class Diagnostics:
    """Numbers of a fit in the paper's generation log; the last three are ours.

    Attributes:
        held_rows: Rows that the fit never saw: validation rows that replay did not move into
            training, and evaluated prompts that were not archived.
        held_unsafe: How many of these are above K.
        auc: AUC of P(safe) on these, predicted as the search does; NaN if they are of one class.
    """

    ready: bool
    rows: int
    train_rows: int = 0
    val_rows: int = 0
    replay_rows: int = 0
    safe_rate: float = float("nan")
    unsafe_rate: float = float("nan")
    feature_dim: int = 0
    ensemble_size: int = 0
    held_rows: int = 0
    held_unsafe: int = 0
    auc: float = float("nan")


def split(safe: NDArray[np.bool_], share: float) -> tuple[Places, Places]:
    """Splits rows into training and validation; stratified if both classes have two rows."""
    counts = np.bincount(safe.astype(int), minlength=2)
    held = max(1, round(share * safe.size))
    stratify = safe if counts.min() >= 2 and held >= 2 else None
    cut = sklearn("model_selection").train_test_split
    train, validation = cut(np.arange(safe.size), test_size=held, random_state=0, stratify=stratify)
    return np.sort(train), np.sort(validation)


def replayed(labels: Labels, share: float) -> Places:
    """Chooses the replayed rows: a quarter of each kind, then the rest in this order."""
    n = labels.rho.size
    count = int(share * n)
    kinds = [
        np.flatnonzero(~labels.safe),
        np.argsort(np.abs(labels.rho - 1.0), kind="stable"),
        np.arange(n)[::-1],
        np.flatnonzero(labels.safe),
    ]
    quarter = -(-count // 4)
    first = [int(i) for kind in kinds for i in kind[:quarter]]
    rest = [int(i) for kind in kinds for i in kind[quarter:]]
    return np.array(sorted(list(dict.fromkeys(first + rest))[:count]), dtype=np.int64)


@dataclass(frozen=True)
class PaperSurrogate:
    """The paper's surrogate; make one with `fit_paper`.

    `held` are the places of rows that no training saw.
    """

    diagnostics: Diagnostics
    parts: _Parts | None = None
    held: tuple[int, ...] = ()

    def predict(self, inputs: Inputs, *, debt: bool = False) -> list[Prediction]:
        """Predicts for some prompts.

        Args:
            inputs: The prompts.
            debt: True uses their debts; the paper uses 0, which does not occur in training.
        """
        if self.parts is None:
            return [UNREADY] * len(inputs)
        fused = self.parts.fused(inputs, debt=debt)
        logits = np.stack([answers(one, fused) for one in self.parts.classifiers])
        chances = 1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0)))
        margins = self.parts.margin.undo(answers(self.parts.margin.network, fused))
        safe, spread = chances.mean(axis=0).tolist(), chances.std(axis=0).tolist()
        return [Prediction(*row) for row in zip(safe, spread, margins.tolist(), strict=True)]


@dataclass(frozen=True)
class _Scaled:
    """A network on a standardised target."""

    network: nn.Module
    centre: float
    scale: float

    def undo(self, said: Array) -> Array:
        return said * self.scale + self.centre


@dataclass(frozen=True)
class _Parts:
    """Fitted heads; margin and classifiers need the others."""

    embedding: _Scaled
    token: _Scaled
    ridge: Any
    logistic: Any
    constant: float
    margin: Any = None
    classifiers: tuple[nn.Module, ...] = ()

    def fused(self, inputs: Inputs, *, debt: bool) -> NDArray[np.float32]:
        """Joins three ratios, a chance, length, debt and first columns of both tables: 518."""
        points, words = inputs.embeddings.astype(np.float32), inputs.padded
        chance = np.full(len(inputs), self.constant)
        if self.logistic is not None:
            chance = self.logistic.predict_proba(words)[:, 1]
        said = np.column_stack([
            np.expm1(self.embedding.undo(answers(self.embedding.network, points))),
            np.expm1(self.token.undo(answers(self.token.network, inputs.ids))),
            self.ridge.predict(words), chance, inputs.meta(debt=debt),
            _width(inputs.embeddings, FUSED), _width(words, FUSED),
        ])  # fmt: skip
        return said.astype(np.float32)


def fit_paper(inputs: Inputs, labels: Labels, options: Options | None = None) -> PaperSurrogate:
    """Fits all heads on archived prompts; with fewer than 24 it is not ready.

    Args:
        inputs: The prompts, debts included.
        labels: Targets.
        options: Settings.
    """
    options, n = options or Options(), len(inputs)
    if n < READY:
        return PaperSurrogate(Diagnostics(ready=False, rows=n))
    train, validation = split(labels.safe, options.held)
    again = replayed(labels, options.replay)
    rows = (np.union1d(train, again), validation)
    parts = _heads(inputs, labels, rows, options)
    fused = parts.fused(inputs, debt=True)
    margin = _regressor(
        partial(fusion_head, fused.shape[1]), fused, labels.margin, _ratio_weights(labels, options),
        rows, options, _MARGIN_SEED,
    )  # fmt: skip
    classifiers = [_classifier(fused, labels, rows, options, seed) for seed in ENSEMBLE]
    parts = _Parts(
        parts.embedding, parts.token, parts.ridge, parts.logistic, parts.constant, margin,
        tuple(classifiers),
    )  # fmt: skip
    rate = float(labels.safe.mean())
    said = Diagnostics(
        True, n, len(rows[0]), len(validation), len(again), rate, 1.0 - rate, fused.shape[1],
        len(ENSEMBLE),
    )  # fmt: skip
    unseen = np.setdiff1d(validation, again)
    return PaperSurrogate(said, parts, tuple(map(int, unseen)))


def _ratio_weights(labels: Labels, options: Options) -> Array:
    near = 1.0 / (0.25 + np.abs(labels.rho - 1.0))
    return np.asarray(near / near.mean() * np.where(labels.safe, 1.0, options.violator))


def _heads(inputs: Inputs, labels: Labels, rows: tuple[Places, Places], options: Options) -> _Parts:
    weights, target = _ratio_weights(labels, options), np.log1p(labels.rho)
    points = inputs.embeddings.astype(np.float32)
    first = _regressor(
        partial(embedding_head, points.shape[1]), points, target, weights, rows, options,
        _EMBEDDING_SEED,
    )  # fmt: skip
    second = _regressor(
        partial(TokenHead, options.vocabulary), inputs.ids, target, weights, rows, options,
        _TOKEN_SEED,
    )  # fmt: skip
    words, linear = inputs.padded[rows[0]], sklearn("linear_model")
    ridge = linear.Ridge(alpha=1.0).fit(words, labels.rho[rows[0]])
    logistic = None
    if np.unique(labels.safe[rows[0]]).size == 2:
        logistic = linear.LogisticRegression(max_iter=1000).fit(words, labels.safe[rows[0]])
    constant = float(np.clip(labels.safe.mean(), 1e-6, 1.0 - 1e-6))
    return _Parts(first, second, ridge, logistic, constant)


def _regressor(
    make: Any, inputs: NDArray[np.float32], target: Array, weights: Array,
    rows: tuple[Places, Places], options: Options, seed: int,
) -> _Scaled:  # fmt: skip
    centre, scale = float(target[rows[0]].mean()), float(target[rows[0]].std()) or 1.0
    task = Task(inputs, (target - centre) / scale, weights, *rows)
    return _Scaled(trained(make, task, options.training, seed + options.seed), centre, scale)


def _classifier(
    fused: NDArray[np.float32], labels: Labels, rows: tuple[Places, Places], options: Options,
    seed: int,
) -> nn.Module:  # fmt: skip
    """Trains one member, on rows drawn with repetition."""
    seed += options.seed
    drawn = np.random.default_rng(seed).choice(rows[0], len(rows[0]))
    safe = labels.safe.astype(np.float64)
    counts = np.maximum(np.array([(~labels.safe).sum(), labels.safe.sum()]), 1)
    weights = safe.size / (2.0 * counts[labels.safe.astype(int)])
    weights = weights * np.where(labels.safe, 1.0, options.violator)
    positive = max(1.0, float((~labels.safe).sum() / counts[1]))
    task = Task(fused, safe, weights, drawn, rows[1], "logit", positive)
    return trained(partial(fusion_head, fused.shape[1]), task, options.training, seed)


LEAST_TEXTS = 2
"""Smallest number of texts that have a word, for it to be a feature."""


class Guesser:
    """Predictions of the surrogate and embeddings of texts, which are kept.

    Args:
        tokenizer: Splits prompts.
        embedder: A Sentence-Transformers checkpoint, or what replaces it.
        vocabulary: Number of token ids.
        total: K of the label "within budget".
        epochs: Largest number of epochs of every network.
        seed: Search seed; added to the seeds of all networks, 0 as the paper's.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        embedder: Embedder,
        vocabulary: int,
        total: float,
        epochs: int,
        seed: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._embedder = embedder
        training = Training(epochs=epochs)
        self._options = Options(training=training, vocabulary=vocabulary, seed=seed)
        self._total = total
        self._points: dict[str, Array] = {}
        self._features: Callable[[Sequence[str]], Array] = _no_features
        self._surrogate = PaperSurrogate(Diagnostics(ready=False, rows=0))
        self.labels: tuple[bool, ...] = ()

    @property
    def name(self) -> str:
        """Name of the embedding."""
        return self._embedder.name

    @property
    def diagnostics(self) -> Diagnostics:
        """Of the last fit."""
        return self._surrogate.diagnostics

    def fit(
        self,
        history: Sequence[ProxyItem],
        debts: Mapping[str, float],
        others: Sequence[ProxyItem] = (),
    ) -> None:
        """Trains all heads on archived prompts, if there are enough of them, and judges the fit.

        Args:
            history: Archived prompts.
            debts: Their debts, by id.
            others: Evaluated prompts that were not archived, to judge it by.
        """
        if not history:
            return
        texts = [item.candidate.text for item in history]
        self._features = _features_of(texts)
        labels = Labels.of([item.row for item in history], self._total)
        self.labels = tuple(map(bool, labels.safe))
        known = np.array([debts[item.candidate.id] for item in history])
        fitted = fit_paper(self._inputs(texts, known), labels, self._options)
        rest = [item for item in others if item.row.valid]
        unseen = [*(history[i] for i in fitted.held), *rest]
        if fitted.diagnostics.ready and unseen:
            safe = Labels.of([item.row for item in unseen], self._total).safe
            self._surrogate = fitted
            said = self.predict([item.candidate.text for item in unseen]) or []
            auc = float("nan")
            if 0 < safe.sum() < safe.size:
                score = sklearn("metrics").roc_auc_score
                auc = float(score(safe, [one.finite.safe for one in said]))
            unsafe = int((~safe).sum())
            judged = replace(fitted.diagnostics, held_rows=safe.size, held_unsafe=unsafe, auc=auc)
            fitted = replace(fitted, diagnostics=judged)
        self._surrogate = fitted

    def predict(self, texts: Sequence[str]) -> list[Prediction] | None:
        """Predicts for texts, with a debt of 0 as in the paper; None if it is not ready."""
        if not self.diagnostics.ready:
            return None
        return self._surrogate.predict(self._inputs(texts, np.zeros(len(texts)))) if texts else []

    def points(self, texts: Sequence[str]) -> Array:
        """Returns one embedding per text."""
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
    """Returns TF-IDF of words and pairs in two texts or more; no features if there are none."""
    seen: set[str] = set()
    for text in texts:
        words = set(text.lower().split())
        if seen & words:
            return Tfidf.of(texts, TFIDF_WIDTH, LEAST_TEXTS).embed
        seen |= words
    return _no_features
