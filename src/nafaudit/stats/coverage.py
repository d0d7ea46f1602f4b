"""Coverage: how often a bound misses, alone and as one of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.stats.bound import Assumption, BoundSpec, check_level
from nafaudit.stats.rates import clopper_pearson

Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]

# A sound bound is called unsound with at most this chance.
FALSE_ALARM = 1e-6
_BATCH = 10_000


@dataclass(frozen=True)
class Null:
    """A law with a known mean.

    Attributes:
        name: What it stands for.
        mean: Its mean.
        draw: Samples of a given shape, a row each.
        high: Upper end of its values; infinite if there is none.
        kind: `events` are 0 or 1, `normal` is exactly normal, `values` anything else.
    """

    name: str
    mean: float
    draw: Draw
    high: float = 1.0
    kind: str = "values"


def _two_point(low: float, top: float, chance: float) -> Draw:
    return lambda rng, shape: np.where(rng.random(shape) < chance, top, low)


def _event(rate: float) -> Null:
    return Null(f"events at {rate:g}", rate, _two_point(0.0, 1.0, rate), kind="events")


NULLS: tuple[Null, ...] = (
    Null("uniform", 0.5, lambda rng, shape: rng.random(shape)),
    Null("spends like the paper's", 0.3, lambda rng, shape: rng.beta(18.0, 42.0, shape)),
    Null("rare bursts", 0.2 + 0.03 * 0.8, _two_point(0.2, 1.0, 0.03)),
    Null("two regimes", 0.2 * 0.9, _two_point(0.0, 0.9, 0.2)),
    Null("nearly full", 1 - 0.03 * 0.5, _two_point(1.0, 0.5, 0.03)),
    _event(0.02),
    _event(0.1),
    _event(0.5),
    _event(0.9),
    Null("heavy tail", 1.0, lambda rng, shape: rng.exponential(1.0, shape) ** 2 / 2, np.inf),
    Null("normal", 0.5, lambda rng, shape: rng.normal(0.5, 0.1, shape), np.inf, "normal"),
)


def applies(spec: BoundSpec, null: Null) -> bool:
    """Returns True if the law keeps what the bound assumes; of prompt means for clusters."""
    if Assumption.NORMAL in spec.assumes or null.kind == "normal":
        return Assumption.NORMAL in spec.assumes and null.kind == "normal"
    if spec.about == "rate":
        return null.kind == "events"
    return np.isfinite(null.high) or Assumption.RANGE not in spec.assumes


@dataclass(frozen=True)
class Miss:
    """The number of misses of one bound on one law.

    Attributes:
        bound: Name of the bound.
        null: Name of the law.
        n: Values per sample.
        delta: The miss rate that the bound allows itself.
        samples: How many samples were drawn.
        misses: How many were missed; for anytime bounds, missed after any number of values.
    """

    bound: str
    null: str
    n: int
    delta: float
    samples: int
    misses: int

    @property
    def rate(self) -> float:
        """Share of samples that were missed."""
        return self.misses / self.samples

    @property
    def sound(self) -> bool:
        """False if this number of misses has a chance below `FALSE_ALARM` under delta."""
        return clopper_pearson(self.misses, self.samples, FALSE_ALARM)[0] <= self.delta


def miss_rate(
    spec: BoundSpec, null: Null, n: int, delta: float, *, samples: int = 10_000, seed: int = 0
) -> Miss:
    """Draws samples of a known mean and counts those whose bound is on the wrong side of it.

    A fixed-n bound is looked at once, an anytime bound after every value.
    """
    if not applies(spec, null):
        raise InputError(f"the law {null.name!r} breaks an assumption of bound {spec.name!r}.")
    if n < spec.least or samples < 1:
        raise InputError(f"need n >= {spec.least} and a sample, got n = {n}, {samples} samples.")
    rng = np.random.default_rng(seed)
    missed = 0
    for start in range(0, samples, _BATCH):
        rows = null.draw(rng, (min(_BATCH, samples - start), n))
        if spec.missed is not None:
            missed += int(spec.missed(rows, null.mean, null.high, delta).any(axis=1).sum())
        else:
            values = spec.rows(rows, null.high, delta)
            wrong = values < null.mean if spec.side == "upper" else values > null.mean
            missed += int(wrong.sum())
    return Miss(spec.name, null.name, n, delta, samples, missed)


@dataclass(frozen=True)
class Bonferroni:
    """A level shared by everything that was looked at, also by what was then left out.

    Attributes:
        delta: How often any of the statements may be wrong.
        looked: How many were looked at: classes times budgets times bounds, whatever a choice
            was made among; not what survived the choice.
    """

    delta: float
    looked: int

    def __post_init__(self) -> None:
        check_level(self.delta)
        if self.looked < 1:
            raise InputError(f"at least 1 thing was looked at, got {self.looked}.")

    @property
    def each(self) -> float:
        """Level of each statement."""
        return self.delta / self.looked


def e_bh(evidence: Sequence[float], delta: float, looked: int) -> list[int]:
    """Returns the places of hypotheses that may be rejected, largest e-value first.

    The share of wrong rejections is at most delta in expectation, however the e-values depend on
    one another. Whatever was looked at without evidence has the e-value 0 and need not be given.
    Sharing delta instead asks of each an e-value of `looked` / delta; here r of them need
    `looked` / (r delta) each.

    Reference: Wang and Ramdas (2022), Journal of the Royal Statistical Society B 84.

    Args:
        evidence: E-values: each has mean at most 1 if its hypothesis is true.
        delta: The expected share of wrong ones among the rejected.
        looked: Hypotheses that were looked at, these included.
    """
    check_level(delta)
    if looked < max(1, len(evidence)):
        raise InputError(f"{len(evidence)} e-values of {looked} things that were looked at.")
    if not all(value >= 0 for value in evidence):
        raise InputError("an e-value is at least 0.")
    order = sorted(range(len(evidence)), key=lambda i: (-evidence[i], i))
    enough = [r for r, i in enumerate(order, start=1) if r * delta * evidence[i] >= looked]
    return order[: enough[-1]] if enough else []
