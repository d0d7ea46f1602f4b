from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from nafaudit import protocols
from nafaudit.core.debt import DebtRule, prefix_debt
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.mechanisms.solve import SLACK
from nafaudit.protocols import BlackBox, Output, Request, World, debt_of
from nafaudit.selftest.faults.tools import divergence, mixture
from tests.exact import largest_theta
from tests.mechanisms.tables import TableWorld

PROMPT = (0, 3, 1, 2)


def _requests(n: int, k: float, length: int = 12) -> list[Request]:
    return [Request(PROMPT, k, seed, length) for seed in range(n)]


def test_the_worked_example_of_a_black_box_is_a_decoder() -> None:
    assert BlackBox.__doc__ is not None
    example = inspect.cleandoc(inspect.cleandoc(BlackBox.__doc__).split("in full:")[1])
    names: dict[str, Any] = {
        "np": np,
        "World": World,
        "Request": Request,
        "Output": Output,
        "Sequence": Sequence,
    }
    exec(example, names)
    decoder: BlackBox = names["SafeModel"](TableWorld())
    outputs = decoder.decode(_requests(50, 0.0))
    assert len(outputs) == 50
    for output in outputs:
        stops = [token == 4 for token in output.tokens]
        assert not any(stops[:-1])
        assert stops[-1] or len(output.tokens) == 12


@pytest.mark.parametrize("k", [0.05, 0.4, 3.0])
def test_the_reference_claims_what_the_slow_twin_computes(k: float) -> None:
    rounding = 1e-12
    world = TableWorld()
    debt = debt_of(world, PROMPT)
    for output in AnchoredDecoder(world).decode(_requests(20, k)):
        assert output.charge is not None and output.theta is not None
        assert output.served is not None and output.debt == debt
        prefix, spent = list(PROMPT), 0.0
        for step, token in enumerate(output.tokens):
            (safe,), (risky,) = world.laws([prefix])
            allowance = max(0.0, (step + 1) * k - spent - debt)
            theta = largest_theta(safe, risky, allowance)
            most = divergence(mixture(safe, risky, theta), safe)
            # Never above, and below by no more than the solver may leave unspent.
            assert output.charge[step] <= min(allowance, most + rounding)
            assert most - output.charge[step] <= SLACK * min(allowance, 1.0) + rounding
            assert theta - 1e-6 <= output.theta[step] <= theta + rounding
            # The claims are about one law.
            law = mixture(safe, risky, output.theta[step])
            assert output.charge[step] == pytest.approx(divergence(law, safe), abs=rounding)
            assert output.served[step] == pytest.approx(law[token], abs=rounding)
            spent += output.charge[step]
            prefix.append(token)


@pytest.mark.parametrize(("k", "which"), [(0.0, 0), (math.inf, 1)])
def test_the_ends_of_the_budget_are_the_two_models(k: float, which: int) -> None:
    # 2000 first tokens against the exact law; |z| < 5.5 for 5 cells: flaky with p < 2e-7,
    # and the seeds are fixed.
    world = TableWorld()
    law = np.exp(world.laws([PROMPT])[which][0])
    first = [o.tokens[0] for o in AnchoredDecoder(world).decode(_requests(2000, k, length=1))]
    seen = np.bincount(first, minlength=5) / 2000
    assert (np.abs(seen - law) < 5.5 * np.sqrt(law * (1 - law) / 2000)).all()
    other = np.exp(world.laws([PROMPT])[1 - which][0])
    assert (np.abs(seen - other) > 5.5 * np.sqrt(other * (1 - other) / 2000)).any()


def test_a_batch_does_not_show() -> None:
    world = TableWorld()
    requests = [
        Request((1,), 0.3, 7, 9),
        Request(PROMPT, 0.3, 7, 4),
        Request((2, 2, 2), math.inf, 1, 20),
    ]
    together = AnchoredDecoder(world).decode(requests)
    alone = [AnchoredDecoder(world).decode([request])[0] for request in requests]
    assert together == alone


def test_the_debt_is_the_one_definition() -> None:
    world = TableWorld(debt=2)
    assert debt_of(world, (3,)) == 0.0
    (s0, s1, s2), (r0, r1, r2) = (list(law) for law in world.prefix_laws(PROMPT[:-1]))
    ratios = np.array([r0[3] - s0[3], r1[1] - s1[1], r2[2] - s2[2]])
    assert debt_of(world, PROMPT) == prefix_debt(ratios, np.ones(3, bool), DebtRule(2)) > 0
    world.special = frozenset({3, 1, 2})
    assert debt_of(world, PROMPT) == 0.0


def test_recorded_plugins_find_their_names_in_the_old_places() -> None:
    for place, names in {
        "protocols": ("Served", "Rule", "Mechanism", "booked", "currency"),
        "doors": ("BlackBox", "World", "Request", "Output", "Law", "STEP_CLAIMS", "debt_of"),
        "sequences": ("SequenceRule", "Plan", "Draft", "Drafts"),
    }.items():
        old = importlib.import_module(f"nafaudit.mechanisms.{place}")
        assert all(getattr(old, name) is getattr(protocols, name) for name in names)
