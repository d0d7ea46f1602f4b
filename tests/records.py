"""Makes trajectories by hand, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from nafaudit.core.finding import Finding
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import STEP_TYPES, Key, Logged, Steps, Trajectory
from nafaudit.measures import verdicts
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.store.run import Run


def trajectory(
    key: Key,
    charge: list[float],
    *,
    debt: float = 0.0,
    theta: list[float] | None = None,
    allowance: list[float] | None = None,
    stopped: bool = False,
    token: list[int] | None = None,
    served: list[float] | None = None,
    safe: list[float] | None = None,
    logged: Logged | None = None,
) -> Trajectory:
    """A trajectory whose allowances follow the banking rule unless given."""
    if allowance is None:
        spent = np.cumsum([0.0, *charge[:-1]])
        allowance = [max(0.0, (t + 1) * key.k - spent[t] - debt) for t in range(len(charge))]
    columns = {
        "token": token or list(range(len(charge))),
        "allowance": allowance,
        "charge": charge,
        "theta": theta or [0.5] * len(charge),
        "served": served or [-1.0] * len(charge),
        "safe": safe or [-2.0] * len(charge),
        "risky": [-0.5] * len(charge),
    }
    steps = Steps(**{n: np.array(columns[n], STEP_TYPES[n]) for n in columns})
    return Trajectory(key, debt, stopped, steps, logged)


CONTEXT = RunContext(Banking())


def ask(
    check: Callable[[Measures], Finding],
    trajectories: Iterable[Trajectory],
    context: RunContext = CONTEXT,
) -> Finding:
    """What a check says of some trajectories."""
    return check(Measures.of(trajectories, context))


def judge(trajectories: Iterable[Trajectory], context: RunContext) -> tuple[ArmVerdict, ...]:
    """The verdicts on some trajectories."""
    return verdicts.judge(Measures.of(trajectories, context))


def judge_run(run: Run) -> tuple[ArmVerdict, ...]:
    """The verdicts on a run directory."""
    return AuditResult.of(run).arms


def many(count: int, k: float = 1.0, length: int = 5) -> list[Trajectory]:
    """Sound trajectories of `count` prompts that spend half of what they may."""
    return [
        trajectory(Key(f"p{i}", "anchored", k, 0), [0.5 * k] * length, stopped=bool(i % 2))
        for i in range(count)
    ]
