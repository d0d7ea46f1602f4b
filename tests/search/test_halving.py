from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.search.halving import (
    Rung,
    halving_plan,
    intraclass,
    ranked,
    reliability,
    shrink,
    successive_halving,
)


def test_the_intraclass_correlation_is_found_again() -> None:
    chance = np.random.default_rng(0)
    between, within = 0.215, 1 - 0.215
    groups = chance.normal(0, math.sqrt(between), (4000, 1)) + chance.normal(
        0, math.sqrt(within), (4000, 10)
    )
    # 0.006 is the standard error at this size; 5 of them are missed with chance 6e-7.
    assert intraclass(groups.tolist()) == pytest.approx(0.215, abs=0.03)
    assert intraclass(chance.normal(size=(4000, 10)).tolist()) == pytest.approx(0.0, abs=0.02)
    assert math.isnan(intraclass([[1.0], [2.0]]))
    assert math.isnan(intraclass([[1.0, 1.0], [1.0, 1.0]]))
    assert intraclass([[1.0, 1.0], [2.0, 2.0, 2.0]]) == 1.0


def test_reliability_is_the_published_one() -> None:
    assert [round(reliability(m, 0.215), 2) for m in (4, 10, 20)] == [0.52, 0.73, 0.85]


@given(st.lists(st.lists(st.floats(0, 1), max_size=6), min_size=1, max_size=8))
def test_shrinking_moves_every_mean_towards_the_pool(groups: list[list[float]]) -> None:
    if not any(groups):
        with pytest.raises(InputError, match="nothing to rank"):
            shrink(groups)
        return
    found = shrink(groups)
    assert sorted(found.order()) == list(range(len(groups)))
    for value, mean, weight in zip(found.values, found.means, found.weights, strict=True):
        assert 0.0 <= weight <= 1.0
        if math.isnan(mean):
            assert value == found.pool
        else:
            low, high = sorted((mean, found.pool))
            assert low - 1e-9 <= value <= high + 1e-9


def test_few_draws_do_not_outrank_many() -> None:
    # One lucky draw of 0.95 against twenty around 0.9.
    lucky, steady, rest = [0.95], [0.85, 0.95] * 10, [[0.4, 0.6] * 4] * 6
    assert shrink([lucky, steady, *rest], icc=0.215).order()[0] == 1
    assert ranked({"lucky": lucky, "steady": steady})[0] in {"lucky", "steady"}
    assert ranked({"a": [], "b": []}) == ["a", "b"]
    assert shrink([[0.1], [0.9]]).assumed


def test_the_plan_of_the_study() -> None:
    plan = halving_plan(24, 240)
    assert plan == (Rung(24, 2, 12), Rung(12, 4, 6), Rung(6, 8, 3), Rung(3, 16, 2), Rung(2, 24, 1))
    assert halving_plan(5, 10, finalists=5) == (Rung(5, 2, 5),)
    with pytest.raises(InputError, match="at least 120 trajectories"):
        halving_plan(24, 100)
    with pytest.raises(InputError, match="finalists"):
        halving_plan(3, 30, 4)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 60))
def test_a_plan_never_costs_more_than_it_may(pool: int, finalists: int, extra: int) -> None:
    finalists = min(finalists, pool)
    budget = pool * max(1, math.ceil(math.log2(pool))) + extra
    plan = halving_plan(pool, budget, finalists)
    assert sum(rung.alive * rung.each for rung in plan) <= budget
    assert plan[-1].keep == finalists


def test_halving_keeps_the_best_and_ranks_all() -> None:
    asked: list[Mapping[str, int]] = []

    def more(wanted: Mapping[str, int]) -> dict[str, list[float]]:
        asked.append(wanted)
        return {one: [float(one)] * count for one, count in wanted.items()}

    ids = [str(i) for i in range(8)]
    found = successive_halving(ids, halving_plan(8, 48, 2), more)
    assert found.ranking == tuple(sorted(ids, reverse=True))
    assert found.finalists == ("7", "6")
    assert found.spent == sum(sum(wanted.values()) for wanted in asked) == 48
    assert len(found.values["7"]) > len(found.values["0"])
