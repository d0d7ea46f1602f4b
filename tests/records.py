"""Makes trajectories by hand, for tests of what reads them."""

from __future__ import annotations

import numpy as np

from nafaudit.core.trajectory import STEP_TYPES, Key, Steps, Trajectory


def trajectory(
    key: Key,
    charge: list[float],
    *,
    debt: float = 0.0,
    theta: list[float] | None = None,
    allowance: list[float] | None = None,
    stopped: bool = False,
) -> Trajectory:
    """A trajectory whose allowances follow the banking rule unless given."""
    if allowance is None:
        spent = np.cumsum([0.0, *charge[:-1]])
        allowance = [max(0.0, (t + 1) * key.k - spent[t] - debt) for t in range(len(charge))]
    columns = {
        "token": list(range(len(charge))),
        "allowance": allowance,
        "charge": charge,
        "theta": theta or [0.5] * len(charge),
        "served": [-1.0] * len(charge),
        "safe": [-2.0] * len(charge),
        "risky": [-0.5] * len(charge),
    }
    steps = Steps(**{n: np.array(columns[n], STEP_TYPES[n]) for n in columns})
    return Trajectory(key, debt, stopped, steps)


def many(count: int, k: float = 1.0, length: int = 5) -> list[Trajectory]:
    """Sound trajectories of `count` prompts that spend half of what they may."""
    return [
        trajectory(Key(f"p{i}", "anchored", k, 0), [0.5 * k] * length, stopped=bool(i % 2))
        for i in range(count)
    ]
