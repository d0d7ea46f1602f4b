"""Bounds: a number with its width, its sample size and the assumptions it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.finding import MIN_TRAJECTORIES
from nafaudit.core.trajectory import total

# Under this many units no bound of a mean is shown as evidence.
MIN_EVIDENCE = MIN_TRAJECTORIES

Rows = Callable[[NDArray[np.float64], float, float], NDArray[np.float64]]
Side = Literal["upper", "lower"]


class Assumption(StrEnum):
    """A condition on a sample that a bound may need."""

    IID = "independent values of one law"
    SAME_MEAN = "one mean, given all values before"
    RANGE = "values in [0, R], R known beforehand"
    NONNEGATIVE = "values at least 0"
    ZERO_OR_ONE = "each value 0 or 1"
    FIXED_N = "n fixed before looking"
    CLUSTERS = "independent prompts"
    NORMAL = "prompt means nearly normal"


@dataclass(frozen=True)
class Bound:
    """A bound and what has to be said beside it.

    Attributes:
        name: Key in `BOUNDS`.
        value: The bound.
        point: The plain estimate.
        n: Independent units behind it: trajectories, or prompts for clustered bounds.
        delta: How often the bound may miss, if its assumptions hold.
        assumes: What it rests on.
        note: What a reader must know; empty if nothing.
        side: Which side of the truth it claims to lie on.
        holds: False for a proxy, or where an assumption is known to be broken.
        about: What is bounded, the mean of values or the rate of events.
    """

    name: str
    value: float
    point: float
    n: int
    delta: float
    assumes: tuple[Assumption, ...]
    note: str = ""
    side: Side = "upper"
    holds: bool = True
    about: Literal["mean", "rate"] = "mean"
    json_order: ClassVar = (
        *("name", "value", "width", "n", "delta", "holds", "evidence", "assumes", "note"),
    )

    @property
    def width(self) -> float:
        """Distance from the estimate to the bound."""
        return self.value - self.point if self.side == "upper" else self.point - self.value

    @property
    def evidence(self) -> bool:
        """True if it may be shown as evidence: it holds, and for a mean n is large enough."""
        return self.holds and (self.about == "rate" or enough(self.n))


def enough(n: int) -> bool:
    """Returns True if n units are enough to show a bound of a mean as evidence."""
    return n >= MIN_EVIDENCE


@dataclass(frozen=True)
class Sample:
    """Values with what is known about how they came about.

    Attributes:
        values: One number per trajectory, in the order they were drawn.
        high: R, an upper end of the values that was known before they were drawn.
        clusters: The prompt of each value; None if every value is a unit of its own.
        peeked: True if n was chosen after looking at values.
    """

    values: NDArray[np.float64]
    high: float = math.inf
    clusters: Sequence[str] | None = None
    peeked: bool = False

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=np.float64)
        object.__setattr__(self, "values", values)
        if values.ndim != 1 or not values.size:
            raise InputError(f"a bound needs a list of at least 1 value, got {values.shape}.")
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise InputError(
                f"value {bad} of the sample is {values[bad]}; a bound needs finite numbers. "
                "Leave out what was not measured, and say so."
            )
        if math.isnan(self.high) or self.high <= 0:
            raise InputError(f"the upper end R must be above 0, got {self.high}.")
        if self.clusters is not None and len(self.clusters) != values.size:
            raise InputError(f"{len(self.clusters)} prompts for {values.size} values.")

    @classmethod
    def of(
        cls,
        values: Iterable[float],
        high: float = math.inf,
        clusters: Iterable[str] | None = None,
        *,
        peeked: bool = False,
    ) -> Sample:
        """Makes a sample of any list of numbers."""
        prompts = None if clusters is None else tuple(clusters)
        return cls(np.array([float(value) for value in values]), high, prompts, peeked)

    @property
    def clustered(self) -> bool:
        """True if some prompt has more than one value."""
        return self.clusters is not None and len(set(self.clusters)) < len(self.clusters)

    def cluster_means(self) -> NDArray[np.float64]:
        """Returns the mean of each prompt's values, prompts in the order of their names."""
        if self.clusters is None:
            raise InputError("a bound on prompts needs to know the prompt of each value.")
        groups: dict[str, list[float]] = {}
        for name, value in zip(self.clusters, self.values.tolist(), strict=True):
            groups.setdefault(name, []).append(value)
        return np.array([total(groups[name]) / len(groups[name]) for name in sorted(groups)])


@dataclass(frozen=True)
class BoundSpec:
    """A bound as data: what it needs, what it says, who proved it.

    Attributes:
        name: Key in `BOUNDS`.
        about: What is bounded, the mean of values or the rate of events.
        side: Which side.
        assumes: What it rests on; FIXED_N is absent if it may be looked at at any time.
        formula: In words and symbols, x the values, l a logarithm.
        reference: Where it is proved.
        rows: The bound of each row of a table of samples, given R and delta.
        least: Smallest n with a value.
        proven: False for a proxy that nothing makes valid.
        ordered: True if the order of the values matters.
        missed: For anytime bounds: (rows, true mean, R, delta) to a table that is True where
            the bound after that many values misses the mean.
    """

    name: str
    about: Literal["mean", "rate"]
    assumes: tuple[Assumption, ...]
    formula: str
    reference: str
    rows: Rows
    side: Side = "upper"
    least: int = 1
    proven: bool = True
    ordered: bool = False
    missed: Callable[[NDArray[np.float64], float, float, float], NDArray[np.bool_]] | None = None

    @property
    def anytime(self) -> bool:
        """True if it holds however often one looks."""
        return Assumption.FIXED_N not in self.assumes

    def check(self, sample: Sample) -> None:
        """Raises `InputError` if the sample breaks an assumption that can be seen."""
        if broken := self._broken(sample):
            raise InputError(f"bound {self.name!r} does not apply: {broken}")

    def _broken(self, sample: Sample) -> str:
        """Returns what the sample breaks and what to do; empty if nothing is seen."""
        if sample.peeked and not self.anytime:
            return "n was chosen after looking; use an anytime bound, such as 'betting'."
        if Assumption.CLUSTERS in self.assumes:
            if sample.clusters is None:
                return "it needs the prompt of each value."
            n = len(set(sample.clusters))
        elif sample.clustered:
            return "values of one prompt are not independent; use 'betting-prompts' or 'cluster-t'."
        else:
            n = sample.values.size
        if n < self.least:
            return f"it needs n of at least {self.least}, got {n}."
        low, top = float(sample.values.min()), float(sample.values.max())
        if Assumption.ZERO_OR_ONE in self.assumes:
            if not np.isin(sample.values, (0.0, 1.0)).all():
                return f"values must be 0 or 1, got {low:g} to {top:g}."
        elif Assumption.RANGE in self.assumes:
            if not math.isfinite(sample.high):
                return "it needs a finite upper end R, known before the values."
            if low < 0 or top > sample.high:
                return f"values must lie in [0, {sample.high:g}], got {low:g} to {top:g}."
        elif Assumption.NONNEGATIVE in self.assumes and low < 0:
            return f"values must be at least 0, got {low:g}."
        return ""

    def __call__(self, sample: Sample, delta: float) -> Bound:
        """Computes the bound of one sample, once its assumptions are checked where they can be."""
        check_level(delta)
        self.check(sample)
        values, note = sample.values, ""
        if Assumption.CLUSTERS in self.assumes:
            note = f"{values.size} values of "
            values = sample.cluster_means()
            note += f"{values.size} prompts"
        if not self.ordered:
            # Sums then do not depend on the order in which records were read.
            values = np.sort(values)
        if Assumption.NORMAL in self.assumes:
            note += "; approximate, rare bursts break it"
        if not self.proven:
            note = "a proxy: nothing makes it valid" + (f"; {note}" if note else "")
        return Bound(
            name=self.name,
            value=float(self.rows(values[None, :], sample.high, delta)[0]),
            point=total(values) / values.size,
            n=values.size,
            delta=delta,
            assumes=self.assumes,
            note=note,
            side=self.side,
            holds=self.proven,
            about=self.about,
        )


def check_level(delta: float) -> None:
    """Raises `InputError` unless delta is a level."""
    if not 0 < delta < 1:
        raise InputError(f"delta must be in (0, 1), got {delta}.")
