"""What the two rules do where the truth is known: simulated prompts instead of decoded ones.

Two questions. How often does the paper's rule flag a prompt that is nowhere near its budget? And
how often does a rule find the one prompt, planted among others, that spends most? Spends are gamma
distributed. Standard deviations within prompts run from 11 over a median of 30.5 to 73 nats, as in
the paper's released spends; between these three they are interpolated on a log scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.search.allocation import Rule
from nafaudit.search.halving import halving_plan
from nafaudit.stats.moments import ebb_value
from nafaudit.stats.rates import clopper_pearson

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SpendModel:
    """How simulated prompts spend.

    Attributes:
        mean: Mean spend of a prompt, in nats.
        between: Standard deviation of prompt means.
        deviations: Smallest, median and largest standard deviation within a prompt.
        budget: B of every trajectory.
        enforced: True for a decoder that stops spending at its budget.
    """

    mean: float = 190.0
    between: float = 0.0
    deviations: tuple[float, float, float] = (11.0, 30.5, 73.0)
    budget: float = 594.0
    enforced: bool = True

    def prompts(self, chance: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, Array]:
        """Means and standard deviations of prompts, one row per trial."""
        means = self.mean + self.between * chance.standard_normal(shape)
        scale = np.interp(chance.random(shape), [0.0, 0.5, 1.0], np.log(self.deviations))
        return np.maximum(means, 1.0), np.exp(scale)

    def spends(
        self, chance: np.random.Generator, means: Array, deviations: Array, count: int
    ) -> Array:
        """Gamma spends with these moments; trajectories are the last axis."""
        shape = (means / deviations) ** 2
        scale = deviations**2 / means
        spends = chance.gamma(shape[..., None], scale[..., None], (*means.shape, count))
        return np.minimum(spends, self.budget) if self.enforced else spends


def proxy(spends: Array, rule: Rule) -> Array:
    """U_EBB with R_eff over the last axis."""
    reach = np.minimum(rule.high, np.maximum(np.ptp(spends, axis=-1), 1.0))
    variance = spends.var(axis=-1, ddof=1)
    return ebb_value(spends.mean(axis=-1), variance, spends.shape[-1], reach, rule.delta)


def paper_ratios(spends: Array, budget: float, rule: Rule) -> tuple[Array, NDArray[np.int64]]:
    """Final ratio and N of each prompt under Algorithm 1 with a surrogate that says one thing.

    The fast twin of `allocation.survivor_path`, for pools in rows.

    Args:
        spends: Trials x prompts x trajectories; the last axis is the nominal n.
        budget: B of every trajectory.
        rule: Constants.
    """
    trials, pool, n = spends.shape
    early = proxy(spends[..., : rule.floor], rule) / budget
    survives = early <= rule.slack
    # Without survivors all may be topped up; a constant surrogate ranks by the ratio alone.
    able = survives | ~survives.any(axis=1, keepdims=True)
    score = np.where(able, np.minimum(early, 2.0), -np.inf)
    order = np.argsort(-score, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(pool), (trials, pool)).copy(), axis=1)
    topped = able & (rank < rule.topups(pool))
    late = proxy(spends, rule) / budget
    return np.where(topped, late, early), np.where(topped, n, rule.floor)


@dataclass(frozen=True)
class Share:
    """How often something happened, with a 95 % interval (Clopper-Pearson)."""

    hits: int
    trials: int
    trajectories: float

    @property
    def rate(self) -> float:
        """Hits over trials."""
        return self.hits / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends together miss with chance at most 0.05."""
        return clopper_pearson(self.hits, self.trials, 0.025)


@dataclass(frozen=True)
class Benign:
    """How often each rule flags prompts that never come near their budget.

    Attributes:
        paper: Ratio above 1 after Algorithm 1.
        floor20: The same with at least 20 trajectories for everybody.
        sound: A trajectory above its own budget.
    """

    paper: Share
    floor20: Share
    sound: Share


def benign_study(
    seed: int = 0, trials: int = 500, pool: int = 8, n: int = 20, model: SpendModel | None = None
) -> Benign:
    """Simulates pools of benign prompts and counts flags.

    Args:
        seed: Of the simulation.
        trials: Pools.
        pool: Prompts of a pool.
        n: Nominal trajectories.
        model: How prompts spend.
    """
    model, chance = model or SpendModel(), np.random.default_rng([seed, 1])
    rule = Rule(high=model.budget)
    spends = model.spends(chance, *model.prompts(chance, (trials, pool)), n)
    ratios, sizes = paper_ratios(spends, model.budget, rule)
    full = proxy(spends, rule) / model.budget
    over = (spends > model.budget).any(axis=-1)
    count = trials * pool
    return Benign(
        Share(int((ratios > 1).sum()), count, float(sizes.mean())),
        Share(int((full > 1).sum()), count, float(n)),
        Share(int(over.sum()), count, float(n)),
    )


@dataclass(frozen=True)
class Planted:
    """How often each rule names the planted prompt, and at what cost in trajectories."""

    gap: float
    paper: Share
    uniform: Share
    halving: Share


def planted_study(
    gap: float = 20.0,
    seed: int = 0,
    trials: int = 500,
    pool: int = 24,
    trajectories: int = 240,
    model: SpendModel | None = None,
) -> Planted:
    """Plants a prompt that spends `gap` nats more than the next, and looks for it.

    Args:
        gap: In nats.
        seed: Of the simulation.
        trials: Pools.
        pool: Prompts of a pool.
        trajectories: What halving may use per pool; the uniform rule uses 4 per prompt.
        model: How prompts spend.
    """
    if gap <= 0 or pool < 2:
        raise InputError(f"need a gap above 0 and at least 2 prompts, got {gap} and {pool}.")
    model, chance = model or SpendModel(between=20.0), np.random.default_rng([seed, 2])
    means, deviations = model.prompts(chance, (trials, pool))
    best, second = means.argmax(axis=1), np.partition(means, -2, axis=1)[:, -2]
    means[np.arange(trials), best] = second + gap
    plan = halving_plan(pool, trajectories)
    spends = model.spends(chance, means, deviations, max(20, sum(rung.each for rung in plan)))
    ratios, sizes = paper_ratios(spends[..., :20], model.budget, Rule(high=model.budget))
    named = {
        "paper": (ratios.argmax(axis=1), float(sizes.sum(axis=1).mean())),
        "uniform": (spends[..., :4].mean(axis=-1).argmax(axis=1), 4.0 * pool),
        "halving": halved(spends, [(rung.each, rung.keep) for rung in plan]),
    }
    return Planted(
        gap,
        **{who: Share(int((a == best).sum()), trials, cost) for who, (a, cost) in named.items()},
    )


def halved(spends: Array, plan: list[tuple[int, int]]) -> tuple[NDArray[np.int64], float]:
    """The winner of each row of prompts, and the cost; the fast twin of `successive_halving`.

    All prompts of a round have equally many values, so shrinking does not change their order.
    """
    trials = len(spends)
    alive = np.broadcast_to(np.arange(spends.shape[1]), (trials, spends.shape[1]))
    seen = cost = 0
    for each, keep in plan:
        seen, cost = seen + each, cost + each * alive.shape[1]
        means = np.take_along_axis(spends[..., :seen].mean(axis=-1), alive, axis=1)
        order = np.argsort(-means, axis=1, kind="stable")[:, :keep]
        alive = np.take_along_axis(alive, order, axis=1)
    return alive[:, 0], float(cost)
