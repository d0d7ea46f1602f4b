"""What fresh draws may and may not say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nafaudit.core.finding import Kept
from nafaudit.core.trajectory import Key
from nafaudit.search.candidate import Candidate, Measured
from nafaudit.search.confirm import compare, confirmed, held_out, interval, outcome_of
from nafaudit.search.recorder import violations_of
from nafaudit.stats import Bonferroni
from tests.store.victim import DESIGN


def row(value: float, index: int = 0, excess: float = 0.0, prompt: str = "p") -> Measured:
    return Measured(Key(prompt, "m", 1.0, index), 64 * value, value, excess)


def test_limits_of_a_mean_over_prompts_with_different_means_hold() -> None:
    # Two prompts of 24 draws each, means 0.9 and 0.3: miss rate of each limit at most 0.05.
    # 400 trials: more than 40 misses have chance below 1e-4 at a true rate of 0.05.
    chance, truth, missed, tight = np.random.default_rng(1), 0.6, [0, 0], 0
    for _ in range(400):
        found = interval([*chance.beta(9, 1, 24), *chance.beta(3, 7, 24)], 0.05)
        missed[0] += found.low > truth
        missed[1] += found.high < truth
        tight += found.low > 0.3 and found.high < 0.9
    assert max(missed) <= 40
    # Limits that are always wide would pass the line above; these exclude both prompts' means.
    assert tight > 300


def test_a_value_above_one_leaves_no_upper_limit() -> None:
    found = interval([0.5, 1.2, 0.7], 0.01)
    assert found.high == math.inf and 0 <= found.low <= found.mean


def test_nothing_measured_is_not_zero() -> None:
    assert math.isnan(interval([], 0.05).mean)


def test_a_search_beats_loses_or_is_not_told_apart() -> None:
    chance = np.random.default_rng(2)
    high, low = chance.beta(18, 2, 60).tolist(), chance.beta(4, 16, 60).tolist()
    found = {one.control: one for one in compare({"a": low, "b": high}, high, 0.05)}
    assert (found["a"].answer, found["b"].answer) == ("beats", "not told apart")
    assert compare({"a": high}, low, 0.05)[0].answer == "loses"
    assert compare({"a": []}, low, 0.05)[0].answer == "not told apart"


def test_a_finalist_is_judged_by_fresh_draws_alone() -> None:
    rows = [row(0.5, 0), row(math.nan, 1), row(0.7, 2)]
    level = Bonferroni(0.05, 100)
    who, candidate = ("search", 0, 1), Candidate("p", "text")
    found = confirmed(who, candidate, (0.99, 14), rows, [], level)
    assert (found.fresh, found.unspent, found.worst) == (3, 1, 0.7)
    assert found.use.mean == pytest.approx(0.6)
    assert found.chosen_at == 0.99
    assert math.isnan(found.risky)
    few = confirmed(who, candidate, (0.99, 14), rows, [], Bonferroni(0.05, 1))
    assert found.use.low <= few.use.low and found.rate >= few.rate


def test_prompts_are_the_units_of_the_held_out_pool() -> None:
    groups = [[row(0.2), row(0.4)], [row(0.6)], [row(math.nan)]]
    found = held_out(groups, [], 0.05)
    assert (found.prompts, found.trajectories) == (3, 4)
    assert found.use.mean == pytest.approx(0.45)
    assert found.highest == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("bad", "least", "says"),
    [(1, 0, Kept.VIOLATED), (0, 24, Kept.WITHIN), (0, 19, Kept.INCONCLUSIVE)],
)
def test_the_outcome_has_three_values(bad: int, least: int, says: Kept) -> None:
    explored = [row(0.5, i) for i in range(30)]
    fresh = [row(1.1, i, 3.0 if i < bad else 0.0) for i in range(24)]
    assert outcome_of(explored, fresh, least) == says


def test_one_violation_per_prompt_the_worst_first(tmp_path: object) -> None:
    rows = [row(1.1, 0, 0.5), row(1.3, 1, 2.0), row(1.2, 0, 1.0, "q"), row(0.5, 0, 0.0, "r")]
    found = violations_of(None, DESIGN.identity, rows)  # type: ignore[arg-type]
    assert [(one.worst.key.prompt, one.worst.excess, one.count) for one in found] == [
        ("p", 2.0, 2),
        ("q", 1.0, 1),
    ]
