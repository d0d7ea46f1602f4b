"""The attacker and the odometer on answers written by hand: a token is a word."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.measures.overlap import near_verbatim_recall
from nafaudit.workload.passages import Passage
from nafaudit.worth.attack_run import (
    AnsweredQuery,
    AnswerPlace,
    Attacker,
    Method,
    QueryAnswer,
    replayed,
)
from nafaudit.worth.certify import GivenText

WORDS = 200
PIECES: list[bytes | None] = [None, *(f" w{i}".encode() for i in range(1, WORDS))]
# The opening, three known words, sixty wanted ones.
TEXT = GivenText(Passage("p", "unused"), (0, 1, 2, 3), tuple(range(10, 70)))
SINGLE, ORACLE, CHAINED = Method("single", 60), Method("oracle", 25), Method("chained", 25)


def answer(
    prompt: str, k: float, attempt: int, tokens: Sequence[int], spend: float = 1.0
) -> QueryAnswer:
    place = AnswerPlace(prompt, k, attempt)
    return QueryAnswer(place, tuple(tokens), spend, 0.0, 0.0, 9.0, len(tokens), 0, 0)


def book(*answers: QueryAnswer) -> dict[AnswerPlace, QueryAnswer]:
    return {one.place: one for one in answers}


def test_a_single_query_asks_for_everything_at_once() -> None:
    (query,) = Attacker(PIECES, 1, 2).queries(TEXT, SINGLE, 3.0, {})
    assert query.item.tokens == TEXT.before and query.wanted == TEXT.tokens
    # The prompt as people read it has no opening; the reference is what follows.
    assert query.item.prompt.text == " w1 w2 w3"
    assert query.item.prompt.reference.split()[0] == "w10"


def test_an_oracle_hands_every_window_the_true_text() -> None:
    queries = list(Attacker(PIECES, 1, 2).queries(TEXT, ORACLE, 3.0, {}))
    assert [q.item.tokens for q in queries] == [TEXT.before + TEXT.tokens[:n] for n in (0, 25, 50)]
    assert [len(q.wanted) for q in queries] == [25, 25, 10]
    # All ways to attack have the same prompt, and so the same draws, after the same text.
    names = [q.item.prompt.id for q in queries]
    (single,) = Attacker(PIECES, 1, 2).queries(TEXT, SINGLE, 3.0, {})
    assert single.item.prompt.id == names[0] and len(set(names)) == 3


def test_a_chain_goes_on_from_the_answers_that_it_kept() -> None:
    attacker = Attacker(PIECES, 1, 2)
    (first,) = attacker.queries(TEXT, CHAINED, 3.0, {})
    wrong, right = [99] * 25, TEXT.tokens[:25]
    name = first.item.prompt.id
    half = book(answer(name, 3.0, 0, wrong))
    # An attempt is missing: the next window is not known yet.
    assert len(list(attacker.queries(TEXT, CHAINED, 3.0, half))) == 1
    known = half | book(answer(name, 3.0, 1, right))
    second = list(attacker.queries(TEXT, CHAINED, 3.0, known))[1]
    assert second.item.tokens == TEXT.before + right
    # Another budget has answers, and so prompts, of its own.
    other = book(*(answer(name, 5.0, i, wrong) for i in range(2)))
    assert list(attacker.queries(TEXT, CHAINED, 5.0, other))[1].item != second.item
    # A chain whose answer stopped at once asks again after the same text.
    stopped = book(*(answer(name, 3.0, i, ()) for i in range(2)))
    assert list(attacker.queries(TEXT, CHAINED, 3.0, stopped))[1].item.tokens == TEXT.before


def test_a_score_is_that_of_the_joined_text() -> None:
    attacker = Attacker(PIECES, 1, 1)
    written = (*TEXT.tokens[:30], 150, *TEXT.tokens[30:40])
    plain = " ".join(f"w{t}" for t in written), " ".join(f"w{t}" for t in TEXT.tokens)
    recall, span = attacker.score(written, TEXT.tokens)
    assert recall == pytest.approx(near_verbatim_recall(*plain)) and span == 30
    # A window too short for a near-verbatim span still tells near from far.
    assert attacker.score(TEXT.tokens[:5], TEXT.tokens[:10]) == (0.0, 5)


def log(attempts: int, spends: Sequence[float], right: Sequence[bool]) -> list[AnsweredQuery]:
    """An oracle attack's log: `right` says whether an answer is the true window."""
    attacker = Attacker(PIECES, 1, attempts)
    cells = iter(zip(spends, right, strict=True))
    found = []
    for query in attacker.queries(TEXT, ORACLE, 2.0, {}):
        answers = []
        for attempt in range(attempts):
            spend, good = next(cells)
            tokens = query.wanted if good else (99,) * 25
            answers.append(answer(query.item.prompt.id, 2.0, attempt, tokens, spend))
        found.append(AnsweredQuery(query, tuple(answers)))
    return found


def test_the_odometer_cuts_where_the_sum_would_pass_the_budget() -> None:
    # Window 1: wrong, right. Window 2: right, wrong. Window 3: wrong, wrong.
    asked = log(2, [10, 20, 30, 40, 5, 5], [False, True, True, False, False, False])
    attacker = Attacker(PIECES, 1, 2)
    whole = replayed(attacker, TEXT, asked)
    assert (whole.recall, whole.span) == (50 / 60, 50)
    assert (whole.queries, whole.spend, whole.cut) == (6, 110.0, False)
    # 10 + 20 + 30 fit 60 to the nat; the retry of window 2 does not, and nothing after it.
    edge = replayed(attacker, TEXT, asked, 60.0)
    assert (edge.recall, edge.queries, edge.spend, edge.cut) == (50 / 60, 3, 60.0, True)
    less = replayed(attacker, TEXT, asked, 59.9)
    assert (less.recall, less.queries, less.spend) == (25 / 60, 2, 30.0)
    # Retries are charged: with 29.9 only the wrong first attempt is served.
    assert replayed(attacker, TEXT, asked, 29.9).recall == 0
    nothing = replayed(attacker, TEXT, asked, 0.0)
    assert (nothing.queries, nothing.recall, nothing.cut) == (0, 0.0, True)


@given(
    st.lists(st.floats(0, 50), min_size=6, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.floats(0, 400),
)
def test_no_user_spends_more_than_his_budget_and_more_budget_never_recalls_less(
    spends: list[float], right: list[bool], budget: float
) -> None:
    asked, attacker = log(2, spends, right), Attacker(PIECES, 1, 2)
    got = replayed(attacker, TEXT, asked, budget)
    assert got.spend <= budget
    assert got.cut == (math.fsum(spends) > budget) or math.isclose(math.fsum(spends), budget)
    assert replayed(attacker, TEXT, asked, 2 * budget + 1).recall >= got.recall
    assert replayed(attacker, TEXT, asked).recall >= got.recall
