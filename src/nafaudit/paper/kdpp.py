"""The greedy archive rule that the paper calls a k-DPP, and exact draws from a k-DPP.

Under the k-DPP of a kernel L the probability of a set S of k items is proportional to det(L_S).
Sums over sets are kept as logarithms, so that none overflows or vanishes, whatever the scale of L.

Reference: Kulesza and Taskar (2011), "k-DPPs: fixed-size determinantal point processes", ICML.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nafaudit.core.errors import InputError
from nafaudit.search.archive import ARCHIVE_KEEP

Array = NDArray[np.float64]


def paper_archive(
    ratios: Sequence[float], embeddings: NDArray[np.float64], keep: int = ARCHIVE_KEEP
) -> list[int]:
    """Chooses by the rule that the paper calls a k-DPP: half quality, half distance.

    Starts from the largest ratio. Quality is the ratio scaled to [0, 1], distance that to the
    nearest item chosen. The result is sorted by ratio. With at most `keep` items all stay.
    """
    rho = np.asarray(ratios, dtype=np.float64)
    ranked = sorted(range(rho.size), key=lambda i: (-rho[i], i))
    if rho.size <= keep:
        return ranked
    spread = rho.max() - rho.min()
    quality = (rho - rho.min()) / spread if spread > 0 else np.zeros_like(rho)
    taken = [ranked[0]]
    distance = np.linalg.norm(embeddings - embeddings[taken[0]], axis=1)
    while len(taken) < keep:
        score = 0.5 * quality + 0.5 * distance
        score[taken] = -np.inf
        taken.append(int(np.argmax(score)))
        distance = np.minimum(distance, np.linalg.norm(embeddings - embeddings[taken[-1]], axis=1))
    return sorted(taken, key=lambda i: (-rho[i], i))


def log_elementary_symmetric(log_values: Array, k: int) -> Array:
    """Returns logs of elementary symmetric polynomials: [j, i] is e_j of the first i values."""
    table = np.full((k + 1, log_values.size + 1), -np.inf)
    table[0] = 0.0
    for i, log_value in enumerate(log_values, start=1):
        table[1:, i] = np.logaddexp(table[1:, i - 1], log_value + table[:-1, i - 1])
    return table


class KDpp:
    """The k-DPP of a kernel, decomposed once for many draws.

    Raises:
        InputError: The kernel is not square, or has no k independent items.
    """

    def __init__(self, kernel: ArrayLike, k: int) -> None:
        matrix = np.asarray(kernel, dtype=np.float64)
        n = len(matrix)
        if matrix.shape != (n, n) or not 1 <= k <= n:
            raise InputError(f"need a square kernel and 1 <= k <= n, got {matrix.shape}, k = {k}.")
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
        nonzero = values > n * np.finfo(float).eps * max(values[-1], 0.0)
        if nonzero.sum() < k:
            raise InputError(
                f"the kernel has rank {int(nonzero.sum())}, so it has no {k} different items; ask "
                "for fewer, or use a kernel with jitter."
            )
        self.k = k
        self._logs = np.log(values[nonzero])
        self._vectors = vectors[:, nonzero]
        self._table = log_elementary_symmetric(self._logs, k)

    @property
    def log_normaliser(self) -> float:
        """Log of the sum of det(L_S) over all sets of k items."""
        return float(self._table[-1, -1])

    def draw(self, generator: np.random.Generator) -> list[int]:
        """Draws one set, in increasing order."""
        # First the eigenvectors that span the set.
        left, spectrum = self.k, []
        for i in range(self._logs.size, 0, -1):
            if not left:
                break
            log_p = self._logs[i - 1] + self._table[left - 1, i - 1] - self._table[left, i]
            if np.log(generator.random()) < log_p:
                spectrum.append(i - 1)
                left -= 1
        # Then items by the chain rule, each by its residual given the earlier ones.
        basis = self._vectors[:, spectrum]
        residual = (basis**2).sum(axis=1)
        explained = np.zeros((len(basis), basis.shape[1]))
        taken: list[int] = []
        for step in range(basis.shape[1]):
            residual[taken] = 0.0
            cumulative = np.maximum(residual, 0.0).cumsum()
            # A product rounded up to the total would lie behind the last item.
            threshold = min(generator.random() * cumulative[-1], np.nextafter(cumulative[-1], 0.0))
            item = int(np.searchsorted(cumulative, threshold, side="right"))
            along = basis @ basis[item] - explained[:, :step] @ explained[item, :step]
            explained[:, step] = along / np.sqrt(residual[item])
            residual = residual - explained[:, step] ** 2
            taken.append(item)
        return sorted(taken)
