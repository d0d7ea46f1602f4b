"""A log that contradicts itself is not judged in its own favour."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nafaudit.checks import judge_run
from nafaudit.core.errors import InputError
from nafaudit.core.finding import Answer, Kept
from nafaudit.store.foreign import ImportOptions, import_logs, import_report
from nafaudit.store.run import Run
from tests.store.foreign import logs

ROWS = 25
INSIDE, ABOVE, OPEN = [Kept.WITHIN], [Kept.VIOLATED], [Kept.INCONCLUSIVE]


def table(path: Path, **cells: Any) -> Path:
    """A table of equal rows."""
    rows = [",".join([f"p{i}", *map(str, cells.values())]) for i in range(ROWS)]
    path.write_text("\n".join([",".join(["id", *cells]), *rows]) + "\n")
    return path


def imported(path: Path, **options: Any) -> Run:
    return import_logs([path], path.parent / "run", ImportOptions(**options))


def noticed(run: Run, kind: str) -> int:
    report = import_report(run)
    assert report is not None
    return sum(note["count"] for note in report["notes"] if note["kind"] == kind)


def kept(run: Run) -> list[Kept]:
    return [arm.kept for arm in judge_run(run)]


@pytest.mark.parametrize(
    ("options", "spend", "verdict"),
    [
        ({}, 900, ABOVE),
        ({}, 2, INSIDE),
        ({"ledger": "banking"}, 900, ABOVE),
        ({"ledger": "unknown"}, 900, INSIDE),
    ],
)
def test_a_budget_above_kt_needs_the_users_word(
    tmp_path: Path, options: dict[str, str], spend: float, verdict: list[Kept]
) -> None:
    run = imported(table(tmp_path / "t.csv", k=0.5, T=6, spend=spend, budget=1000), **options)
    assert kept(run) == verdict
    believed = options.get("ledger") == "unknown"
    assert noticed(run, "budget-above-kT") == (0 if believed else ROWS)
    # Nobody is owed 997 nats.
    assert all(math.isnan(t.debt) for t in run.trajectories())
    assert noticed(run, "debt-derived") == 0


@pytest.mark.parametrize(
    ("k", "limit", "budget", "believed"),
    [
        ("0.5", 6, "3.0", True),
        ("0.5", 6, "3.0009", True),
        ("0.5", 6, "3.01", False),
        ("3", 31, "93", True),
        ("0.6", 156, "94", True),  # 93.6, rounded
        ("0.6", 156, "95", False),
        ("0.333", 300, "100.0", True),  # a third, rounded
        ("0.333", 300, "100.5", False),
        ("-1", 6, "1000", True),  # the risky model alone has no budget
        ("inf", 6, "inf", True),
    ],
)
def test_rounding_is_no_contradiction(
    tmp_path: Path, k: str, limit: int, budget: str, believed: bool
) -> None:
    run = imported(table(tmp_path / "t.csv", k=k, T=limit, spend="1.0", budget=budget))
    assert (noticed(run, "budget-above-kT") == 0) == believed


def test_a_budget_is_as_logged_where_nobody_knows_the_length(tmp_path: Path) -> None:
    run = imported(table(tmp_path / "t.csv", k=0.5, spend=900, budget=1000))
    assert kept(run) == INSIDE
    assert noticed(run, "budget-above-kT") == 0


@pytest.mark.parametrize("schema", ["table", "items", "heldout", "queries", "trajectories"])
def test_every_log_of_totals_is_held_to_kt(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "log_k0.5_x.json"
    rows: list[dict[str, Any]] = []
    for i in range(ROWS):
        rows.append(
            {
                "table": {"id": f"p{i}", "k": 0.5, "spend": 900.0, "budget": 1000.0},
                "items": {
                    "id": f"p{i}",
                    "input": "",
                    "output": "",
                    "final_cum_kl_spent_per_seq": 900.0,
                    "final_budget_per_seq": 1000.0,
                },
                "heldout": {
                    "candidate_id": f"p{i}",
                    "k": 0.5,
                    "spends": [900.0],
                    "final_budgets": [1000.0],
                    "delta_inits": [-997.0],
                },
                "queries": logs.query(k=0.5, prompt_id=f"p{i}", Z=900.0, B=1000.0, n_tokens=None),
                "trajectories": {
                    "metadata": {"prompt_id": f"p{i}", "k": 0.5, "T_max": 6},
                    "prefix_analysis": {"delta_init": -997.0},
                    "per_step_log": [],
                    "aggregate": {"total_spend": 900.0, "final_budget": 1000.0},
                },
            }[schema]
        )
    path.write_text("\n".join(map(json.dumps, rows)))
    run = imported(path, schema=schema, max_new_tokens=6)
    assert noticed(run, "budget-above-kT") == ROWS
    assert kept(run) == ABOVE


def test_a_negative_debt_does_not_raise_a_budget(tmp_path: Path) -> None:
    """T is not known, but B = k T - debt, so that k T is 3."""
    cells = {"k": 0.5, "spend": 900, "final_budget": 1000, "delta_init": -997}
    run = imported(table(tmp_path / "t.csv", **cells))
    assert kept(run) == ABOVE
    assert noticed(run, "debt-negative") == ROWS


def test_two_columns_that_could_be_the_spend_are_asked_about(tmp_path: Path) -> None:
    log = table(tmp_path / "t.csv", k=1, T=9, spend="2.0", total_kl="40.0", budget="9.0")
    with pytest.raises(InputError, match="'spend' says 2, 'total_kl' says 40") as raised:
        imported(log)
    assert "--column spend=spend or --column spend=total_kl" in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    run = imported(log, columns={"spend": "total_kl"})
    assert kept(run) == ABOVE
    assert noticed(run, "spend-differs") == ROWS
    run = import_logs([log], tmp_path / "other", ImportOptions(columns={"spend": "spend"}))
    assert kept(run) == INSIDE
    assert noticed(run, "spend-differs") == ROWS


@pytest.mark.parametrize("other", ["2.0", "2.0004", "2.04", "", "n/a"])
def test_two_columns_that_agree_are_one(tmp_path: Path, other: str) -> None:
    run = imported(table(tmp_path / "t.csv", k=1, T=9, spend="2.0", total_kl=other, budget="9.0"))
    assert kept(run) == INSIDE
    assert noticed(run, "spend-differs") == 0


@pytest.mark.parametrize(
    ("spend", "final", "asked"),
    [("50.0", "9.0", True), ("5.0", "9.0", False), ("99", "9.0", False)],
)
def test_two_budgets_are_asked_about_where_they_decide(
    tmp_path: Path, spend: str, final: str, asked: bool
) -> None:
    log = table(tmp_path / "t.csv", k=1, spend=spend, budget="60.0", final_budget=final)
    if asked:
        with pytest.raises(InputError, match="--column budget=budget or --column budget=final"):
            imported(log)
        run = imported(log, columns={"budget": "final_budget"})
        assert kept(run) == ABOVE
    else:
        assert kept(imported(log)) == (INSIDE if float(spend) < 9 else ABOVE)


@pytest.mark.parametrize(
    ("totals", "verdict", "spend"),
    [
        ((2.0, 2.0001), INSIDE, 2.0),
        ((2.0, 4.0), INSIDE, 4.0),
        ((2.0, 40.0), OPEN, math.nan),
        ((30.0, 40.0), ABOVE, 40.0),
    ],
)
def test_items_with_two_totals(
    tmp_path: Path, totals: tuple[float, float], verdict: list[Kept], spend: float
) -> None:
    path = tmp_path / "anchored_1_x.json"
    names = ("final_cum_kl_spent_per_seq", "total_kl_to_safe_per_seq")
    row = dict(zip(names, totals, strict=True)) | {"final_budget_per_seq": 9.0, "output": ""}
    path.write_text(json.dumps([row | {"id": f"p{i}"} for i in range(ROWS)]))
    run = imported(path)
    assert kept(run) == verdict
    assert noticed(run, "totals-differ") == (0 if totals[1] < 3 else ROWS)
    found = next(iter(run.trajectories())).spend
    assert found == spend or (math.isnan(found) and math.isnan(spend))


def test_steps_and_totals_that_contradict_each_other_are_not_judged(tmp_path: Path) -> None:
    rows = [logs.record(f"p{i}") for i in range(ROWS)]
    for row in rows:
        row["aggregate"] |= {"total_spend": 900.0, "final_budget": 1000.0}
    run = imported(logs.write(tmp_path / "trajectories_k1_test.jsonl", *rows))
    assert kept(run) == OPEN
    findings = {finding.check: finding for finding in judge_run(run)[0].findings}
    assert findings["accounting"].verdict == Answer.SUSPECT
    assert "logged spend against the steps" in findings["accounting"].text
