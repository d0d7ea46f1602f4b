"""The study of a search: its rules against slow twins, its limits, a planted prompt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from benchmarks.search_study import (
    Paired,
    SpendModel,
    benign_study,
    find_planted,
    given_options,
    halved,
    median_ranks,
    paired,
    paper_ratios,
    planted_study,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Key
from nafaudit.paper.evaluator import Prediction, ProxyRule, survivor_path
from nafaudit.paper.proxy import PaperRequest, PromptSpends
from nafaudit.search.candidate import Measured
from nafaudit.search.halving import halving_plan, successive_halving


def test_the_options_are_those_of_a_search() -> None:
    words = ["d.toml", "--fresh", "20", "--heldout-draws", "1", "--k", "3", "--out", "here"]
    assert given_options(words) == (
        Path("d.toml"),
        {"fresh": 20, "heldout_draws": 1, "k": (3.0,), "out": "here"},
    )
    with pytest.raises(InputError, match="--name value"):
        given_options(["--fresh"])


class _Pool:
    """Hands out given spends one after the other."""

    def __init__(self, given: dict[str, list[float]]) -> None:
        self.given = given
        self.used = dict.fromkeys(given, 0)

    def take(self, one: str, count: int) -> tuple[float, ...]:
        start = self.used[one]
        self.used[one] += count
        return tuple(self.given[one][start : start + count])

    def draw(self, requests: Sequence[PaperRequest]) -> list[PromptSpends]:
        return [PromptSpends(r.id, self.take(r.id, r.n), (594.0,) * r.n) for r in requests]

    def more(self, wanted: Mapping[str, int]) -> dict[str, tuple[float, ...]]:
        return {one: self.take(one, count) for one, count in wanted.items()}


def test_the_fast_rules_agree_with_the_slow_ones() -> None:
    chance = np.random.default_rng(5)
    model = SpendModel(between=30.0)
    means, deviations = model.prompts(chance, (12, 8))
    spends = model.spends(chance, means, deviations, 40)
    rule = ProxyRule(high=594.0)
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


@pytest.mark.parametrize("delta", [0.01, 0.025, 0.05, 0.2])
@pytest.mark.parametrize("count", range(1, 13))
def test_the_ranks_of_a_median_are_the_largest_that_hold(count: int, delta: float) -> None:
    def missed(rank: int) -> float:
        """By enumeration of all signs: fewer than `rank` values on one side of the median."""
        signs = itertools.product((0, 1), repeat=count)
        return float(sum(sum(s) < rank or count - sum(s) < rank for s in signs) / 2**count)

    rank = median_ranks(count, delta)
    assert rank == 0 or missed(rank) <= delta
    if 2 * (rank + 1) <= count:
        # One rank further in, the interval would miss too often.
        assert missed(rank + 1) > delta


def test_ten_seeds_may_lose_once() -> None:
    ahead = [0.1] * 9
    assert Paired("random", (*ahead, -0.2), 0.025).answer == "beats"
    assert Paired("random", (*ahead[1:], -0.2, -0.1), 0.025).answer == "not told apart"
    assert Paired("random", tuple(-v for v in ahead), 0.025).answer == "loses"
    assert Paired("random", (0.1,) * 4, 0.025).limits == (-math.inf, math.inf)


def test_a_seed_without_a_value_is_left_out_of_its_pair() -> None:
    (one,) = paired([0.5, math.nan, 0.7], {"seeds": [0.4, 0.3, math.nan]}, 0.05)
    assert one.differences == pytest.approx((0.1,)) and one.delta == 0.05


def banked(means: dict[str, float], spread: float = 0.08) -> dict[str, list[Measured]]:
    chance = np.random.default_rng(7)
    return {
        name: [
            Measured(Key(name, "m", 1.0, i), 64 * v, v, granted=64.0)
            for i, v in enumerate(np.clip(mean + spread * chance.standard_normal(40), 0, 1))
        ]
        for name, mean in means.items()
    }


def test_a_planted_prompt_is_found_by_its_mean_and_not_by_rho() -> None:
    means = {f"p{i}": 0.3 + 0.01 * i for i in range(23)} | {"planted": 0.7}
    found = find_planted(banked(means), high=64.0, trials=60)
    assert found.best == "planted" and found.use - found.next == pytest.approx(0.18, abs=0.08)
    # No chance: seeds are fixed.
    assert found.halving.rate > 0.9
    assert found.halving.rate > found.paper.rate
    assert found.halving.trajectories == 240 and found.uniform.trajectories == 96


def test_a_bank_must_be_even() -> None:
    bank = banked({"a": 0.2, "b": 0.4})
    bank["a"].pop()
    with pytest.raises(ValueError, match="equally many"):
        find_planted(bank, 64.0)


@hypothesis_settings(max_examples=20)
@given(st.integers(0, 1000))
def test_the_planted_study_is_a_function_of_its_seed(seed: int) -> None:
    bank = banked({"a": 0.2, "b": 0.4, "c": 0.5})
    assert find_planted(bank, 64.0, 3, seed) == find_planted(bank, 64.0, 3, seed)
