"""The totals that the paper's schema repeats, as they follow from a record."""

from __future__ import annotations

import math

import numpy as np

from nafaudit.core.ledger import Ledger
from nafaudit.core.trajectory import LOGGED_FIELDS, Logged, Trajectory


def claims_of(trajectory: Trajectory, ledger: Ledger | None) -> Logged:
    """What an export says of a trajectory: its log's own claims, else what its steps imply."""
    if trajectory.logged is not None:
        return trajectory.logged
    key, steps = trajectory.key, trajectory.steps
    granted = np.empty(0)
    if ledger is not None and not math.isnan(trajectory.debt):
        granted = ledger.accrued(key.k, trajectory.debt, steps.token)
    budget = float(granted[-1]) if granted.size else math.nan
    cumulative = np.cumsum(steps.charge)
    return Logged(trajectory.spend, budget, float(len(steps)), granted, cumulative)


def same_claims(one: Logged, other: Logged) -> bool:
    """True if two sets of claims agree; NaN agrees with NaN."""
    return all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
        for name in LOGGED_FIELDS
    )
