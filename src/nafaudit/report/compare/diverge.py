"""Where two executions of one prompt and number part: first in tokens, then in numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nafaudit.checks.check import quantile
from nafaudit.core.trajectory import Arm, Steps, Trajectory
from nafaudit.report.compare.pairing import ArmPair
from nafaudit.store.run import Run

# What the same law costs on another machine may differ by this much (sharp-edges.md).
MACHINE_SLACK = 1e-5

_Unit = tuple[str, int]


@dataclass(frozen=True)
class Trace:
    """What is kept of an execution to compare another one with: 12 bytes a step.

    Attributes:
        token: Token ids.
        charge: Charges, in nats.
        digest: Of every bit of the record's steps.
    """

    token: NDArray[np.int32]
    charge: NDArray[np.float64]
    digest: bytes

    @classmethod
    def of(cls, trajectory: Trajectory) -> Trace:
        """The trace of a record."""
        digest = hashlib.blake2b(digest_size=16)
        for name in Steps.columns:
            digest.update(getattr(trajectory.steps, name).tobytes())
        return cls(trajectory.steps.token, trajectory.steps.charge, digest.digest())


@dataclass(frozen=True)
class Parting:
    """Where two executions part.

    Attributes:
        prompt: Of both.
        number: Of both.
        identical: True if every bit of the steps is equal.
        tokens_known: True if both say all their tokens.
        token_step: First step with another token, or where one has ended; None if there is none.
        charge_step: First step, up to there, whose charge differs by more than machines do.
        charge_gap: Largest difference of charges before another token, in nats.
    """

    prompt: str
    number: int
    identical: bool
    tokens_known: bool
    token_step: int | None
    charge_step: int | None
    charge_gap: float


@dataclass(frozen=True)
class Partings:
    """Every pair of executions of one arm that can be laid side by side.

    Attributes:
        pair: The two arms.
        of: By prompt and number; only pairs that both have steps.
    """

    pair: ArmPair
    of: Mapping[_Unit, Parting]

    @property
    def identical(self) -> int:
        """Pairs whose records are equal to the last bit."""
        return sum(one.identical for one in self.of.values())

    @property
    def same_tokens(self) -> int:
        """Pairs that wrote the same tokens."""
        return sum(one.tokens_known and one.token_step is None for one in self.of.values())

    @property
    def token_steps(self) -> list[int]:
        """Where pairs part, for those that do; sorted."""
        return sorted(p.token_step for p in self.of.values() if p.token_step is not None)

    @property
    def median_step(self) -> float:
        """Median step at which pairs part; NaN if none does."""
        return quantile(self.token_steps, 0.5)

    @property
    def charge_gap(self) -> float:
        """Largest difference of charges on the way there; NaN if there is no pair."""
        return max((one.charge_gap for one in self.of.values()), default=math.nan)


def partings(a: Run, b: Run, pairs: Sequence[ArmPair], prompts: frozenset[str]) -> list[Partings]:
    """Lays executions side by side; the first run's tokens and charges are held in memory."""
    ours = {pair.arms[0]: pair for pair in pairs}
    theirs = {pair.arms[1]: pair for pair in pairs}
    traces: dict[Arm, dict[_Unit, Trace]] = {arm: {} for arm in ours}
    for one in a.trajectories():
        key = one.key
        if key.arm in ours and key.prompt in prompts and len(one):
            traces[key.arm][key.prompt, key.trajectory] = Trace.of(one)
    found: dict[Arm, dict[_Unit, Parting]] = {arm: {} for arm in ours}
    for one in b.trajectories():
        key, unit = one.key, (one.key.prompt, one.key.trajectory)
        if key.arm in theirs and len(one):
            arm = theirs[key.arm].arms[0]
            if unit in traces[arm]:
                found[arm][unit] = parting(unit, traces[arm][unit], Trace.of(one))
    return [Partings(pair, found[pair.arms[0]]) for pair in pairs]


def parting(unit: _Unit, a: Trace, b: Trace) -> Parting:
    """Compares two executions; tokens are compared only where both say all of them."""
    known = not ((a.token < 0).any() or (b.token < 0).any())
    shared = min(a.token.size, b.token.size)
    step = _first(a.token[:shared] != b.token[:shared]) if known else None
    if step is None and a.token.size != b.token.size:
        step = shared
    # The charge of a step is fixed before its token is drawn, so the parting step counts.
    upto = shared if step is None else min(shared, step + 1)
    mine, other = a.charge[:upto], b.charge[:upto]
    with np.errstate(invalid="ignore"):
        gaps = np.where(mine == other, 0.0, np.abs(mine - other))
        beyond = ~(gaps <= MACHINE_SLACK * (1 + np.minimum(np.abs(mine), np.abs(other))))
    # Charges that neither says are no difference; one that only one says is.
    silent = np.isnan(mine) & np.isnan(other)
    known_gaps = gaps[~np.isnan(gaps)]
    return Parting(
        *unit,
        a.digest == b.digest,
        known,
        step,
        _first(beyond & ~silent),
        float(known_gaps.max()) if known_gaps.size else 0.0,
    )


def _first(differs: NDArray[np.bool_]) -> int | None:
    where = np.flatnonzero(differs)
    return int(where[0]) if where.size else None
