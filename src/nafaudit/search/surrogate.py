"""Predicts how much a prompt will spend before a trajectory is paid for, and says how well.

The target is the log of a mean, which is a number with signal in it; the paper's label, "within
budget", is nearly always true. A prediction comes with an interval whose coverage does not rest on
the model (split conformal), and `judge` decides whether the model may steer a search at all.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.search.archive import sklearn

Array = NDArray[np.float64]

# Keeps a prompt that spends nothing on the log scale: this share of the pool's mean is added.
_OFFSET = 0.01


@dataclass(frozen=True)
class Examples:
    """Prompts with what is known of them without decoding, and what they spent.

    Attributes:
        embeddings: One row per prompt.
        scalars: Cheap numbers per prompt: debt, prompt surprisals, their gap, length.
        target: What is predicted, such as the log of mean spend.
        noise: Variance of the target's own error; 0 if it is not known.
    """

    embeddings: Array
    scalars: Array
    target: Array = field(default_factory=lambda: np.zeros(0))
    noise: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        sizes = {len(self.embeddings), len(self.scalars)}
        sizes |= {part.size for part in (self.target, self.noise) if part.size}
        if len(sizes) > 1:
            raise InputError(
                f"examples need one row per prompt in every part, got {sorted(sizes)}."
            )
        parts = (self.embeddings, self.scalars, self.target, self.noise)
        if not all(np.isfinite(part).all() for part in parts):
            raise InputError("examples need finite numbers; leave out prompts without a value.")

    def __len__(self) -> int:
        return len(self.embeddings)

    def at(self, places: NDArray[np.int64]) -> Examples:
        """The examples at these places."""
        noise = self.noise[places] if self.noise.size else self.noise
        target = self.target[places] if self.target.size else self.target
        return Examples(self.embeddings[places], self.scalars[places], target, noise)


def log_mean(groups: Sequence[Sequence[float]]) -> tuple[Array, Array]:
    """Log of each prompt's mean and the variance of that log, by the delta method.

    One hundredth of the pool's mean is added to every mean, so that a prompt which spends nothing
    is low and not infinitely low. A prompt with one value has the pooled variance.
    """
    if not groups or not all(groups):
        raise InputError("every prompt needs at least one value; leave out those without.")
    means = np.array([np.mean(group) for group in groups])
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    offset = _OFFSET * float(means.mean()) or _OFFSET
    squares = [float(np.sum((np.asarray(g) - m) ** 2)) for g, m in zip(groups, means, strict=True)]
    pooled = sum(squares) / max(1.0, float((sizes - 1).sum()))
    own = [s / (n - 1) if n > 1 else pooled for s, n in zip(squares, sizes, strict=True)]
    return np.log(means + offset), np.array(own) / sizes / (means + offset) ** 2


@dataclass(frozen=True)
class Settings:
    """How a surrogate is fitted.

    Attributes:
        model: Bayesian ridge regression, or a Gaussian process that is told the noise.
        components: Principal components of the embeddings.
        coverage: How often an interval should contain the target.
        calibration: Share of the prompts that only calibrate intervals, and at most 100.
    """

    model: Literal["ridge", "gp"] = "ridge"
    components: int = 24
    coverage: float = 0.9
    calibration: float = 0.25


@dataclass(frozen=True)
class Predicted:
    """Predictions: mean, standard deviation, and both ends of the conformal interval."""

    mean: Array
    deviation: Array
    low: Array
    high: Array

    def optimistic(self, boldness: float = 1.0) -> Array:
        """Acquisition: mean plus so many standard deviations."""
        return np.asarray(self.mean + boldness * self.deviation)

    def improvement(self, best: float) -> Array:
        """Acquisition: by how much each is expected to exceed the best so far."""
        from scipy.special import ndtr

        above = self.mean - best
        sd = np.maximum(self.deviation, 1e-12)
        density = np.exp(-0.5 * (above / sd) ** 2) / math.sqrt(2.0 * math.pi)
        return np.asarray(above * ndtr(above / sd) + sd * density)


@dataclass(frozen=True)
class Surrogate:
    """A fitted model; make one with `fit`."""

    features: _Features
    model: Any
    settings: Settings
    radius: float

    def predict(self, examples: Examples) -> Predicted:
        """Predictions for prompts; their targets are not looked at."""
        mean, deviation = _raw(self.model, self.features.of(examples))
        reach = self.radius * deviation
        return Predicted(mean, deviation, mean - reach, mean + reach)


@dataclass(frozen=True)
class _Features:
    """Principal components of embeddings, and scalars, all on one scale."""

    pca: Any
    scaler: Any

    @classmethod
    def fitted(cls, examples: Examples, components: int) -> _Features:
        width = min(components, len(examples) - 1, examples.embeddings.shape[1])
        make = sklearn("decomposition").PCA
        # The full solver has no randomness.
        pca = make(width, svd_solver="full").fit(examples.embeddings) if width > 0 else None
        made = cls(pca, None)._joined(examples)
        return cls(pca, sklearn("preprocessing").StandardScaler().fit(made))

    def _joined(self, examples: Examples) -> Array:
        if self.pca is None:
            return examples.scalars
        return np.hstack([self.pca.transform(examples.embeddings), examples.scalars])

    def of(self, examples: Examples) -> Array:
        return np.asarray(self.scaler.transform(self._joined(examples)))


def _raw(model: Any, features: Array) -> tuple[Array, Array]:
    mean, deviation = model.predict(features, return_std=True)
    return np.asarray(mean), np.maximum(np.asarray(deviation), 1e-9)


def _regression(settings: Settings, features: Array, examples: Examples) -> Any:
    noise = examples.noise if examples.noise.size else np.zeros(len(examples))
    if settings.model == "ridge":
        usual = float(np.median(noise))
        weights = usual / (noise + usual) if usual > 0 else None
        ridge = sklearn("linear_model").BayesianRidge()
        return ridge.fit(features, examples.target, sample_weight=weights)
    kernels = sklearn("gaussian_process.kernels")
    shape = kernels.ConstantKernel(1.0) * kernels.RBF(3.0, (0.3, 100.0))
    shape += kernels.WhiteKernel(0.1, (1e-6, 10.0))
    scale = float(examples.target.std()) or 1.0
    process = sklearn("gaussian_process").GaussianProcessRegressor(
        shape, alpha=1e-8 + noise / scale**2, normalize_y=True, random_state=0
    )
    with warnings.catch_warnings():
        # A parameter at its bound: the noise that it was told already explains all the rest.
        warnings.simplefilter("ignore", sklearn("exceptions").ConvergenceWarning)
        return process.fit(features, examples.target)


def fit(examples: Examples, settings: Settings | None = None, seed: int = 0) -> Surrogate:
    """Fits on a part of the examples and calibrates intervals on the rest.

    Args:
        examples: With targets.
        settings: How.
        seed: Of the split.

    Raises:
        InputError: There are fewer than 12 examples.
    """
    settings = settings or Settings()
    if len(examples) < 12 or examples.target.size != len(examples):
        raise InputError(
            f"a surrogate needs at least 12 prompts with a target, got {len(examples)}."
        )
    order = np.random.default_rng([seed, 3]).permutation(len(examples))
    held = min(100, max(4, round(settings.calibration * len(examples))))
    train, rest = examples.at(order[held:]), examples.at(order[:held])
    features = _Features.fitted(train, settings.components)
    model = _regression(settings, features.of(train), train)
    mean, deviation = _raw(model, features.of(rest))
    radius = conformal_radius(np.abs(rest.target - mean) / deviation, settings.coverage)
    return Surrogate(features, model, settings, radius)


def conformal_radius(errors: Array, coverage: float) -> float:
    """The error that a further one stays below with at least this chance; infinite if too few.

    Assumes exchangeable prompts, and nothing of the model.

    Reference: Lei, G'Sell, Rinaldo, Tibshirani and Wasserman (2018), JASA 113.
    """
    rank = math.ceil((errors.size + 1) * coverage)
    return float(np.sort(errors)[rank - 1]) if rank <= errors.size else math.inf


def cross_predict(
    examples: Examples, settings: Settings | None = None, folds: int = 5, seed: int = 0
) -> Predicted:
    """Predictions of every prompt by a surrogate that never saw it."""
    order = np.random.default_rng([seed, 4]).permutation(len(examples))
    parts = np.zeros((4, len(examples)))
    for fold in range(folds):
        out = order[fold::folds]
        kept = np.setdiff1d(order, out)
        found = fit(examples.at(kept), settings, seed).predict(examples.at(out))
        parts[:, out] = found.mean, found.deviation, found.low, found.high
    return Predicted(*parts)
