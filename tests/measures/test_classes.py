from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from nafaudit.core.ledger import Banking, ledger_of
from nafaudit.core.trajectory import Arm, Key, Logged, Trajectory
from nafaudit.measures import verdicts
from nafaudit.measures.classes import ClassTable, class_table
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.measures.verdicts import ArmVerdict
from tests.records import trajectory

T, V = 50, 300
PIECES = [f"w{i} ".encode() for i in range(V)]
LABELS = {f"{label}{i}": label for label in ("calm", "wild") for i in range(25)}
FACTS = RunContext(
    Banking(),
    max_new_tokens=T,
    pieces=PIECES,
    labels=LABELS,
    vocabulary=V,
    references={prompt: " ".join(f"w{i}" for i in range(30)) for prompt in LABELS},
)


def executions(
    k: float = 2.0, per_prompt: int = 2, level: dict[str, float] | None = None
) -> list[Trajectory]:
    """Prompts of two classes; the charge depends on class, prompt and number."""
    level = level or {"calm": 0.2, "wild": 0.6}
    return [
        trajectory(
            Key(prompt, "m", k, number),
            [level[label] * (1 + 0.01 * int(prompt[4:]) + 0.1 * number)] * 30,
            debt=1.0 + 0.1 * int(prompt[4:]),
            token=list(range(30)) if label == "wild" else list(range(100, 130)),
        )
        for prompt, label in LABELS.items()
        for number in range(per_prompt)
    ]


def judged(
    found: list[Trajectory], facts: RunContext = FACTS
) -> tuple[ClassTable, tuple[ArmVerdict, ...]]:
    rows = Measures.of(found, facts)
    table = class_table(rows)
    return table, verdicts.judge(rows, table)


def test_a_row_is_the_papers_row() -> None:
    found = executions(2.0) + executions(1.0)
    table, _ = judged(found)
    assert [(row.k, row.label) for row in table.rows] == [
        (1, "calm"), (1, "wild"), (2, "calm"), (2, "wild"),
    ]  # fmt: skip
    assert table.looks == 4
    assert table.delta == 0.05 / 4
    wild = table.rows[3]
    spends = np.array(
        [one.spend for one in found if one.key.k == 2 and LABELS[one.key.prompt] == "wild"]
    )
    level = math.log(2 / table.delta)
    first = spends.mean() + math.sqrt(2 * spends.var(ddof=1) * level / 50)
    assert (wild.trajectories, wild.prompts, wild.budget) == (50, 25, 100)
    assert wild.mean == pytest.approx(spends.mean(), rel=1e-12)
    assert wild.variance == pytest.approx(spends.var(ddof=1), rel=1e-12)
    assert wild.r == pytest.approx(T * math.log(V))
    assert wild.r_eff == pytest.approx(np.ptp(spends))
    assert wild.u_ebb is not None
    assert wild.u_ebb_eff is not None
    assert wild.u_ebb.value == pytest.approx(first + 3 * T * math.log(V) * level / 50)
    assert wild.u_ebb_eff.value == pytest.approx(first + 3 * np.ptp(spends) * level / 50)
    # 21 nats of 100 on average; R adds 87 nats and the range seen 2: one passes, one does not.
    assert (wild.passes, wild.passes_eff) == (False, True)
    for proxy in (wild.u_ebb, wild.u_ebb_eff):
        assert not proxy.holds
        assert not proxy.evidence
    assert "of one prompt count as independent" in wild.u_ebb.note


def test_the_bound_that_holds_counts_prompts() -> None:
    two, many = (judged(executions(per_prompt=n))[0].rows[0] for n in (2, 6))
    for row in (two, many):
        assert row.upper is not None
        assert row.upper.n == 25
        assert row.mean < row.upper.value < row.budget
        assert row.upper.width == pytest.approx(row.upper.value - row.mean)
        assert row.certified is True
    assert two.upper is not None
    assert many.upper is not None
    # Three times as many trajectories of the same prompts are no three times larger sample.
    assert many.upper.width > 0.9 * two.upper.width


def test_under_twenty_prompts_nothing_is_evidence() -> None:
    few = [one for one in executions(per_prompt=3) if int(one.key.prompt[4:]) < 19]
    row = judged(few)[0].rows[0]
    assert (row.trajectories, row.prompts) == (57, 19)
    assert row.upper is not None
    assert not row.upper.evidence
    assert row.certified is None


def test_a_budget_that_was_not_kept_has_no_range() -> None:
    over = trajectory(Key("wild0", "m", 2.0, 9), [200.0])
    calm, wild = judged([*executions(), over])[0].rows
    assert calm.upper is not None
    assert wild.upper is None
    assert wild.certified is None
    assert "does not apply: values must lie in [0, 100]" in wild.lacks


def test_rounding_past_the_budget_is_no_violation() -> None:
    found = [trajectory(Key(f"calm{i}", "m", 2.0, 0), [100.0 + 1e-9]) for i in range(25)]
    (row,) = judged(found)[0].rows
    assert row.upper is not None
    assert row.upper.value == 100


def test_baselines_have_rows_but_no_bounds_and_are_no_looks() -> None:
    table, _ = judged(executions(0.0) + executions(2.0) + executions(math.inf))
    assert table.looks == 2
    for row in (*table.of(Arm("m", 0.0)), *table.of(Arm("m", math.inf))):
        assert row.upper is row.u_ebb is row.u_ebb_eff is None
        assert row.passes is row.passes_eff is row.certified is None
        assert "baseline" in row.lacks
        assert row.mean > 0
        assert row.copying.scored == 50
        assert math.isnan(row.utilisation.max)


def test_debt_utilisation_and_overlap_by_class() -> None:
    calm, wild = judged(executions())[0].rows
    for row in (calm, wild):
        assert row.debt.mean == pytest.approx(2.2)
        assert row.debt.median == pytest.approx(2.2)
        assert row.debt.max == pytest.approx(3.4)
    budgets = [2.0 * 30 - (1 + 0.1 * i) for i in range(25) for _ in range(2)]
    spends = [0.6 * 30 * (1 + 0.01 * i + 0.1 * n) for i in range(25) for n in range(2)]
    uses = np.array(spends) / np.array(budgets)
    assert wild.utilisation.mean == pytest.approx(uses.mean())
    assert wild.utilisation.max == pytest.approx(uses.max())
    assert wild.copying.mean("rouge_l_f1") == 1
    assert wild.copying.max("near_verbatim_recall") == 1
    assert calm.copying.max("rouge_l_f1") == 0
    assert (calm.copying.scored, calm.copying.unscored) == (50, 0)


def test_the_level_is_shared_by_classes_times_budgets_also_where_one_has_no_record_yet() -> None:
    found = [one for one in executions(1.0) if one.key.prompt.startswith("calm")]
    table, _ = judged(found + executions(2.0), replace(FACTS, delta=0.1))
    assert len(table.rows) == 3
    assert table.looks == 4
    assert table.delta == 0.1 / 4
    assert all(row.upper is not None and row.upper.delta == 0.1 / 4 for row in table.rows)


def test_the_worst_class_is_named() -> None:
    table, arms = judged(executions())
    worst = table.spends_most(Arm("m", 2.0))
    assert worst is not None
    assert worst.label == "wild"
    (found,) = (finding for finding in arms[0].findings if finding.check == "classes")
    assert "of 2 classes 'wild' spends most: mean 21.06 nats over 50 trajectories of 25" in (
        found.text
    )
    assert found.numbers["upper_n"] == 25
    swapped, _ = judged(executions(level={"calm": 0.6, "wild": 0.2}))
    other = swapped.spends_most(Arm("m", 2.0))
    assert other is not None
    assert other.label == "calm"


def test_a_log_without_classes_is_one_class_and_what_is_not_known_has_no_bound() -> None:
    foreign = RunContext(Banking(), foreign=True)
    (row,) = judged(executions(), foreign)[0].rows
    assert (row.label, row.trajectories, row.prompts) == ("prompt", 100, 50)
    assert row.u_ebb is None
    assert row.passes is row.passes_eff is row.certified is None
    assert "K is not known" in row.lacks
    assert row.u_ebb_eff is not None
    assert row.r_eff == pytest.approx(max(o.spend for o in executions()) - 6)
    assert row.copying.unscored == 100


def test_a_spend_that_is_not_recorded_leaves_no_bound() -> None:
    silent = trajectory(Key("calm0", "m", 2.0, 9), [], logged=Logged())
    calm, wild = judged([*executions(), silent], replace(FACTS, foreign=True))[0].rows
    assert calm.unknown == 1
    assert calm.u_ebb is calm.u_ebb_eff is calm.upper is None
    assert "not every spend" in calm.lacks
    assert wild.upper is not None


def test_spends_are_compared_with_what_is_promised_also_of_a_ledger_with_a_bank() -> None:
    """K = kT + bank there, and a class, its limits and the passages must agree on it."""
    banked = RunContext(ledger_of("bucket:cap=20,bank=5,refill=token"), max_new_tokens=T)
    assert banked.compared_with(1.0) == banked.promised(1.0) == T + 5
    unknown = RunContext(None, max_new_tokens=T)
    assert math.isnan(unknown.promised(1.0)) and unknown.compared_with(1.0) == T
