from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.measures.common_text import located_words, prepare
from nafaudit.measures.overlap import overlap_of, spans
from tests.measures import twins

WORD = st.sampled_from(["a", "b", "c", "D", "\u0130e"])
GAP = st.sampled_from([" ", "\n", "\t  ", "\u2003"])
TEXT = st.lists(st.tuples(WORD, GAP).map("".join), max_size=25).map("".join)


@settings(max_examples=150)
@given(TEXT, TEXT, st.integers(1, 5))
def test_every_copied_word_lies_in_a_range_and_no_other(
    output: str, reference: str, minimum: int
) -> None:
    found = spans(output, reference, minimum)
    words = located_words(output)
    wanted = reference.lower().split()
    copied = twins.covered([word for word, _, _ in words], wanted, minimum)
    inside = [any(start <= a and b <= end for start, end in found) for _, a, b in words]
    assert inside == copied
    ends = [place for span in found for place in span]
    assert ends == sorted(ends)
    assert spans(output, prepare(reference), minimum) == found


@given(TEXT, TEXT)
def test_accumulated_spans_lie_in_the_ranges(output: str, reference: str) -> None:
    if reference.split():
        marked = sum(len(output[a:b].split()) for a, b in spans(output, reference))
        assert overlap_of(output, reference).span_words <= marked


def test_ranges_are_of_the_output_as_it_stands() -> None:
    output = "So: The  quick\nBROWN fox leaps, then the quick brown fox"
    (first, second) = spans(output, "the quick brown fox leaps over", minimum=4)
    assert output[slice(*first)] == "The  quick\nBROWN fox"
    assert output[slice(*second)] == "the quick brown fox"
    assert spans(output, "", minimum=4) == ()
    with pytest.raises(ValueError, match="minimum must be at least 1 word, got 0"):
        spans("a", "a", minimum=0)
