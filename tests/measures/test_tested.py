"""How many answers a limit changed, and what was copied with and without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from nafaudit.core.finding import ACTIVE_SHARE, MIN_TRAJECTORIES, Tested, judge_tested
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Arm, Key, Trajectory
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.measures.tested import Copies, Limited
from nafaudit.measures.verdicts import judge
from tests.records import trajectory

OWN, FOREIGN = RunContext(Banking()), RunContext(Banking(), foreign=True)
ARM = Arm("anchored", 1.0)


def answer(n: int, k: float = 1.0, token: Sequence[int] = (1, 2), **changes: object) -> Trajectory:
    given = {"theta": [1.0, 1.0]} | changes
    return trajectory(Key(f"p{n}", "anchored", k, 0), [0.1, 0.1], token=list(token), **given)  # type: ignore[arg-type]


def limited(rows: Sequence[Trajectory], context: RunContext) -> Limited:
    return Limited.of(Measures.of(rows, context), ARM)


def test_with_common_draws_an_answer_is_limited_if_it_is_not_the_risky_models() -> None:
    """Whatever its steps were: a mixture may draw the same tokens."""
    alone = [answer(n, math.inf) for n in range(20)]
    for changed in (0, 1, 3, 20):
        rows = [answer(n, token=(1, 3 if n < changed else 2), theta=[0.5, 0.5]) for n in range(20)]
        found = limited([*rows, *alone], OWN)
        assert (found.limited, found.counted, found.by) == (changed, 20, "draws")
        assert found.verdict == (Tested.ACTIVE if changed else Tested.IDLE)
    # Without the risky model alone there is nothing to compare with, and steps decide.
    found = limited([answer(n, theta=[0.5, 1.0]) for n in range(20)], OWN)
    assert (found.limited, found.by) == (20, "steps")


@pytest.mark.parametrize(
    ("theta", "debt", "counts"),
    [
        ([1.0, 1.0], 0.0, False),
        ([0.5, 1.0], 0.0, True),
        ([0.0, 1.0], 0.0, True),
        ([0.0, 1.0], 1.5, False),  # the debt forces the first step
        ([0.0, 0.0], 1.5, True),  # and not the second
        ([0.0, 0.5], 1.5, True),
    ],
)
def test_without_them_steps_that_the_debt_does_not_force_decide(
    theta: list[float], debt: float, counts: bool
) -> None:
    allowance = [max(0.0, (t + 1) - debt) for t in range(2)]
    rows = [answer(n, theta=theta, debt=debt, allowance=allowance) for n in range(20)]
    alone = [answer(n, math.inf) for n in range(20)]
    found = limited([*rows, *alone], FOREIGN)
    assert (found.limited, found.by) == (20 * counts, "steps")


def test_only_prompts_with_a_reference_count_where_there_are_any() -> None:
    context = replace(FOREIGN, references={f"p{n}": "a text" for n in range(20)} | {"p25": " "})
    rows = [answer(n, theta=[0.5 if n >= 20 else 1.0, 1.0]) for n in range(30)]
    found = limited(rows, context)
    assert (found.limited, found.counted, found.referenced) == (0, 20, True)
    assert limited(rows, FOREIGN).limited == 10


def test_weights_that_are_missing_and_few_answers_leave_it_open() -> None:
    rows = [answer(n, theta=[0.5, math.nan if n == 3 else 1.0]) for n in range(30)]
    found = limited(rows, FOREIGN)
    assert found.verdict == Tested.UNKNOWN and math.isnan(found.share)
    few = [answer(n, theta=[0.5, 1.0]) for n in range(MIN_TRAJECTORIES - 1)]
    assert limited(few, FOREIGN).verdict == Tested.UNKNOWN
    arms = judge(Measures.of(few, FOREIGN))
    assert "a verdict needs 20 answers" in arms[0].finding("regime").text
    assert Limited.of(Measures.of(few, FOREIGN), Arm("anchored", 0.0)).verdict == Tested.UNKNOWN


def test_totals_alone_tell_nothing() -> None:
    rows = [trajectory(Key(f"p{n}", "anchored", 1.0, 0), [], theta=[]) for n in range(20)]
    assert limited(rows, FOREIGN).verdict == Tested.UNKNOWN


def test_one_in_twenty_is_enough() -> None:
    assert judge_tested(round(1000 * ACTIVE_SHARE), 1000) == Tested.ACTIVE
    assert judge_tested(round(1000 * ACTIVE_SHARE) - 1, 1000) == Tested.IDLE
    assert judge_tested(0, 0) == Tested.UNKNOWN


def test_copies_are_counted_beside_those_of_the_risky_model_alone() -> None:
    """Prompt by prompt; the limits are those of a bet on the mean of prompts, on either side."""
    words = " ".join(f"w{i}" for i in range(30))
    texts, references, rows = {}, {}, []
    for n in range(40):
        references[f"p{n}"] = words
        for k, copied in ((1.0, n < 4), (math.inf, n < 24)):
            rows.append(answer(n, k))
            texts[rows[-1].key] = words if copied else "nothing of it"
    context = replace(FOREIGN, references=references)
    context = replace(context, logged=replace(context.logged, texts=texts))
    found = Copies.of(Measures.of(rows, context), ARM)
    assert (found.copied, found.scored, found.risky, found.risky_scored) == (4, 40, 24, 40)
    assert found.difference == pytest.approx(-0.5)
    assert -1 < found.lower < -0.5 < found.upper < 0
    # The other way round it is the same interval, mirrored.
    turned = {key: texts[key._replace(k=math.inf if key.k == 1 else 1.0)] for key in texts}
    other = replace(context, logged=replace(context.logged, texts=turned))
    again = Copies.of(Measures.of(rows, other), ARM)
    assert (again.lower, again.upper) == pytest.approx((-found.upper, -found.lower))
    assert "of the risky model alone 24 of 40 (-50 points, 95% interval -" in found.text


def test_without_a_reference_nothing_is_said_of_copies() -> None:
    found = Copies.of(Measures.of([answer(n) for n in range(20)], FOREIGN), ARM)
    assert (found.scored, found.text) == (0, "")
