"""The parts around a sound search: paired seeds, e-BH, steering, a planted prompt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Key
from nafaudit.search.candidate import Candidate, Measured
from nafaudit.search.confirm import Finalist, Interval, name_above
from nafaudit.search.gate import Limits
from nafaudit.search.paired import Paired, median_ranks, paired
from nafaudit.search.planted import find_planted
from nafaudit.search.steer import FEWEST, Label, Steering
from nafaudit.stats import e_bh, e_values
from nafaudit.stats.bound import Sample

Array = NDArray[np.float64]


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


@given(st.lists(st.floats(0, 1e6), max_size=8), st.integers(0, 20), st.floats(0.01, 0.5))
def test_e_bh_rejects_the_most_that_its_rule_allows(
    evidence: list[float], more: int, delta: float
) -> None:
    looked = max(1, len(evidence) + more)
    found = e_bh(evidence, delta, looked)
    # The slow twin: every size from the largest down.
    ordered = sorted(evidence, reverse=True)
    sizes = [r for r in range(len(ordered), 0, -1) if r * delta * ordered[r - 1] >= looked]
    assert len(found) == (sizes[0] if sizes else 0)
    assert sorted((evidence[i] for i in found), reverse=True) == ordered[: len(found)]
    # Never fewer than sharing the level names.
    assert len(found) >= sum(e * delta >= looked for e in evidence)


def test_e_bh_keeps_the_share_of_wrong_ones() -> None:
    # 20 prompts use 0.5 on average, which is not above 0.5; 10 use 0.8. 300 worlds: a mean share
    # of wrong ones above 0.1 has chance below 1e-6 if the expectation is at most 0.05.
    chance, wrong, missed = np.random.default_rng(4), [], 0
    for _ in range(300):
        draws = [*chance.beta(5, 5, (20, 24)), *chance.beta(16, 4, (10, 24))]
        evidence = [float(e_values(Sample(row), 0.5)[-1]) for row in draws]
        named = e_bh(evidence, 0.05, 30)
        wrong.append(sum(i < 20 for i in named) / max(1, len(named)))
        missed += 10 - sum(i >= 20 for i in named)
    assert np.mean(wrong) <= 0.1
    assert missed < 0.2 * 3000


def test_e_bh_refuses_nonsense() -> None:
    with pytest.raises(InputError, match="looked"):
        e_bh([1.0, 2.0], 0.05, 1)
    with pytest.raises(InputError, match="at least 0"):
        e_bh([-1.0], 0.05, 3)


def finalist(name: str, evidence: float) -> Finalist:
    use = Interval(0.7, 0.6, 0.8)
    return Finalist(
        "search", 0, 1, Candidate(name, "text"), 0.8, 10, 24, 0, use, 0.9, 0, 0.1, 40.0, 50.0,
        evidence,
    )  # fmt: skip


def test_a_prompt_that_two_searches_found_is_named_once_and_e_bh_names_more() -> None:
    rows = [finalist("a", 1500.0), finalist("b", 1500.0), finalist("a", 1500.0)]
    named = name_above(rows, 0.5, 0.05, 100)
    assert (named.asked, named.shared) == (2, ())
    assert named.discovered == ("a", "b")


# The last number is the truth; embeddings say nothing, the first cheap number says nearly all.
def features(texts: Sequence[str]) -> tuple[Array, Array]:
    truths = np.array([float(text.split()[-1]) for text in texts])
    noise = np.random.default_rng(5).standard_normal((1000, 3))
    points = np.array([noise[hash_of(text)] for text in texts])
    return points, np.stack([truths, np.ones_like(truths)], axis=1)


def hash_of(text: str) -> int:
    return sum(map(ord, text)) % 1000


def labels(count: int, draws: int, signal: bool = True) -> list[Label]:
    chance = np.random.default_rng(6)
    made = []
    for i in range(count):
        truth = chance.uniform(0.1, 0.9)
        shown = truth if signal else chance.uniform(0.1, 0.9)
        values = np.clip(truth + 0.05 * chance.standard_normal(draws), 0.01, 1.0)
        made.append(Label(f"prompt {i} {shown:.4f}", tuple(values)))
    return made


OFFERED = [Candidate(f"c{i}", f"candidate {i} {v}") for i, v in enumerate((0.2, 0.8, 0.3, 0.7))]


def test_an_open_gate_lets_the_surrogate_choose() -> None:
    chosen, steered = Steering(features).screen(1, OFFERED, labels(120, 10), 2)
    assert steered.steers, steered.judgement
    assert [one.id for one in chosen] == ["c1", "c3"]


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (labels(120, 10, signal=False), "AUC"),
        (labels(120, 4), "trajectories a label"),
        (labels(60, 10), "held-out prompts"),
        (labels(FEWEST - 1, 10), "that a fit needs"),
        ([], "that a fit needs"),
    ],
)
def test_a_shut_gate_leaves_the_order_and_says_why(known: list[Label], says: str) -> None:
    chosen, steered = Steering(features).screen(1, OFFERED, known, 2)
    assert not steered.steers
    assert [one.id for one in chosen] == ["c0", "c1"]
    assert any(says in reason for reason in steered.judgement.reasons)


def test_labels_of_few_draws_do_not_shut_a_gate_that_enough_good_ones_open() -> None:
    known = labels(120, 10) + [Label("late 0.5", (0.5, 0.6))] * 3
    assert Steering(features).judge(known).steers
    assert not Steering(features, Limits(auc=1.01)).judge(known).steers


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
