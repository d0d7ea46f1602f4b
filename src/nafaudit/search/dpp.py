"""Sets of prompts that are good and unlike each other: k-DPP draws and the greedy likeliest set.

A k-DPP gives a set S of k items the probability det(L_S) / (sum over all sets of that size). The
greedy set is what an archive keeps; draws are for parents and replicates, where a choice must not
always be the same. Sums run over logarithms, so that the law does not depend on the scale of L.

References:
    Kulesza and Taskar (2011), "k-DPPs: fixed-size determinantal point processes", ICML.
    Chen, Zhang and Zhou (2018), "Fast greedy MAP inference for DPPs", NeurIPS.
"""

from __future__ import annotations

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
    """L with entries w_i S_ij w_j, S the cosine similarity mixed with the identity.

    Args:
        embeddings: One row per item; a row of zeros is like no other.
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


def log_symmetric(log_values: Array, k: int) -> Array:
    """Logs of the elementary symmetric polynomials: [j, i] is e_j of the first i values."""
    table = np.full((k + 1, log_values.size + 1), -np.inf)
    table[0] = 0.0
    for i, log_value in enumerate(log_values, start=1):
        table[1:, i] = np.logaddexp(table[1:, i - 1], log_value + table[:-1, i - 1])
    return table


class KDpp:
    """The k-DPP of a kernel: decomposed once, drawn from often.

    Raises:
        InputError: The kernel is not square, or has no k independent items.
    """

    def __init__(self, likelihood: ArrayLike, k: int) -> None:
        matrix = np.asarray(likelihood, dtype=np.float64)
        n = len(matrix)
        if matrix.shape != (n, n) or not 1 <= k <= n:
            raise InputError(f"need a square kernel and 1 <= k <= n, got {matrix.shape}, k = {k}.")
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
        good = values > n * np.finfo(float).eps * max(values[-1], 0.0)
        if good.sum() < k:
            raise InputError(
                f"the kernel has rank {int(good.sum())}, so it has no {k} different items; ask for "
                "fewer, or use a kernel with jitter."
            )
        self.k = k
        self._logs = np.log(values[good])
        self._vectors = vectors[:, good]
        self._table = log_symmetric(self._logs, k)

    @property
    def log_normaliser(self) -> float:
        """Log of the sum of det(L_S) over all sets of k items."""
        return float(self._table[-1, -1])

    def draw(self, chance: np.random.Generator) -> list[int]:
        """One set, in increasing order."""
        return sorted(self._items(self._vectors[:, self._spectrum(chance)], chance))

    def _spectrum(self, chance: np.random.Generator) -> list[int]:
        """Which eigenvectors span the set."""
        left, taken = self.k, []
        for i in range(self._logs.size, 0, -1):
            if not left:
                break
            log_p = self._logs[i - 1] + self._table[left - 1, i - 1] - self._table[left, i]
            if np.log(chance.random()) < log_p:
                taken.append(i - 1)
                left -= 1
        return taken

    @staticmethod
    def _items(basis: Array, chance: np.random.Generator) -> list[int]:
        """Items by the chain rule: each as likely as what the earlier ones do not explain."""
        residual = (basis**2).sum(axis=1)
        explained = np.zeros((len(basis), basis.shape[1]))
        taken: list[int] = []
        for step in range(basis.shape[1]):
            residual[taken] = 0.0
            law = np.maximum(residual, 0.0).cumsum()
            # Rounding must not reach the end of the range, where no item is.
            mark = min(chance.random() * law[-1], np.nextafter(law[-1], 0.0))
            item = int(np.searchsorted(law, mark, side="right"))
            along = basis @ basis[item] - explained[:, :step] @ explained[item, :step]
            explained[:, step] = along / np.sqrt(residual[item])
            residual = residual - explained[:, step] ** 2
            taken.append(item)
        return taken


def greedy_map(likelihood: ArrayLike, k: int) -> list[int]:
    """Adds the item that raises det(L_S) most, k times; ties go to the first.

    Stops early where nothing is left that the chosen do not explain: of exact copies it takes one.
    Deterministic; within a factor of the likeliest set, and not always that set.
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
