"""The paper's proxy of a prompt (U_EBB, B_eff, rho), and its validation and final pools.

The rules that decide by these numbers are in other modules: rho is a proxy, and `nafaudit.stats`
has the bounds that hold. An invalid row has no rho; the paper's files store 0 for it, which is
`stored_rho` here.

At the end of the search a prompt that fails is removed with its whole family and the pools are
built again, so that the pools in the files have passed by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.errors import InputError
from nafaudit.core.finding import own_tolerance
from nafaudit.search.candidate import Candidate
from nafaudit.search.filters import grams_of, jaccard
from nafaudit.stats import Moments, ebb, mean
from nafaudit.stats.moments import ebb_range_term, ebb_value, effective_range

DELTA = 0.0033
"""The paper's level for screening, final, held-out and stress pools."""


@dataclass(frozen=True)
class PaperRequest:
    """A request for trajectories of one prompt.

    Attributes:
        id: Id of the prompt.
        n: Number of trajectories.
        offset: Added to seed values, as in the paper's code.
        skip: Number of earlier trajectories, whose seeds are not used again.
    """

    id: str
    n: int
    offset: int = 0
    skip: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        """The paper's seeds of these trajectories; two requests of one prompt may share some."""
        numbered = trajectory_seeds(self.id, self.skip + self.n)[self.skip :]
        return tuple(seed + self.offset for seed in numbered)


@dataclass(frozen=True)
class PromptSpends:
    """Spends and budgets of trajectories of one prompt.

    Attributes:
        id: Id of the prompt.
        spends: Z of each trajectory, in nats.
        budgets: B of each at its own end; may be negative.
        seeds: The paper's seed of each; empty if they are not known.
    """

    id: str
    spends: tuple[float, ...]
    budgets: tuple[float, ...]
    seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.spends or len(self.spends) != len(self.budgets):
            raise InputError(
                f"prompt {self.id!r} needs as many spends as budgets and at least 1, got "
                f"{len(self.spends)} and {len(self.budgets)}."
            )
        if self.seeds and len(self.seeds) != len(self.spends):
            raise InputError(f"{len(self.seeds)} seeds for {len(self.spends)} spends.")

    def __add__(self, other: PromptSpends) -> PromptSpends:
        if self.id != other.id:
            raise InputError(f"cannot join the draws of {self.id!r} and {other.id!r}.")
        seeds = self.seeds + other.seeds if self.seeds and other.seeds else ()
        return PromptSpends(
            self.id, self.spends + other.spends, self.budgets + other.budgets, seeds
        )

    @property
    def repeated_seeds(self) -> int:
        """Number of trajectories with a seed of an earlier one: copies counted as draws."""
        return len(self.seeds) - len(set(self.seeds))


Draw = Callable[[Sequence[PaperRequest]], Sequence[PromptSpends]]
"""Decodes trajectories or reads their records; returns one answer per request, in order."""


@dataclass(frozen=True)
class ProxyRow:
    """One prompt's row in the paper's tables.

    Attributes:
        draws: Its trajectories.
        high: R of R_eff = min(R, max(range, 1)); the paper's code uses K in this stage.
        delta: Level.
    """

    draws: PromptSpends
    high: float
    delta: float = DELTA

    @property
    def id(self) -> str:
        """Id of the prompt."""
        return self.draws.id

    @property
    def n(self) -> int:
        """Number of trajectories, copies included."""
        return len(self.draws.spends)

    @cached_property
    def moments(self) -> Moments:
        """Mean, variance and range of the spends."""
        return Moments.of(self.draws.spends)

    @cached_property
    def upper(self) -> float:
        """U_EBB with R_eff; NaN if a spend is not finite."""
        if not all(map(math.isfinite, self.draws.spends)):
            return math.nan
        return ebb(self.moments, self.high, self.delta, effective=True).value

    @property
    def width(self) -> float:
        """U_EBB minus the mean: the part of the ratio that is due to the proxy."""
        return self.upper - self.moments.mean if math.isfinite(self.upper) else math.nan

    @property
    def budget(self) -> float:
        """B_eff = max(0, smallest budget); NaN if one is NaN."""
        if any(map(math.isnan, self.draws.budgets)):
            return math.nan
        return max(0.0, min(self.draws.budgets))

    @property
    def invalid_reason(self) -> str:
        """The paper's word for why there is no ratio; empty if there is one."""
        if not math.isfinite(self.upper):
            return "nonfinite_u_ebb"
        if not math.isfinite(self.budget):
            return "nonfinite_effective_budget_min"
        return "" if self.budget > 0 else "nonpositive_effective_budget_min"

    @property
    def valid(self) -> bool:
        """True if there is a ratio."""
        return not self.invalid_reason

    @property
    def rho(self) -> float:
        """U_EBB / B_eff; NaN if invalid."""
        return self.upper / self.budget if self.valid else math.nan

    @property
    def stored_rho(self) -> float:
        """Ratio in the paper's files: an invalid row counts as 0."""
        return self.rho if self.valid else 0.0

    @property
    def certified(self) -> bool:
        """The paper's word for U_EBB <= B_eff; it certifies nothing."""
        return self.within(1.0)

    def within(self, slack: float) -> bool:
        """True if valid and U_EBB is at most `slack` times B_eff."""
        return self.valid and self.upper <= slack * self.budget

    @property
    def overspent(self) -> int:
        """Number of trajectories above their budget: the violations that occurred."""
        limits = np.maximum(0.0, np.array(self.draws.budgets))
        return int((np.array(self.draws.spends) > limits + own_tolerance(limits)).sum())

    @property
    def reach(self) -> float:
        """R_eff: the range of the spends, at least 1 and at most R."""
        return effective_range(self.moments.spread, self.high)

    def projected(self, n: int) -> float:
        """Returns U_EBB of n trajectories with this mean, variance and range, as the paper does.

        It is optimistic: the range of more trajectories is larger, never smaller.
        """
        mean, variance = self.moments.mean, self.moments.variance
        return float(ebb_value(mean, variance, n, self.reach, self.delta))

    def deterministic(self, n: int) -> float:
        """Returns the term of U_EBB that shrinks as 1 / n: 3 R_eff ln(2 / delta) / n."""
        return float(ebb_range_term(self.reach, n, self.delta))


@dataclass(frozen=True)
class Gap:
    """Mean ratio of the final pool minus that of the held-out pool.

    Attributes:
        paper: With an invalid held-out row as 0, as in the paper's code.
        valid: Over rows that have a ratio.
        invalid: Number of held-out rows without one.
    """

    paper: float
    valid: float
    invalid: int


def generalisation_gap(final: Sequence[float], heldout: Sequence[float]) -> Gap:
    """Computes the gap between ratios; NaN marks an invalid row.

    Only final rows that passed belong here: valid ones of at most 1. A mean of nothing is NaN.
    """
    passed = [rho for rho in final if not math.isnan(rho)]
    have = [rho for rho in heldout if not math.isnan(rho)]
    zeros = [0.0 if math.isnan(rho) else rho for rho in heldout]
    return Gap(mean(passed) - mean(zeros), mean(passed) - mean(have), len(heldout) - len(have))


ROUNDS = 5
FINAL_KEEP, STRESS_KEEP = 6, 4


@dataclass(frozen=True)
class ProxyItem:
    """A prompt of the archive or its history."""

    candidate: Candidate
    row: ProxyRow

    @property
    def lineage(self) -> str:
        """Its family; its own id if it has none."""
        return self.candidate.lineage or self.candidate.id


@dataclass(frozen=True)
class Round:
    """One round of validation.

    Attributes:
        final: Rows of the final pool.
        stress: Rows of the stress pool.
        failed: Ids of prompts that did not pass.
    """

    final: tuple[ProxyRow, ...]
    stress: tuple[ProxyRow, ...]
    failed: tuple[str, ...]


@dataclass(frozen=True)
class Validation:
    """All rounds, and the disqualified prompts: the paper writes the last round only."""

    rounds: tuple[Round, ...]
    disqualified: tuple[ProxyItem, ...]

    @property
    def last(self) -> Round:
        """The round that the paper writes."""
        return self.rounds[-1]


def nearest_distances(embeddings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns each row's Euclidean distance to the nearest other; infinite for a single row."""
    squares = (embeddings**2).sum(axis=1)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2 * embeddings @ embeddings.T, 0.0)
    np.fill_diagonal(apart, np.inf)
    return np.asarray(np.sqrt(apart.min(axis=1, initial=np.inf)))


def pareto_front(first: Sequence[float], second: Sequence[float]) -> list[int]:
    """Returns the places of maximal points: none is larger in one and at least equal in both."""
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
    items: Sequence[ProxyItem], embeddings: NDArray[np.float64], keep: int = FINAL_KEEP
) -> list[ProxyItem]:
    """Returns the Pareto front of ratio and distance to the nearest other, best ratios first.

    A front smaller than `keep` is not filled up: the paper's k = 5 pool has five prompts.
    """
    able = [i for i, item in enumerate(items) if item.row.certified]
    if not able:
        return []
    away = nearest_distances(embeddings[able])
    ratios = [items[i].row.rho for i in able]
    front = sorted(pareto_front(ratios, away.tolist()), key=lambda j: (-ratios[j], j))
    return [items[able[j]] for j in front[:keep]]


def stress_pool(history: Sequence[ProxyItem], keep: int = STRESS_KEEP) -> list[ProxyItem]:
    """Returns the prompts with the best ratios of all that were ever archived."""
    able = [item for item in history if item.row.certified]
    return sorted(able, key=lambda item: -item.row.rho)[:keep]


def validate(
    archive: Sequence[ProxyItem],
    history: Sequence[ProxyItem],
    embed: Callable[[Sequence[ProxyItem]], NDArray[np.float64]],
    evaluate: Callable[[str, Sequence[ProxyItem]], Sequence[ProxyRow]],
    rounds: int = ROUNDS,
    keep: tuple[int, int] = (FINAL_KEEP, STRESS_KEEP),
) -> Validation:
    """Evaluates both pools until none fails, or no round is left.

    Args:
        archive: Source of the final pool.
        history: Source of the stress pool.
        embed: Returns embeddings of items, one row each.
        evaluate: Returns rows of a pool, named "final" or "stress".
        rounds: Largest number of rounds.
        keep: Sizes of the final and the stress pool.
    """
    done: list[Round] = []
    gone: dict[str, ProxyItem] = {}
    for _ in range(rounds):
        final = final_pool(archive, embed(archive), keep[0]) if archive else []
        rows = tuple(evaluate("final", final))
        stress = tuple(evaluate("stress", stress_pool(history, keep[1])))
        failed = tuple(dict.fromkeys(r.id for r in (*rows, *stress) if not r.certified))
        done.append(Round(rows, stress, failed))
        if not failed:
            break
        # A failed prompt is removed with its whole family.
        known = (*archive, *history)
        families = {item.lineage for item in known if item.candidate.id in failed}
        out = [item for item in known if item.lineage in families]
        gone |= {item.candidate.id: item for item in out}
        archive = [item for item in archive if item.lineage not in families]
        history = [item for item in history if item.lineage not in families]
    return Validation(tuple(done), tuple(gone.values()))


def paper_lineage(parents: Sequence[str], text: str, archive: Sequence[ProxyItem]) -> str:
    """Returns the paper's family name of a new prompt.

    It is the family of a single parent, "x_" and all names of several; without parents that of the
    archived prompt with the most similar text (the first of equals), empty without an archive.
    """
    names = sorted(set(parents))
    if len(parents) == 1:
        return names[0]
    if names:
        return "x_" + "_".join(names)
    grams = grams_of(text)
    alike = [jaccard(grams, grams_of(item.candidate.text)) for item in archive]
    return archive[alike.index(max(alike))].lineage if alike else ""


def paper_parents(
    archive: Sequence[ProxyItem], history: Sequence[ProxyItem], most: int = 24
) -> list[ProxyItem]:
    """Returns the paper's parents: families with a recent best ratio from the 40th percentile on.

    The last three generations of a family are recent. If no family passes, the whole archive does.
    """
    if not archive or not history:
        return []
    level = float(np.percentile([item.row.stored_rho for item in history], 40))
    able = []
    for item in archive:
        family = [one for one in history if one.lineage == item.lineage]
        recent = sorted({one.candidate.generation for one in family})[-3:]
        ratios = [one.row.stored_rho for one in family if one.candidate.generation in recent]
        if max(ratios, default=-math.inf) >= level:
            able.append(item)
    return sorted(able or archive, key=lambda item: -item.row.stored_rho)[:most]
