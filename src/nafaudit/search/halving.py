"""Ranks prompts by mean utilisation, shrunk towards the pool, with successive halving.

A ratio of a bound to a budget ranks prompts by the range of a few draws. A mean ranks them by what
they spend, shrinking weighs it by the number of draws, and halving gives most trajectories to the
prompts that are hardest to tell apart. The best prompt still needs a confirmation on fresh draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import total

PRIOR_ICC = 0.215
"""Share of the variance that lies between prompts, in the paper's released spends at k = 3; used
for a pool with too few repeats to estimate it."""


def intraclass(groups: Sequence[Sequence[float]]) -> float:
    """Estimates the share of the variance between groups, in [0, 1]; NaN with too few values.

    This is the one-way random-effects estimator, unequal sizes allowed.

    Reference: Searle, Casella and McCulloch (1992), Variance Components, section 3.6.
    """
    groups = [group for group in groups if group]
    count, n = len(groups), sum(map(len, groups))
    if count < 2 or n <= count:
        return math.nan
    means = [total(group) / len(group) for group in groups]
    centre = total(value for group in groups for value in group) / n
    between = total(len(g) * (m - centre) ** 2 for g, m in zip(groups, means, strict=True))
    within = total((v - m) ** 2 for g, m in zip(groups, means, strict=True) for v in g)
    size = (n - sum(len(group) ** 2 for group in groups) / n) / (count - 1)
    noise = within / (n - count)
    signal = max(0.0, (between / (count - 1) - noise) / size)
    return signal / (signal + noise) if signal + noise > 0 else math.nan


@dataclass(frozen=True)
class Shrunk:
    """Prompt means, shrunk towards the pool's mean.

    Attributes:
        values: w mean + (1 - w) pool, one per prompt.
        means: Plain means; NaN for a prompt without values.
        weights: w = m ICC / (1 + (m - 1) ICC); 0 for a prompt without values.
        pool: Mean of the means, weighted by w.
        icc: Share of the variance between prompts.
        assumed: True if `icc` is `PRIOR_ICC`, as the pool has too few repeats.
    """

    values: tuple[float, ...]
    means: tuple[float, ...]
    weights: tuple[float, ...]
    pool: float
    icc: float
    assumed: bool

    def order(self) -> list[int]:
        """Returns places, best first; equal values by plain mean, then by place."""
        known = [-math.inf if math.isnan(mean) else mean for mean in self.means]
        return sorted(range(len(known)), key=lambda i: (-self.values[i], -known[i], i))


def reliability(count: int, icc: float) -> float:
    """Returns the share of the variance of means of `count` values that is between prompts."""
    return count * icc / (1.0 + (count - 1) * icc) if count else 0.0


def shrink(groups: Sequence[Sequence[float]], icc: float | None = None) -> Shrunk:
    """Computes empirical Bayes means of a pool.

    Args:
        groups: Values of each prompt.
        icc: Known share of variance between prompts; estimated if None.
    """
    if not any(groups):
        raise InputError("nothing to rank: no prompt has a value.")
    found = intraclass(groups) if icc is None else icc
    assumed = math.isnan(found)
    found = PRIOR_ICC if assumed else found
    means = [total(group) / len(group) if group else math.nan for group in groups]
    weights = [reliability(len(group), found) for group in groups]
    heavy = weights if any(weights) else [float(len(group)) for group in groups]
    terms = [w * m for w, m in zip(heavy, means, strict=True) if w]
    pool = total(terms) / total(heavy)
    values = [pool + w * (m - pool) if w else pool for w, m in zip(weights, means, strict=True)]
    return Shrunk(tuple(values), tuple(means), tuple(weights), pool, found, assumed)


@dataclass(frozen=True)
class Rung:
    """One round of halving: `alive` prompts get `each` more trajectories, `keep` stay."""

    alive: int
    each: int
    keep: int


def halving_plan(pool: int, trajectories: int, finalists: int = 1) -> tuple[Rung, ...]:
    """Plans rounds that halve a pool, each with an equal share of the trajectories.

    Raises:
        InputError: There are not enough trajectories for one per prompt and round.
    """
    if not 1 <= finalists <= pool:
        raise InputError(f"finalists must be in [1, {pool}], got {finalists}.")
    sizes = [pool]
    while sizes[-1] > finalists:
        sizes.append(max(finalists, math.ceil(sizes[-1] / 2)))
    rounds = list(itertools.pairwise(sizes)) or [(pool, pool)]
    share = trajectories // len(rounds)
    if share < pool:
        raise InputError(
            f"halving {pool} prompts takes {len(rounds)} rounds and at least "
            f"{pool * len(rounds)} trajectories, got {trajectories}; give more (--draws), or "
            "fewer prompts (--pool, --screened)."
        )
    return tuple(Rung(alive, share // alive, keep) for alive, keep in rounds)


@dataclass(frozen=True)
class Halved:
    """The result of successive halving.

    Attributes:
        ranking: All ids, best first: the finalists, then those dropped last, and so on.
        finalists: The ids that were never dropped.
        values: All values of each id.
        spent: Trajectories used.
    """

    ranking: tuple[str, ...]
    finalists: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]
    spent: int


More = Callable[[Mapping[str, int]], Mapping[str, Sequence[float]]]
"""Returns further values of each id: the given number, or fewer where there is no ratio."""


def successive_halving(ids: Sequence[str], plan: Sequence[Rung], more: More) -> Halved:
    """Draws round by round and keeps the better part; values of all rounds count together."""
    alive = list(ids)
    values: dict[str, tuple[float, ...]] = dict.fromkeys(ids, ())
    left: list[str] = []
    spent = 0
    for rung in plan:
        found = more(dict.fromkeys(alive, rung.each))
        spent += rung.each * len(alive)
        values |= {one: values[one] + tuple(found[one]) for one in alive}
        alive = ranked({one: values[one] for one in alive})
        left = alive[rung.keep :] + left
        alive = alive[: rung.keep]
    return Halved(tuple(alive + left), tuple(alive), values, spent)


def ranked(values: Mapping[str, Sequence[float]]) -> list[str]:
    """Sorts ids by shrunk mean, best first; keeps their order if none has a value."""
    ids = list(values)
    if not any(values.values()):
        return ids
    return [ids[i] for i in shrink([values[one] for one in ids]).order()]
