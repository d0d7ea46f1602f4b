from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.passage import ScoredPassage

SURPRISALS = st.lists(st.floats(0, 50), min_size=1, max_size=12)


@given(SURPRISALS, st.integers(1, 14))
def test_prefixes_and_windows_are_sums_of_their_tokens(values: list[float], size: int) -> None:
    passage = ScoredPassage("p", len(values), tuple(values))
    slow = [sum(values[i : i + size]) for i in range(len(values) - size + 1)]
    np.testing.assert_allclose(passage.windows(size), slow, atol=1e-9)
    np.testing.assert_allclose(
        passage.prefixes, [sum(values[: i + 1]) for i in range(len(values))], atol=1e-9
    )
    assert passage.surprisal(size) == pytest.approx(sum(values[:size]), abs=1e-9)
    assert passage.surprisal(0) == pytest.approx(sum(values), abs=1e-9)


def test_a_forbidden_token_spoils_only_the_windows_that_hold_it() -> None:
    passage = ScoredPassage("p", 4, (1.0, math.inf, 2.0, 3.0))
    assert passage.windows(2).tolist() == [math.inf, math.inf, 5.0]
    assert passage.surprisal(1) == 1.0
    assert passage.surprisal(0) == math.inf


def test_what_was_not_scored_is_not_a_number() -> None:
    passage = ScoredPassage("p", 10, (1.0, 2.0, 3.0))
    assert passage.surprisal(3) == 6.0
    assert math.isnan(passage.surprisal(4))
    assert math.isnan(passage.surprisal(0))


@pytest.mark.parametrize("values", [(), (1.0, 2.0), (-0.1,), (math.nan,)])
def test_what_cannot_be_a_passage_is_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="passage 'p'"):
        ScoredPassage("p", 1, values)
