"""Claims of a black box that only a comparison with the replay can refute."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nafaudit.auditor.claims import (
    DECLARED,
    FOREIGN_STEP,
    FOREIGN_SUM,
    ClaimComparison,
    deviations,
    levels,
)
from nafaudit.auditor.replay import ReplayTask, replay_in
from nafaudit.core.trajectory import STEP_TYPES, Key, Replayed, Steps, Trajectory
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.mechanisms.registry import mechanism
from nafaudit.protocols import Output, Request
from nafaudit.runner.outputs import read_output
from nafaudit.runner.worker import plain
from tests.mechanisms.tables import TableWorld

WORLD = TableWorld(debt=0)
PROMPT = (0, 3)


def _sound(k: float, seed: int = 1) -> Output:
    return AnchoredDecoder(WORLD).decode([Request(PROMPT, k, seed, 6)])[0]


def _comparison(*said: tuple[float, Output], declared: str = "") -> ClaimComparison:
    """What is found in these outputs, one trajectory each."""
    close = levels({}, foreign=True, declared=declared)
    found = ClaimComparison(close, WORLD.stops, 6, own=False)
    for number, (k, output) in enumerate(said):
        key = Key("p", "theirs", k, number)
        reading = read_output(plain(output), key, Request(PROMPT, k, 1, 6), WORLD.size, WORLD.stops)
        assert reading.trajectory is not None and not reading.faults
        steps = reading.trajectory.steps
        task = ReplayTask(key, PROMPT, steps.token, theta=steps.theta)
        again = replay_in(WORLD, mechanism("anchored", WORLD.debt), task)
        found.add(reading.trajectory, again.replayed)
    return found


def _failed(found: ClaimComparison) -> set[str]:
    return {f.check for f in found.findings() if f.verdict == "FAILED"}


def _lies(output: Output) -> dict[str, Output]:
    tokens, steps = output.tokens, len(output.tokens)
    uniform = np.full((steps, WORLD.size), -math.log(WORLD.size))
    return {
        "replay: spend": Output(tokens, spend=(output.spend or 0.0) / 3),
        "replay: served": Output(tokens, laws=uniform),
        "replay: theta": Output(tokens, theta=[1.7] * steps),
    }


@pytest.mark.parametrize("check", ["replay: spend", "replay: served", "replay: theta"])
def test_a_lone_lie_is_refuted(check: str) -> None:
    output = _sound(0.4)
    assert (output.spend or 0.0) > 0.1
    assert _failed(_comparison((0.4, output))) == set()
    assert _failed(_comparison((0.4, _lies(output)[check]))) == {check}


def test_levels_follow_from_the_type_that_a_decoder_declares() -> None:
    def of(declared: str, **given: Any) -> set[tuple[float, float]]:
        found = levels({}, foreign=True, declared=declared, **given)
        return {(found[name].warn, found[name].fail) for name in ("served", "charge", "spend")}

    undeclared = {(FOREIGN_STEP.warn, FOREIGN_STEP.fail), (FOREIGN_SUM.warn, FOREIGN_SUM.fail)}
    assert of("") == of("bfloat16") == of("float16") == undeclared
    assert of("float32") == of("float64") == {(DECLARED.warn, DECLARED.fail)}
    # An honest float32 decoder was off by 1.1e-5 at most; its models' own noise counts too.
    assert DECLARED.fail > 50 * 1.1e-5 and DECLARED.warn > 5 * 1.1e-5
    assert of("float32", dtype="bfloat16") == {(8 * 2.0**-8, 40 * 2.0**-8)}
    noisy = levels({"spend": 1e-3}, foreign=True, declared="float32")
    assert noisy["spend"].fail == pytest.approx(0.04)
    # What is not foreign has its own levels, whatever is declared.
    assert levels({}, declared="bfloat16") == levels({})


@pytest.mark.parametrize(("declared", "failed"), [("", set()), ("float32", {"replay: charge"})])
def test_a_charge_that_is_off_by_a_hundredth_is_refuted_where_it_cannot_be_rounding(
    declared: str, failed: set[str]
) -> None:
    output = _sound(0.4)
    charge = [*(output.charge or [])]
    charge[-1] += 0.01
    said = Output(output.tokens, charge=charge)
    found = _comparison((0.4, said), declared=declared)
    assert _failed(found) - {"replay: spend"} == failed


@pytest.mark.parametrize("theta", [-0.2, math.inf, -math.inf])
def test_no_mixture_has_such_a_weight(theta: float) -> None:
    output = _sound(0.4)
    claims: Any = [theta] * len(output.tokens)
    assert _failed(_comparison((0.4, replace(output, theta=claims)))) == {"replay: theta"}


def test_a_weight_may_miss_an_end_by_rounding() -> None:
    output = _sound(math.inf)
    claims = [value + 2e-7 for value in output.theta or ()]
    assert _failed(_comparison((math.inf, replace(output, theta=claims)))) == set()


def test_a_lie_is_named_in_every_arm_that_has_it() -> None:
    lies = [(k, _lies(_sound(k))["replay: theta"]) for k in (0.3, 0.6)]
    found = _comparison(lies[0], (0.4, _sound(0.4)), lies[1])
    named = {
        arm.k: [(f.check, f.witness and f.witness.key.k) for f in found.failures(arm)]
        for arm in found.by_arm
    }
    assert named == {
        0.3: [("replay: theta", 0.3)],
        0.4: [],
        0.6: [("replay: theta", 0.6)],
    }


@pytest.mark.parametrize(
    ("allowance", "off", "seen"),
    [
        (1e-6, 0.003, 0.0),  # hardly anything to spend: the law may differ by its square root
        (1e-6, 0.02, 0.0132),  # the rest is seen
        (0.0, 0.003, 0.003),  # nothing to spend: the safe law and no other
        (0.01, 0.003, 0.003),  # an ordinary step
    ],
)
def test_only_a_law_whose_allowance_is_rounding_is_forgiven(
    allowance: float, off: float, seen: float
) -> None:
    """A law of KL at most m is off by about sqrt(2 m / p) at a token of probability p."""
    half = math.log(0.5)
    said = {"token": 3, "allowance": allowance, "charge": 0, "theta": 0}
    step = said | {"served": half, "safe": half, "risky": half}
    steps = Steps(**{name: np.array([step[name]], kind) for name, kind in STEP_TYPES.items()})
    true = Trajectory(Key("p", "m", 1.0, 0), 0.0, False, steps)
    none = np.zeros(1)
    again = Replayed(true, none, none, none, np.zeros(1, np.int32))
    claimed = replace(true, steps=replace(steps, served=steps.served + np.float32(off)))
    found = deviations(claimed, again, stops=frozenset())["served"][0] * (1 + math.log(2))
    assert found == pytest.approx(seen, abs=1e-4)
