"""Trajectories: keys, arms, steps, their replays; exact sums."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray


def total(values: Iterable[float] | NDArray[np.floating]) -> float:
    """Returns the exactly rounded sum; NaN if a term is NaN or if infinities oppose each other."""
    terms: list[float] = values.tolist() if isinstance(values, np.ndarray) else list(values)
    try:
        return math.fsum(terms)
    except ValueError:
        return math.nan
    except OverflowError:
        return sum(terms)


def totals(values: NDArray[np.float64], starts: NDArray[np.int64]) -> list[float]:
    """Returns the `total` of each piece of a column, all finite: equal bits, in less time.

    Numbers are cut into slices, each so short that its sums need no rounding, whatever their order.

    Reference: Rump, Ogita and Oishi (2008), SIAM Journal on Scientific Computing 31.

    Args:
        values: The pieces, one after another.
        starts: Where they begin, ascending; none is empty.
    """
    longest = int(np.diff(starts, append=values.size).max(initial=0))
    room = math.ceil(math.log2(longest + 2))
    edge = math.ldexp(1.0, math.frexp(float(np.abs(values).max(initial=0.0)))[1] + room)
    sums: list[list[float]] = [[0.0] * starts.size]
    while values.any():
        # All multiples of the last digit of `edge`, and no sum of them reaches `edge`.
        slices = (values + edge) - edge
        sums.append(np.add.reduceat(slices, starts).tolist())
        values = values - slices
        edge = math.ldexp(edge, room - 53)
    return list(map(math.fsum, zip(*sums, strict=True)))


# Charges and allowances are compared without tolerance and summed, so they keep all their
# bits; the others are read to six digits at most.
STEP_TYPES: dict[str, type[np.generic]] = {
    "token": np.int32,
    "allowance": np.float64,
    "charge": np.float64,
    "theta": np.float32,
    "served": np.float32,
    "safe": np.float32,
    "risky": np.float32,
}


# A claimed weight may miss 0 or 1 by rounding; beyond this it is no weight.
WEIGHT_SLACK = 1e-3
LOGGED_FIELDS = ("spend", "budget", "length", "granted", "cumulative", "contested")


class Arm(NamedTuple):
    """One mechanism at one budget: what a verdict is about."""

    mechanism: str
    k: float


class Key(NamedTuple):
    """The name of a trajectory within a run; sorted as a report sorts."""

    prompt: str
    mechanism: str
    k: float
    trajectory: int

    @property
    def arm(self) -> Arm:
        """The mechanism and budget that this trajectory belongs to."""
        return Arm(self.mechanism, self.k)

    def name(self, *, in_full: bool = False) -> str:
        """Returns PROMPT@K#TRAJECTORY, or in full PROMPT@MECHANISM@K#TRAJECTORY.

        Args:
            in_full: True where a run has several mechanisms.
        """
        prompt = f"{self.prompt}@{self.mechanism}" if in_full else self.prompt
        return f"{prompt}@{budget_text(self.k)}#{self.trajectory}"


def budget_text(k: float) -> str:
    """Writes a budget in the fewest characters that are read as the same number."""
    return repr(float(k)).removesuffix(".0")


@dataclass(frozen=True, eq=False)
class Steps:
    """Per-step columns, one entry per token that was written, the stop token included.

    Attributes:
        token: Token id drawn.
        allowance: What the step was allowed, k_t, in nats.
        charge: What the step was charged, a_t, in nats.
        theta: Weight of the risky law; exactly 0 or 1 only if that law was served unchanged,
            NaN for mechanisms without one.
        served: log p_served of the drawn token.
        safe: log p_safe of the drawn token.
        risky: log p_risky of the drawn token.
    """

    token: NDArray[np.int32]
    allowance: NDArray[np.float64]
    charge: NDArray[np.float64]
    theta: NDArray[np.float32]
    served: NDArray[np.float32]
    safe: NDArray[np.float32]
    risky: NDArray[np.float32]

    columns: ClassVar[tuple[str, ...]] = tuple(STEP_TYPES)

    def __post_init__(self) -> None:
        for name, dtype in STEP_TYPES.items():
            column = getattr(self, name)
            if column.dtype != dtype or column.shape != self.token.shape or column.ndim != 1:
                raise ValueError(
                    f"step column {name!r} must be a vector of {np.dtype(dtype)} with "
                    f"{self.token.size} entries, got {column.dtype} of shape {column.shape}."
                )

    def __len__(self) -> int:
        return int(self.token.size)


@dataclass(frozen=True, eq=False)
class Logged:
    """Claims of an imported log beyond the record: kept to be compared, never used.

    Our own runs have none of it, because it follows from the steps. NaN where a log is silent.

    Attributes:
        spend: Total charge of the trajectory, in nats.
        budget: Budget at its end, B, in nats.
        length: Tokens written.
        granted: B_t after each step; empty if the log has none.
        cumulative: Charge summed up to each step; empty if the log has none.
        contested: What k and T grant, where the log states a larger budget and the user did not say
            which one counts; NaN otherwise.
    """

    spend: float = math.nan
    budget: float = math.nan
    length: float = math.nan
    granted: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    cumulative: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    contested: float = math.nan


GEOMETRIC, ARITHMETIC = "geometric", "arithmetic"
FAMILIES = (GEOMETRIC, ARITHMETIC)
"""What theta may be the weight of: the risky law's exponent, or its share in a mean of both."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What a black box shows of the laws that it served, beside the numbers of its steps.

    Attributes:
        laws: Log-law of each step [steps, size], each of mass 1 within 1e-4; None if not shown.
        family: Of `FAMILIES`; empty if it does not say, which is geometric.
    """

    laws: NDArray[np.float32] | None = field(default=None, repr=False)
    family: str = ""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One answer of a mechanism to a prompt, with the numbers of its steps.

    Attributes:
        key: Prompt, mechanism, budget and number.
        debt: Prefix debt of the prompt, in nats; NaN if a log does not say.
        stopped: True if the last token is a stop token, False if the length limit ended it.
        steps: The per-step record. Nothing after a stop exists. Empty for a log that keeps
            only totals.
        logged: What a foreign log claims of it; None for our own.
        shown: What a black box shows of its laws; only until it is recorded, as that is kept in
            files of its own (`nafaudit.store.shown`).
    """

    key: Key
    debt: float
    stopped: bool
    steps: Steps = field(repr=False)
    logged: Logged | None = None
    shown: Shown | None = None

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def spend(self) -> float:
        """Total charge Z, in nats: of the steps, or as logged where there are none."""
        if self.logged is not None and not len(self):
            return self.logged.spend
        return total(self.steps.charge)

    def same_as(self, other: Trajectory) -> bool:
        """Returns True if every bit of the two records is equal."""
        return (
            self.key == other.key
            and (self.debt == other.debt or (math.isnan(self.debt) and math.isnan(other.debt)))
            and self.stopped == other.stopped
            and all(
                getattr(self.steps, name).tobytes() == getattr(other.steps, name).tobytes()
                for name in Steps.columns
            )
            and (self.logged is None) == (other.logged is None)
            and (self.logged is None or _bits(self.logged) == _bits(other.logged))
        )


def _bits(logged: Logged | None) -> list[bytes]:
    return [np.asarray(getattr(logged, name)).tobytes() for name in LOGGED_FIELDS]


def theta_as_recorded(theta: float) -> float:
    """Rounds a weight to float32 such that strictly inside (0, 1) stays strictly inside.

    The regime of a step (forced, active, free) is read off exact zeros and ones.
    """
    one, zero = np.float32(1), np.float32(0)
    rounded = np.float32(theta)
    if theta < 1 and rounded >= one:
        rounded = np.nextafter(one, zero)
    if theta > 0 and rounded <= zero:
        rounded = np.nextafter(zero, one)
    return float(rounded)


@dataclass(frozen=True, eq=False)
class Replayed:
    """One trajectory, recomputed from the models, the tokens and the promise alone.

    Attributes:
        trajectory: The record that a sound decoder would have made of these tokens.
        granted: B_t after each step, from the recomputed debt.
        implied: True charge of each step at the *claimed* weight; NaN where none is claimed.
        shortfall: By how much the token's perturbed score misses the best; 0 if it is the best,
            NaN where the draws are not ours.
        expected: The token that law and noise imply; -1 where the draws are not ours.
        other_debt: The debt counted in the other laws (`DebtRule.other`); None where there are
            no others, as nothing is warped, or none at hand.
        granted_otherwise: B_t after each step, from that debt; None with it.
    """

    trajectory: Trajectory
    granted: NDArray[np.float64]
    implied: NDArray[np.float64]
    shortfall: NDArray[np.float64]
    expected: NDArray[np.int32]
    other_debt: float | None = None
    granted_otherwise: NDArray[np.float64] | None = None
