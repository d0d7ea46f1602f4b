"""Replays many trajectories of a small world at once, one step of each at a time.

`replay.Replayer` works on the steps of one trajectory together, which pays for large
vocabularies. Auditing the auditor replays hundreds of thousands of short trajectories over a few
dozen tokens, where what counts is the number of calls. The parts (shadow rule, shadow account,
debt) are the same; the tests hold one to the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.core.ledger import Account, Banking, Payment, is_baseline
from nafaudit.core.trajectory import STEP_TYPES, Replayed, Steps, Trajectory
from nafaudit.mechanisms.replay import Task, debt_along
from nafaudit.mechanisms.shadow import ShadowAnchored, divergence, shadow_account
from nafaudit.protocols import Mechanism, World

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Again:
    """A second record, with the laws that it rests on [steps, vocabulary]."""

    replayed: Replayed
    law: Tensor
    safe: Tensor
    risky: Tensor


def replay_many(world: World, mechanism: Mechanism, tasks: Sequence[Task]) -> list[Again]:
    """Replays what was written in a small world, for KL-anchored decoding on the banking ledger.

    Args:
        world: The two models.
        mechanism: The promise.
        tasks: What was written; their debts are recomputed here.
    """
    debts: dict[tuple[int, ...], float] = {}
    laws = [_laws(world, mechanism, task, debts) for task in tasks]
    longest = max(len(task.tokens) for task in tasks)
    safe, risky = (torch.zeros(len(tasks), longest, world.size, dtype=torch.float64) for _ in "ab")
    for row, (one, other) in enumerate(laws):
        safe[row, : len(one)], risky[row, : len(other)] = one, other
    owed = [debts[task.prompt] for task in tasks]
    law, numbers = _steps(mechanism, tasks, owed, safe, risky)
    numbers["implied"] = _implied(tasks, safe, risky, numbers["cost"])
    return list(_records(tasks, owed, laws, law, numbers))


def _laws(
    world: World, mechanism: Mechanism, task: Task, debts: dict[tuple[int, ...], float]
) -> tuple[Tensor, Tensor]:
    """The laws of every written token; notes the prompt's debt."""
    along = world.along((*task.prompt, *task.tokens[:-1].tolist()))
    safe, risky = (torch.from_numpy(np.array(law, np.float64)) for law in along)
    at = len(task.prompt) - 1
    if task.prompt not in debts:
        debts[task.prompt] = debt_along(world, mechanism, task.prompt, safe, risky)
    return safe[at:], risky[at:]


def _steps(
    mechanism: Mechanism, tasks: Sequence[Task], owed: list[float], safe: Tensor, risky: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Serves step after step, the rows of each together."""
    lengths = np.array([len(task.tokens) for task in tasks])
    cost = divergence(risky, safe)
    law = torch.zeros_like(safe)
    numbers = {name: torch.zeros_like(cost) for name in ("allowance", "charge", "theta")}
    accounts: list[Account] = [
        shadow_account(Banking() if is_baseline(t.key.k) else mechanism.ledger, t.key.k, debt)
        for t, debt in zip(tasks, owed, strict=True)
    ]
    for step in range(int(lengths.max())):
        rows = np.flatnonzero(lengths > step).tolist()
        at = torch.tensor(rows)
        granted = [accounts[row].allowance() for row in rows]
        allowance = torch.tensor(granted, dtype=torch.float64)
        served = ShadowAnchored().serve_at_cost(
            safe[at, step], risky[at, step], allowance, cost[at, step]
        )
        law[at, step] = served.law
        for name, values in zip(numbers, (allowance, served.charge, served.theta), strict=True):
            numbers[name][at, step] = values
        for row, charge in zip(rows, served.charge.tolist(), strict=True):
            accounts[row].pay(Payment(charge, math.nan, int(tasks[row].tokens[step])))
    return law, numbers | {"cost": cost}


def _records(
    tasks: Sequence[Task],
    owed: list[float],
    laws: Sequence[tuple[Tensor, Tensor]],
    law: Tensor,
    numbers: dict[str, Tensor],
) -> Iterator[Again]:
    for row, (task, debt) in enumerate(zip(tasks, owed, strict=True)):
        n = len(task.tokens)
        safe, risky = laws[row]
        own = {name: values[row, :n] for name, values in numbers.items()}
        served, at = law[row, :n], torch.from_numpy(task.tokens.astype(np.int64)).unsqueeze(-1)
        drawn = [one.gather(-1, at).squeeze(-1) for one in (served, safe, risky)]
        columns: dict[str, Array] = {
            "allowance": own["allowance"].numpy(),
            "charge": own["charge"].numpy(),
            "theta": _as_recorded(own["theta"].numpy()),
            **dict(zip(("served", "safe", "risky"), (d.numpy() for d in drawn), strict=True)),
        }
        steps = Steps(
            token=task.tokens.astype(np.int32),
            **{name: column.astype(STEP_TYPES[name]) for name, column in columns.items()},
        )
        again = Replayed(
            Trajectory(task.key, debt, task.stopped, steps),
            granted=Banking().accrued(task.key.k, debt, steps.token),
            implied=own["implied"].numpy(),
            shortfall=np.full(n, math.nan),
            expected=np.full(n, -1, np.int32),
        )
        yield Again(again, served, safe, risky)


def _implied(tasks: Sequence[Task], safe: Tensor, risky: Tensor, cost: Tensor) -> Tensor:
    """The true charge of the claimed weights; NaN where none is claimed."""
    theta = torch.full_like(cost, math.nan)
    for row, task in enumerate(tasks):
        if task.theta is not None:
            claimed = np.asarray(task.theta, np.float64)
            theta[row, : len(claimed)] = torch.from_numpy(claimed)
    flat = (x.flatten(0, 1) for x in (safe, risky, theta, cost))
    charge = ShadowAnchored().charge_at(*flat).view_as(cost)
    valid = (theta >= 0) & (theta <= 1)  # NaN is not
    return torch.where(valid, charge, math.nan)


def _as_recorded(theta: Array) -> Array:
    """Weights in float32, strictly inside (0, 1) where they are in float64."""
    one, zero = np.float32(1), np.float32(0)
    inside = (theta > 0) & (theta < 1)
    rounded = np.clip(theta.astype(np.float32), np.nextafter(zero, one), np.nextafter(one, zero))
    return np.asarray(np.where(inside, rounded, theta))
