from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nafaudit.measures.overlap import PreparedReferences

TEXTS = {f"p{i}": f"word{i} " * (i + 1) for i in range(8)} | {"blank": " \n", "none": ""}


def test_a_reference_is_prepared_once_while_there_is_room() -> None:
    prepared = PreparedReferences(TEXTS)
    first = prepared.get("p3")
    assert first is not None
    assert first.words == ("word3",) * 4
    assert prepared.get("p3") is first
    assert prepared.get("blank") is prepared.get("none") is prepared.get("unknown") is None
    assert len(prepared) == 1


def test_what_was_not_asked_for_longest_is_forgotten() -> None:
    prepared = PreparedReferences(TEXTS, most=len(TEXTS["p0"]) + len(TEXTS["p1"]) + 1)
    zero, one = prepared.get("p0"), prepared.get("p1")
    assert prepared.get("p0") is zero
    assert prepared.get("p7") is not None  # larger than the room: kept alone
    assert len(prepared) == 1
    assert prepared.get("p1") is not one


@given(st.lists(st.sampled_from(sorted(TEXTS)), max_size=40), st.integers(0, 80))
def test_forgetting_changes_no_answer_and_keeps_to_the_room(asked: list[str], most: int) -> None:
    prepared = PreparedReferences(TEXTS, most)
    for prompt in asked:
        found = prepared.get(prompt)
        words = tuple(TEXTS[prompt].split())
        assert (found.words if found else ()) == words
        held = sum(len(TEXTS[name]) for name in prepared._kept)
        assert held <= most or len(prepared) == 1
