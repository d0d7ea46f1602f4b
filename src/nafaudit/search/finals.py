"""The end of the paper's search: who is validated, who is thrown out for failing, and the rest.

A prompt that fails is removed with its whole family and the pools are built again, so that what is
written in the end has passed by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nafaudit.search.candidate import Candidate
from nafaudit.search.filters import grams_of, jaccard
from nafaudit.search.measured import Row

ROUNDS = 5
FINAL_KEEP, STRESS_KEEP = 6, 4


@dataclass(frozen=True)
class Item:
    """A prompt of the archive or its history."""

    candidate: Candidate
    row: Row

    @property
    def lineage(self) -> str:
        """Its family; its own id if nobody named one."""
        return self.candidate.lineage or self.candidate.id


@dataclass(frozen=True)
class Round:
    """One round of validation.

    Attributes:
        final: Rows of the final pool.
        stress: Rows of the stress pool.
        failed: Ids of those that did not pass.
    """

    final: tuple[Row, ...]
    stress: tuple[Row, ...]
    failed: tuple[str, ...]


@dataclass(frozen=True)
class Validation:
    """All rounds, and who was thrown out on the way: the paper writes the last round only."""

    rounds: tuple[Round, ...]
    disqualified: tuple[Item, ...]

    @property
    def last(self) -> Round:
        """The round that the paper writes."""
        return self.rounds[-1]


def nearest_distances(embeddings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean distance of each row to the nearest other; infinite for a lone row."""
    squares = (embeddings**2).sum(axis=1)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2 * embeddings @ embeddings.T, 0.0)
    np.fill_diagonal(apart, np.inf)
    return np.asarray(np.sqrt(apart.min(axis=1, initial=np.inf)))


def pareto_front(first: Sequence[float], second: Sequence[float]) -> list[int]:
    """Places that no other beats in one and equals in the other, the more the better."""
    front, best = [], -math.inf
    order = sorted(range(len(first)), key=lambda i: (-first[i], -second[i], i))
    previous: tuple[float, float] | None = None
    for i in order:
        point = (first[i], second[i])
        if second[i] > best or point == previous:
            front.append(i)
            best, previous = second[i], point
    return front


def final_pool(
    items: Sequence[Item], embeddings: NDArray[np.float64], keep: int = FINAL_KEEP
) -> list[Item]:
    """The Pareto front of ratio and distance to the nearest other item, best ratios first.

    A front smaller than `keep` is not filled up: the paper's k = 5 pool has five prompts.
    """
    able = [i for i, item in enumerate(items) if item.row.certified]
    if not able:
        return []
    away = nearest_distances(embeddings[able])
    ratios = [items[i].row.rho for i in able]
    front = sorted(pareto_front(ratios, away.tolist()), key=lambda j: (-ratios[j], j))
    return [items[able[j]] for j in front[:keep]]


def stress_pool(history: Sequence[Item], keep: int = STRESS_KEEP) -> list[Item]:
    """The best ratios of everything that was ever archived."""
    able = [item for item in history if item.row.certified]
    return sorted(able, key=lambda item: -item.row.rho)[:keep]


def families_of(items: Iterable[Item], failed: Iterable[str]) -> set[str]:
    """Lineages of the failed: all of their members are thrown out."""
    names = set(failed)
    return {item.lineage for item in items if item.candidate.id in names}


def validate(
    archive: Sequence[Item],
    history: Sequence[Item],
    embed: Callable[[Sequence[Item]], NDArray[np.float64]],
    evaluate: Callable[[str, Sequence[Item]], Sequence[Row]],
    rounds: int = ROUNDS,
    keep: tuple[int, int] = (FINAL_KEEP, STRESS_KEEP),
) -> Validation:
    """Evaluates both pools until nobody fails, or rounds run out.

    Args:
        archive: Where the final pool comes from.
        history: Where the stress pool comes from.
        embed: Embeddings of items, one row each.
        evaluate: Rows of a pool, named "final" or "stress".
        rounds: At most so many.
        keep: Sizes of the final and the stress pool.
    """
    done: list[Round] = []
    gone: dict[str, Item] = {}
    for _ in range(rounds):
        final = final_pool(archive, embed(archive), keep[0]) if archive else []
        rows = tuple(evaluate("final", final))
        stress = tuple(evaluate("stress", stress_pool(history, keep[1])))
        failed = tuple(dict.fromkeys(r.id for r in (*rows, *stress) if not r.certified))
        done.append(Round(rows, stress, failed))
        if not failed:
            break
        families = families_of((*archive, *history), failed)
        out = [item for item in (*archive, *history) if item.lineage in families]
        gone |= {item.candidate.id: item for item in out}
        archive = [item for item in archive if item.lineage not in families]
        history = [item for item in history if item.lineage not in families]
    return Validation(tuple(done), tuple(gone.values()))


def paper_lineage(parents: Sequence[str], text: str, archive: Sequence[Item]) -> str:
    """The paper's family name of a new prompt.

    Its parent's if there is one, "x_" and all names if there are several; without parents that of
    the archived prompt with the most similar text (the first of equals), empty without an archive.
    """
    names = sorted(set(parents))
    if len(parents) == 1:
        return names[0]
    if names:
        return "x_" + "_".join(names)
    grams = grams_of(text)
    alike = [jaccard(grams, grams_of(item.candidate.text)) for item in archive]
    return archive[alike.index(max(alike))].lineage if alike else ""


def paper_parents(archive: Sequence[Item], history: Sequence[Item], most: int = 24) -> list[Item]:
    """The paper's parent pool: families whose recent best ratio is above the 40th percentile.

    Recent are a family's last three generations. If no family is, the whole archive serves.
    """
    if not archive or not history:
        return []
    level = float(np.percentile([item.row.stored_rho for item in history], 40))
    able = [item for item in archive if _recent_best(item.lineage, history) >= level]
    return sorted(able or archive, key=lambda item: -item.row.stored_rho)[:most]


def _recent_best(lineage: str, history: Sequence[Item]) -> float:
    family = [item for item in history if item.lineage == lineage]
    recent = sorted({item.candidate.generation for item in family})[-3:]
    ratios = [i.row.stored_rho for i in family if i.candidate.generation in recent]
    return max(ratios, default=-math.inf)
