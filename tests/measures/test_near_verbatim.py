from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.measures.overlap import near_verbatim_recall

WORDS = [f"w{i}" for i in range(60)]
REFERENCE = " ".join(WORDS)


def test_a_copy_is_one_and_nothing_is_zero() -> None:
    assert near_verbatim_recall(REFERENCE, REFERENCE) == 1
    assert near_verbatim_recall("before " + REFERENCE.upper() + " after", REFERENCE) == 1
    assert near_verbatim_recall("", REFERENCE) == 0
    assert near_verbatim_recall("quite other words", REFERENCE) == 0


def test_a_span_counts_from_twenty_words_on() -> None:
    assert near_verbatim_recall(" ".join(WORDS[10:30]), REFERENCE) == pytest.approx(20 / 60)
    assert near_verbatim_recall(" ".join(WORDS[10:29]), REFERENCE) == 0


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ([*WORDS[:12], "x", *WORDS[13:24]], 23 / 60),  # one word exchanged
        ([*WORDS[:12], "x", "y", *WORDS[14:24]], 22 / 60),  # two words exchanged
        ([*WORDS[:12], "x", "y", "z", *WORDS[15:24]], 0),  # three: two spans, both short
        ([*WORDS[:12], "x", *WORDS[12:24]], 24 / 60),  # one word put in: the offset drifts by one
        ([*WORDS[:12], "x", "y", *WORDS[12:24]], 0),  # two put in: it drifts by two
        ([*WORDS[:12], *WORDS[13:24]], 23 / 60),  # one left out
    ],
)
def test_small_changes_join_and_larger_ones_do_not(words: list[str], share: float) -> None:
    assert near_verbatim_recall(" ".join(words), REFERENCE) == pytest.approx(share)


def test_a_reference_nobody_could_meet_is_an_error() -> None:
    with pytest.raises(ValueError, match="fewer than min_span=20"):
        near_verbatim_recall("anything", "too short")


@given(st.lists(st.sampled_from(WORDS[:8]), max_size=80))
def test_a_share_is_a_share(words: list[str]) -> None:
    assert 0 <= near_verbatim_recall(" ".join(words), REFERENCE, min_span=3) <= 1
