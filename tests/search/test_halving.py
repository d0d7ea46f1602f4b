from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.search.allocation import Prediction, Rule, survivor_path
from nafaudit.search.halving import (
    Rung,
    halving_plan,
    intraclass,
    ranked,
    reliability,
    shrink,
    successive_halving,
    utilisations,
)
from nafaudit.search.measured import Draws, Request
from nafaudit.search.studies import SpendModel, benign_study, halved, paper_ratios, planted_study


def test_utilisation_leaves_out_what_has_no_budget() -> None:
    assert utilisations(Draws("p", (1.0, 0.0, 3.0), (2.0, -1.0, 4.0))) == [0.5, 0.75]
    assert utilisations(Draws("p", (math.nan, 1.0, 1.0), (2.0, math.inf, math.nan))) == []


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


class _Pool:
    """Hands out given spends one after the other."""

    def __init__(self, given: dict[str, list[float]]) -> None:
        self.given = given
        self.used = dict.fromkeys(given, 0)

    def take(self, one: str, count: int) -> tuple[float, ...]:
        start = self.used[one]
        self.used[one] += count
        return tuple(self.given[one][start : start + count])

    def draw(self, requests: Sequence[Request]) -> list[Draws]:
        return [Draws(r.id, self.take(r.id, r.n), (594.0,) * r.n) for r in requests]

    def more(self, wanted: Mapping[str, int]) -> dict[str, tuple[float, ...]]:
        return {one: self.take(one, count) for one, count in wanted.items()}


def test_the_fast_rules_agree_with_the_slow_ones() -> None:
    chance = np.random.default_rng(5)
    model = SpendModel(between=30.0)
    means, deviations = model.prompts(chance, (12, 8))
    spends = model.spends(chance, means, deviations, 40)
    rule = Rule(high=594.0)
    ratios, sizes = paper_ratios(spends[..., :20], 594.0, rule)
    winners, cost = halved(spends, [(r.each, r.keep) for r in halving_plan(8, 96)])
    assert cost == 96
    for trial in range(12):
        pool = _Pool({str(i): spends[trial, i].tolist() for i in range(8)})
        said = [Prediction(0.999, 0.0, 0.3)] * 8
        rows = survivor_path(list(pool.given), 20, pool.draw, rule, said)
        assert [row.n for row in rows] == sizes[trial].tolist()
        assert [row.rho for row in rows] == pytest.approx(ratios[trial].tolist(), rel=1e-12)
        pool = _Pool(pool.given)
        slow = successive_halving(list(pool.given), halving_plan(8, 96), pool.more)
        assert slow.ranking[0] == str(winners[trial])


def test_the_paper_flags_benign_prompts_and_the_sound_rule_none() -> None:
    # 4,000 prompts: the standard error is 0.007, so 0.31 leaves [0.2, 0.45] with chance < 1e-40.
    found = benign_study(seed=0)
    assert 0.20 < found.paper.rate < 0.45
    assert found.paper.rate == pytest.approx(0.31, abs=0.03)
    assert found.floor20.rate < 0.02
    assert found.sound.hits == 0
    low, high = found.paper.interval
    assert low < found.paper.rate < high


def test_the_sound_rule_does_flag_a_decoder_that_overspends() -> None:
    broken = SpendModel(mean=650.0, enforced=False)
    assert benign_study(seed=0, trials=50, model=broken).sound.rate > 0.95


def test_the_planted_prompt_is_found_by_halving_and_not_by_the_papers_rule() -> None:
    # 500 pools: standard errors 0.010 and 0.011; six of them are missed with chance 1e-9.
    found = planted_study(gap=20.0, seed=0)
    assert found.paper.rate == pytest.approx(0.06, abs=0.06)
    assert found.halving.rate > 0.87
    assert found.halving.trajectories == 240 < found.paper.trajectories
    assert planted_study(gap=80.0, seed=0, trials=200).halving.rate > 0.98
    with pytest.raises(InputError, match="gap above 0"):
        planted_study(gap=0.0)
