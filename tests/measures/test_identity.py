from __future__ import annotations

import math

from nafaudit.core.finding import CheckWord, Fault
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Arm, Trajectory
from nafaudit.measures.checks import same_outputs
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from tests.measures.test_duplicates import wrote


def run_of(texts: dict[float, list[list[int]]]) -> list[Trajectory]:
    return [
        Trajectory(one.key._replace(k=k), one.debt, one.stopped, one.steps)
        for k, tokens in texts.items()
        for one in (wrote("p", i, token) for i, token in enumerate(tokens))
    ]


FACTS = RunContext(Banking())


def seen(records: list[Trajectory], facts: RunContext = FACTS) -> Measures:
    return Measures.of(records, facts)


def test_hand_computed_shares() -> None:
    check = seen(
        run_of(
            {
                1.0: [[1], [2], [3], [4]],
                3.0: [[1], [2], [3], [9]],
                math.inf: [[1], [8], [8], [8]],
            }
        )
    )
    risky, following = same_outputs(check, Arm("m", 1.0))
    assert (risky.check, risky.verdict, risky.value) == ("same-as-risky", CheckWord.INFO, 0.25)
    assert (following.check, following.value) == ("same-as-next", 0.75)
    assert following.text == ("3 of 4 outputs are those of the next larger budget, k = 3 (75.0%)")
    assert [f.value for f in same_outputs(check, Arm("m", 3.0))] == [0.25, 0.25]
    assert "next larger budget, the risky model alone" in same_outputs(check, Arm("m", 3.0))[1].text
    assert same_outputs(check, Arm("m", math.inf)) == []


def test_outputs_are_matched_by_number() -> None:
    check = seen(run_of({1.0: [[1], [2]], math.inf: [[2], [1], [5]]}))
    assert [f.value for f in same_outputs(check, Arm("m", 1.0))] == [0.0, 0.0]


def test_nothing_to_compare_with_is_unknown() -> None:
    alone = same_outputs(seen(run_of({1.0: [[1]]})), Arm("m", 1.0))
    assert [(f.verdict, f.text) for f in alone] == [
        (CheckWord.UNKNOWN, "the risky model alone was not run"),
        (CheckWord.UNKNOWN, "the next larger budget was not run"),
    ]
    unmatched = same_outputs(seen(run_of({1.0: [[1]], math.inf: [[-1]]})), Arm("m", 1.0))
    assert {f.verdict for f in unmatched} == {CheckWord.UNKNOWN}
    assert "can be matched" in unmatched[0].text


def test_a_foreign_log_need_not_share_its_draws() -> None:
    records = run_of({1.0: [[1]], math.inf: [[1]]})
    finding = same_outputs(seen(records, RunContext(None, foreign=True)), Arm("m", 1.0))[0]
    assert "only if both were drawn with the same seeds" in finding.text


def test_a_budget_without_outputs_was_run_all_the_same() -> None:
    lost = wrote("p", 0, [1]).key._replace(k=2.0)
    facts = RunContext(Banking(), faults=(Fault("raised", "it did", lost, lost=True),))
    check = seen(run_of({1.0: [[1]], 3.0: [[1]], math.inf: [[1]]}), facts)
    reason = "no output of {} can be matched by prompt, number and tokens"
    assert same_outputs(check, Arm("m", 1.0))[0].value == 1.0
    assert same_outputs(check, Arm("m", 1.0))[1].text == reason.format("the next larger budget")
    assert [f.text for f in same_outputs(check, Arm("m", 2.0))] == [
        reason.format("the risky model alone"),
        reason.format("the next larger budget"),
    ]
