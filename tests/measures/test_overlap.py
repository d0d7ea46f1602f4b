from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.measures.common_text import (
    Text,
    located_words,
    longest_length,
    match_lengths,
    matching_blocks,
    prepare,
    words_of,
)
from nafaudit.measures.overlap import METRICS, ngram_jaccard, overlap_of, rouge_l
from tests.measures import twins

# Few words, so that runs are shared often; upper case and odd white space do not matter.
WORD = st.sampled_from(["a", "b", "the", "The", "sea", "seas", "of", "\u0130", "x\u03a3"])
TEXT = st.lists(WORD, max_size=60).map(" ".join)
# Two letters make long and overlapping runs, the hardest case of the character search.
LETTERS = st.text("ab ", max_size=80) | st.text("abcdefg ", max_size=120)


@st.composite
def edited(draw: st.DrawFn) -> tuple[str, str]:
    """A reference and an output that copies stretches of it with changes."""
    reference = draw(st.lists(st.sampled_from([f"w{i}" for i in range(40)]), max_size=60))
    output: list[str] = []
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(reference)))
        output += reference[start : start + draw(st.integers(0, 40))]
        output += draw(st.lists(st.sampled_from(["x", "y", "w1", "w2"]), max_size=4))
    return " ".join(output), " ".join(reference)


@settings(max_examples=150)
@given(st.tuples(TEXT, TEXT) | edited())
def test_every_metric_equals_its_slow_twin(texts: tuple[str, str]) -> None:
    output, reference = texts
    found = overlap_of(output, reference)
    if not reference.split():
        assert found.unscored == "no reference"
        return
    want = twins.measure(output, reference)
    for name in METRICS:
        mine, theirs = getattr(found, name), getattr(want, name)
        assert mine == theirs or (math.isnan(mine) and math.isnan(theirs)), name
    assert repr(overlap_of(output, prepare(reference))) == repr(found)


@settings(max_examples=300)
@given(LETTERS, LETTERS, st.integers(0, 8))
def test_the_longest_run_of_characters(a: str, b: str, hint: int) -> None:
    want = twins.substring(a, b)
    assert longest_length(a, Text(b)) == want
    assert longest_length(a, Text(b), known=min(hint, want)) == want


@settings(max_examples=200)
@given(LETTERS, LETTERS, st.integers(1, 6))
def test_blocks_are_those_of_difflib(a: str, b: str, least: int) -> None:
    lengths = match_lengths(a, Text(b))
    want = twins.blocks(a, b)
    assert matching_blocks(a, Text(b), lengths) == want
    longer = [block for block in want if block[2] >= least]
    assert matching_blocks(a, Text(b), lengths, least) == longer
    for start, length in enumerate(lengths):
        assert a[start : start + length] in b
        assert start + length == len(a) or a[start : start + length + 1] not in b


# Letters whose lower case depends on their neighbours or has another length; odd spaces.
@given(st.text("aA\u03a3\u0130\u1e9e.'\u0345 \n\x1c\x85\u00a0\u2003\u2028", max_size=60))
def test_located_words_are_the_words(text: str) -> None:
    located = located_words(text)
    assert [word for word, _, _ in located] == words_of(text)
    assert all(text[start:end].lower() == word for word, start, end in located)


@pytest.mark.parametrize("reference", [None, "", " \n"])
def test_without_a_reference_nothing_is_scored(reference: str | None) -> None:
    found = overlap_of("some output", reference)
    assert not found.scored
    assert found.unscored == "no reference"
    assert all(math.isnan(value) for value in found.numbers.values())
    assert overlap_of(None, "a reference").unscored == "no output text"


def test_no_words_written_is_a_score_and_what_cannot_be_said_is_nan() -> None:
    found = overlap_of("", "a b c")
    assert found.scored
    assert (found.rouge_l_f1, found.rouge_l_recall, found.substring_words) == (0, 0, 0)
    assert math.isnan(found.rouge_l_precision)
    assert math.isnan(found.jaccard_5gram)
    assert math.isnan(found.near_verbatim_recall)
    with pytest.raises(ValueError, match="no words"):
        rouge_l("a", " ")


def test_a_copy_is_whole() -> None:
    text = " ".join(f"word{i}" for i in range(30))
    found = overlap_of(text.upper(), text)
    assert set(found.numbers.values()) == {1.0, 30, len(text)}


def test_substring_and_subsequence_are_two_things() -> None:
    found = overlap_of("one x two x three", "one two three")
    assert found.rouge_l_recall == 1
    assert found.substring_words == 1
    assert found.substring_characters == len("three") + 1  # " three"


def test_jaccard_of_any_n() -> None:
    assert ngram_jaccard("a b c", "b c d", n=2) == pytest.approx(1 / 3)
    assert ngram_jaccard("a b c", "c b a", n=1) == 1
    assert math.isnan(ngram_jaccard("a b c", "a b", n=3))
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        ngram_jaccard("a", "a", n=0)


def test_more_words_than_one_byte_holds() -> None:
    words = [f"w{i}" for i in range(70_000)]
    wanted = prepare(" ".join(words))
    found = overlap_of(" ".join(words[60_000:60_100]), wanted)
    assert found.substring_words == 100
    assert found.near_verbatim_recall == 100 / 70_000
