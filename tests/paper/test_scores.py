from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.paper.files import paper_scores
from tests.measures import twins

TEXT = st.lists(st.sampled_from(["a", "B", "b,", "c", "d"]), max_size=30).map(" ".join)


@given(TEXT, TEXT)
def test_the_scores_are_those_of_its_definition(generation: str, reference: str) -> None:
    hypothesis, wanted = generation.lower().split(), reference.lower().split()
    found = paper_scores(generation, reference)
    if not hypothesis or not wanted:
        assert tuple(found) == (0, 0)
        return
    shared = twins.subsequence(hypothesis, wanted)
    p, r = shared / len(hypothesis), shared / len(wanted)
    assert found.rouge_l == (2 * p * r / (p + r) if shared else 0)
    short = min(len(hypothesis), len(wanted)) < 5
    assert found.minhash_5gram == (0 if short else twins.jaccard(hypothesis, wanted, 5))


@pytest.mark.parametrize("reference", [None, "", "  "])
def test_a_missing_reference_is_zero_there(reference: str | None) -> None:
    assert paper_scores("some words were written here", reference) == (0, 0)


def test_nothing_is_cut_and_punctuation_stays() -> None:
    long = " ".join(f"w{i}" for i in range(3000))
    assert paper_scores(long, long) == (1, 1)
    assert paper_scores("end.", "end") == (0, 0)
