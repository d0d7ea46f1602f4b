from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.finding import Worth, judge_worth
from nafaudit.core.ledger import Banking
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.measures.context import RunContext
from nafaudit.measures.verdicts import Reach, worth
from tests.records import judge, many


def facts(*surprisals: float, length: int = 10) -> RunContext:
    passages = tuple(ScoredPassage(f"p{i}", 1, (s,)) for i, s in enumerate(surprisals))
    return RunContext(Banking(), max_new_tokens=length, passages=PassageScores("c", "a", passages))


@pytest.mark.parametrize(
    ("k", "verdict", "share"),
    [
        (0.0, Worth.INFORMATIVE, "4 of 4"),
        (1.0, Worth.INFORMATIVE, "3 of 4"),  # K = 10 reaches S = 10, exactly
        (1.9, Worth.INFORMATIVE, "3 of 4"),
        (2.0, Worth.VACUOUS, "2 of 4"),  # half is enough
        (4.0, Worth.VACUOUS, "4 of 4"),
        (math.inf, Worth.VACUOUS, "4 of 4"),
    ],
)
def test_a_budget_that_reaches_half_of_the_passages_says_nothing(
    k: float, verdict: Worth, share: str
) -> None:
    context = facts(10.0, 20.0, 30.0, 40.0)
    reach = Reach.of(context, k)
    assert (reach.verdict, reach.share) == (verdict, share)
    assert worth(reach, context).verdict == verdict
    numbers = worth(reach, context).numbers
    assert numbers["K"] == 10 * k
    assert numbers["critical_k_min"] == 1.0
    # The worst passage may be written every time if and only if K reaches it.
    assert (numbers["cap_max"] == 1) == (k >= 1)
    assert math.exp(-10) * 0.999 <= numbers["cap_max"]
    assert numbers["cap_median"] <= numbers["cap_max"]


@settings(max_examples=30)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.floats(0, 12))
def test_the_verdict_is_the_rule(surprisals: list[float], k: float) -> None:
    context = facts(*surprisals)
    reach = Reach.of(context, k)
    vacuous = [s <= reach.promised for s in surprisals]
    assert (reach.verdict == Worth.VACUOUS) == (2 * sum(vacuous) >= len(vacuous))
    assert worth(reach, context).value == sum(vacuous) / len(vacuous)


def test_without_what_it_needs_worth_is_unknown_and_says_why() -> None:
    for known, reason in (
        (RunContext(Banking(), max_new_tokens=10), "no protected passages"),
        (facts(5.0, length=0), "no length limit"),
        (RunContext(None, max_new_tokens=10, passages=facts(5.0).passages), "another ledger"),
    ):
        reach = Reach.of(known, 1.0)
        assert reach.verdict == Worth.UNKNOWN == worth(reach, known).verdict
        assert reason in worth(reach, known).text
        assert reach.share == ""
    assert judge_worth(0, 0) == Worth.UNKNOWN


def test_a_passage_scored_only_in_part_does_not_count() -> None:
    cut = ScoredPassage("cut", 10, (1.0, 2.0))
    known = RunContext(Banking(), max_new_tokens=5, passages=PassageScores("c", "a", (cut,)))
    assert Reach.of(known, 1.0).verdict == Worth.UNKNOWN


def test_every_arm_gets_its_own_verdict() -> None:
    arms = judge([*many(20, 0.5), *many(20, 5.0)], facts(20.0, 30.0))
    assert [arm.worth for arm in arms] == [Worth.INFORMATIVE, Worth.VACUOUS]
    assert [f.check for f in arms[0].findings][:3] == ["invariant", "regime", "worth"]
