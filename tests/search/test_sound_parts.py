"""The parts around a sound search: e-BH and what it names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.search.candidate import Candidate
from nafaudit.search.confirm import Finalist, MeanLimits, name_above
from nafaudit.stats import e_bh, e_values
from nafaudit.stats.bound import Sample

Array = NDArray[np.float64]


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
    use = MeanLimits(0.7, 0.6, 0.8)
    return Finalist(
        "search", 0, 1, Candidate(name, "text"), 0.8, 10, 24, 0, use, 0.9, 0, 0.1, 40.0, 50.0,
        evidence,
    )  # fmt: skip


def test_a_prompt_that_two_searches_found_is_named_once_and_e_bh_names_more() -> None:
    rows = [finalist("a", 1500.0), finalist("b", 1500.0), finalist("a", 1500.0)]
    named = name_above(rows, 0.5, 0.05, 100)
    assert (named.asked, named.shared) == (2, ())
    assert named.discovered == ("a", "b")
