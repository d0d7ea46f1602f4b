"""Many trajectories measured at once have the rows that each has alone, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.ledger import Banking, FixedBudget, currency_of
from nafaudit.core.trajectory import STEP_TYPES, Key, Logged, Steps, Trajectory, theta_as_recorded
from nafaudit.measures.batch import _PartColumns, measure_batch
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import measure
from nafaudit.store.parts import Batch
from nafaudit.store.run import RecordPlace, Run
from tests.records import trajectory

NAN, INF = math.nan, math.inf
LIMIT, STOP = 45, 7
PIECES = [f"w{i} ".encode() for i in range(STOP)]
OWN = RunContext(
    Banking(),
    max_new_tokens=LIMIT,
    stops=frozenset({STOP}),
    references={"p0": "w1 w2 w3 w4 w5 w6 w0 w1"},
    pieces=PIECES,
    labels={"p0": "story"},
)
CONTEXTS = {
    "own": OWN,
    "no stops, no limit": RunContext(Banking()),
    "other currency": replace(OWN, currency=currency_of("renyi:2")),
    "signed": replace(OWN, currency=currency_of("realised")),
    "no promise": replace(OWN, currency=currency_of("none")),
    "whole outputs": replace(OWN, ledger=FixedBudget(LIMIT)),
    "unknown ledger": replace(OWN, ledger=None),
    "foreign": replace(OWN, foreign=True),
}


def execute(
    seed: int, k: float, length: int, debt: float = 0.0, *, weights: bool = True
) -> Trajectory:
    """One sound execution of the banking rule on random laws."""
    rng = np.random.default_rng(seed)
    full = rng.lognormal(-0.9, 1.5, length)
    risky = -rng.gamma(0.6, 2.0, length)
    safe = risky - full
    allowance, charge, theta = np.full(length, INF), np.zeros(length), np.ones(length)
    spent = 0.0
    for t in range(length):
        if k < INF:
            allowance[t] = max(0.0, (t + 1) * k - spent - debt)
        charge[t] = min(full[t], allowance[t])
        theta[t] = theta_as_recorded(charge[t] / full[t])
        spent += charge[t]
    token = rng.integers(0, STOP, length)
    if stopped := length < LIMIT:
        token[-1] = STOP
    served = np.where(theta == 1, risky, np.where(theta == 0, safe, safe + theta * full))
    columns: dict[str, Any] = {
        "token": token,
        "allowance": allowance,
        "charge": charge,
        "theta": theta if weights else np.full(length, NAN),
        "served": served,
        "safe": safe,
        "risky": risky,
    }
    steps = Steps(**{name: columns[name].astype(STEP_TYPES[name]) for name in columns})
    return Trajectory(Key(f"p{seed % 3}", "anchored", k, seed), debt, stopped, steps)


Spoil = Callable[[Trajectory, int], Trajectory]


def at(name: str, value: float) -> Spoil:
    """Writes a value into one step."""

    def spoil(one: Trajectory, step: int) -> Trajectory:
        column = getattr(one.steps, name).copy()
        column[step % max(1, len(one)) : step % max(1, len(one)) + 1] = value
        return replace(one, steps=replace(one.steps, **{name: column}))

    return spoil


def by_a_hair(one: Trajectory, step: int) -> Trajectory:
    """Spends more than it may by what rounding explains, or by a little more."""
    return at("charge", float(one.steps.allowance[step % len(one)] + 10.0 ** -(step % 9)))(
        one, step
    )


def padded(one: Trajectory, step: int) -> Trajectory:
    """Ends with steps of one token that cost nothing."""
    tail = step % len(one)
    ends = {"token": 3, "allowance": 0.0, "charge": 0.0, "theta": 0.0, "served": 0.0, "safe": 0.0}
    columns = {name: getattr(one.steps, name).copy() for name in ends}
    for name, value in ends.items():
        columns[name][tail:] = value
    return replace(one, steps=replace(one.steps, **columns))


def empty(one: Trajectory, step: int) -> Trajectory:
    """Has totals only."""
    steps = Steps(**{name: np.empty(0, dtype) for name, dtype in STEP_TYPES.items()})
    return replace(one, steps=steps, logged=Logged(spend=step / 7))


def stopped_early(one: Trajectory, step: int) -> Trajectory:
    """Has its stop token somewhere before the end, and none there."""
    moved = at("token", STOP)(at("token", 0.0)(one, len(one) - 1), step % max(1, len(one) - 1))
    return replace(moved, stopped=True)


def cut(one: Trajectory, step: int) -> Trajectory:
    """Ends without a stop token and before the limit."""
    return replace(at("token", 0.0)(one, len(one) - 1), stopped=False)


SPOILS: dict[str, Spoil] = {
    "sound": lambda one, step: one,
    "over": by_a_hair,
    "padded": padded,
    "empty": empty,
    "stopped early": stopped_early,
    "cut": cut,
    "claimed": lambda one, step: replace(one, logged=Logged(spend=step / 7)),
    "debt unknown": lambda one, step: replace(one, debt=NAN),
    "debt infinite": lambda one, step: replace(one, debt=INF),
    "debt wrong": lambda one, step: replace(one, debt=one.debt + step / 7),
    "stopped wrong": lambda one, step: replace(one, stopped=not one.stopped),
    "budget unknown": lambda one, step: replace(one, key=one.key._replace(k=NAN)),
    "budget wrong": lambda one, step: replace(one, key=one.key._replace(k=0.7)),
    **{
        f"{name} {value}": at(name, value)
        for name in STEP_TYPES
        if name != "token"
        for value in (NAN, INF, -INF, -0.5, 0.0, 1e-5, 1.0, 1e30, -1e30)
    },
    "charge 1e200": at("charge", 1e200),
    "token unknown": at("token", -1),
    "token stop": at("token", STOP),
}


@st.composite
def records(draw: st.DrawFn) -> Trajectory:
    """A sound execution, or one with something wrong."""
    one = execute(
        draw(st.integers(0, 2**20)),
        draw(st.sampled_from([0.0, 0.3, 1.0, 5.0, INF])),
        draw(st.integers(1, LIMIT + 2)),
        draw(st.sampled_from([0.0, 0.25, 4.0, -0.5])),
        weights=draw(st.booleans()),
    )
    spoil = draw(st.just("sound") | st.sampled_from(sorted(SPOILS)))
    return SPOILS[spoil](one, draw(st.integers(0, 2 * LIMIT)))


def same(given: list[Trajectory], context: RunContext) -> None:
    """Asserts that rows are equal: repr shows every bit, NaN as itself, and types."""
    places = [RecordPlace("part", row) for row in range(len(given))]
    found = measure_batch(Batch.of(given), context, places)
    for row, one, place in zip(found, given, places, strict=True):
        assert repr(row) == repr(measure(one, context, place))


@given(st.lists(records(), max_size=6), st.sampled_from(sorted(CONTEXTS)))
def test_measured_together_each_has_the_row_that_it_has_alone(
    given: list[Trajectory], context: str
) -> None:
    same(given, CONTEXTS[context])


@pytest.mark.parametrize("spoil", sorted(SPOILS))
def test_whatever_is_wrong_with_one_is_measured_and_spoils_no_other(spoil: str) -> None:
    for step in (0, 4, 17, 29):
        for k in (0.0, 0.3, 1.0, INF):
            sound = [execute(seed, k, length) for seed, length in ((1, 30), (2, 3), (3, LIMIT))]
            wrong = [SPOILS[spoil](execute(4, k, length, 0.25), step) for length in (30, LIMIT)]
            same([sound[0], *wrong, *sound[1:]], OWN)


def test_padding_of_a_budget_smaller_than_the_tolerance_is_seen() -> None:
    # Only then may more be spent than all steps are granted, so that an allowance stays 0.
    charge = [1e-7] + [0.0] * 9
    key = Key("p0", "anchored", 1e-9, 0)
    one = trajectory(key, charge, theta=[0.0] * 10, token=[3] * 10, served=[-1e-9] * 10)
    one = replace(one, steps=replace(one.steps, safe=one.steps.served))
    context = RunContext(Banking())
    assert measure(one, context).pad_steps == 9
    same([one], context)


def test_sound_executions_are_measured_without_the_slow_definition() -> None:
    given = [
        execute(seed, k, length, debt, weights=weights)
        for seed, length in enumerate((1, 2, 19, 20, 21, 44, LIMIT))
        for k in (0.0, 0.3, 1.0, 5.0, INF)
        for debt in (0.0, 4.0)
        for weights in (True, False)
    ]
    assert _PartColumns(Batch.of(given)).regular(OWN).all()
    same(given, OWN)


@pytest.mark.parametrize("name", ["c049abe/own", "89722fc/own", "89722fc/attack/single"])
def test_records_of_both_formats_are_regular(name: str) -> None:
    run = Run(Path(__file__).parents[1] / "runs" / name)
    context = RunContext.of(run)
    for _, batch in run.batches():
        assert _PartColumns(batch).regular(context).all()
        same(list(batch), context)


def test_a_batch_gives_back_its_trajectories_and_any_of_them() -> None:
    given = [execute(1, 1.0, 30), empty(execute(2, 1.0, 5), 3), execute(3, INF, 2)]
    batch = Batch.of(given)
    assert all(a.same_as(b) for a, b in zip(batch, given, strict=True))
    some = batch.take(np.array([1, 2]))
    assert all(a.same_as(b) for a, b in zip(some, given[1:], strict=True))
    assert len(Batch.of(())) == len(batch.take(np.array([], np.int64))) == 0
