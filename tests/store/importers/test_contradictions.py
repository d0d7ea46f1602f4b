"""A log that contradicts itself is not judged in its own favour."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nafaudit.core.errors import InputError
from nafaudit.core.finding import CheckWord, Kept
from nafaudit.measures.table import Measures
from nafaudit.store.artifacts import import_report
from nafaudit.store.export import export_run
from nafaudit.store.importers import ImportOptions, import_logs
from nafaudit.store.run import Run
from tests.records import judge_run
from tests.store.importers import logs

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
        ({}, 900, OPEN),
        ({}, 1000, OPEN),
        ({}, 1001, ABOVE),
        ({}, 3, INSIDE),
        ({"ledger": "banking"}, 900, ABOVE),
        ({"ledger": "banking"}, 3, INSIDE),
        ({"ledger": "unknown"}, 900, INSIDE),
        ({"ledger": "unknown"}, 1001, ABOVE),
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
    # What the log states is kept, unless the user said that it does not count.
    stated = 3 if options.get("ledger") == "banking" else 1000
    assert {t.logged.budget for t in run.trajectories() if t.logged} == {stated}


def test_the_finding_says_what_is_contested_and_what_to_type(tmp_path: Path) -> None:
    log = table(tmp_path / "t.csv", k=0.5, T=6, spend=2, budget=1000)
    log.write_text(log.read_text().replace("p0,0.5,6,2,", "p0,0.5,6,900,"))
    finding = judge_run(imported(log))[0].finding("invariant")
    assert finding.verdict == Kept.INCONCLUSIVE
    assert f"1 of {ROWS} trajectories cannot be judged" in finding.text
    assert f"{ROWS} state a budget above k T" in finding.text
    assert "--ledger banking" in finding.text
    assert "--ledger unknown" in finding.text
    assert finding.numbers == {"budgets_above_kT": ROWS, "contested": 1}
    log.write_text(log.read_text().replace("p1,0.5,6,2,", "p1,0.5,6,1100,"))
    finding = judge_run(import_logs([log], tmp_path / "other"))[0].finding("invariant")
    assert finding.verdict == Kept.VIOLATED
    # By the larger of the two budgets, which is the least that can be said.
    assert f"1 of {ROWS} trajectories exceed their budget, the worst by 100 nats" in finding.text
    assert "--ledger banking" in finding.text
    log.write_text(log.read_text().replace("900", "2").replace("1100", "2"))
    finding = judge_run(import_logs([log], tmp_path / "third"))[0].finding("invariant")
    assert finding.verdict == Kept.WITHIN
    assert f"{ROWS} state a budget above k T" in finding.text


def test_a_limit_that_was_typed_too_small_accuses_nobody(tmp_path: Path) -> None:
    """An honest Stage 2 log of T = 200, read with --max-new-tokens 20."""
    rows = [
        {"candidate_id": f"c{i}", "k": 3, "spends": [spend], "final_budgets": [593.0],
         "delta_inits": [7.0]}
        for i, spend in enumerate([400.0, 55.0, *[10.0] * ROWS])
    ]  # fmt: skip
    log = logs.write(tmp_path / "heldout.jsonl", *rows)
    run = imported(log, max_new_tokens=20)
    assert kept(run) == OPEN
    # 55 is below k T = 60, but not below k T less the debt, which is what the bank grants.
    contested = [row for row in Measures.of_run(run) if row.contested]
    assert len(contested) == 2
    assert all(math.isnan(row.budget) for row in contested)
    for ledger, verdict in (("banking", ABOVE), ("unknown", INSIDE)):
        options = ImportOptions(max_new_tokens=20, ledger=ledger)
        assert kept(import_logs([log], tmp_path / ledger, options)) == verdict
    assert kept(import_logs([log], tmp_path / "whole", ImportOptions(max_new_tokens=200))) == INSIDE


def test_an_export_keeps_what_is_contested(tmp_path: Path) -> None:
    run = imported(table(tmp_path / "t.csv", k=0.5, T=6, spend=900, budget=1000))
    files = export_run(run, tmp_path / "out")
    again = import_logs(files, tmp_path / "again")
    assert kept(again) == OPEN
    pairs = zip(run.trajectories(), again.trajectories(), strict=True)
    assert all(one.same_as(other) for one, other in pairs)
    for ledger, verdict in (("banking", ABOVE), ("unknown", INSIDE)):
        assert kept(import_logs(files, tmp_path / ledger, ImportOptions(ledger=ledger))) == verdict


@pytest.mark.parametrize(
    ("k", "limit", "budget", "believed"),
    [
        ("0.5", 6, "3.0", True),
        ("0.5", 6, "3.0009", True),
        ("0.50", 6, "3.03", True),
        ("0.50", 6, "3.06", False),
        ("0.5", 6, "3.3", False),  # one decimal is taken for exact
        ("0.5", 6, "3.41", False),
        ("3", 31, "93", True),
        ("3", 31, "93.2", False),  # a whole number is what was asked for
        ("3.0", 31, "93.2", False),
        ("0.6", 156, "94", True),  # 93.6, rounded
        ("0.60", 156, "96", False),
        ("0.33", 300, "100", True),  # a third, rounded
        ("0.33", 300, "101.1", False),
        ("0.333", 300, "100.0", True),
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
    assert kept(run) == INSIDE


@pytest.mark.parametrize("ledger", [None, "banking"])
@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ({"k": "0.33", "T": 300, "spend": "99.9", "budget": "100"}, INSIDE),
        ({"k": "0.33", "T": 300, "spend": "92.9", "budget": "93", "delta_init": "7"}, INSIDE),
        ({"k": "0.33", "T": 300, "spend": "100.2", "budget": "100"}, ABOVE),
    ],
)
def test_a_rounded_rate_accuses_nobody(
    tmp_path: Path, ledger: str | None, cells: dict[str, Any], verdict: list[Kept]
) -> None:
    run = imported(table(tmp_path / "t.csv", **cells), ledger=ledger)
    assert kept(run) == verdict
    assert noticed(run, "budget-above-kT") == 0


def test_a_rounded_rate_is_not_rounded_up_without_need(tmp_path: Path) -> None:
    """At k = 0.33, 100 tokens grant 33; a budget of 99 at T = 300 shows no larger rate."""
    cells = {"k": "0.33", "T": 300, "n_tokens": 100, "spend": "33.2", "budget": "99"}
    run = imported(table(tmp_path / "t.csv", **cells), ledger="banking")
    assert kept(run) == ABOVE
    log = table(tmp_path / "u.csv", **cells | {"budget": "100"})
    options = ImportOptions(ledger="banking")
    assert kept(import_logs([log], tmp_path / "other", options)) == INSIDE


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
    assert kept(run) == OPEN
    for ledger, verdict in (("banking", ABOVE), ("unknown", INSIDE)):
        options = ImportOptions(schema=schema, max_new_tokens=6, ledger=ledger)
        assert kept(import_logs([path], tmp_path / ledger, options)) == verdict


@pytest.mark.parametrize(
    ("ledger", "spend", "verdict"),
    [
        (None, 900, OPEN),
        (None, 3, INSIDE),
        (None, 1001, ABOVE),
        ("banking", 900, ABOVE),
        ("unknown", 900, INSIDE),
    ],
)
def test_an_initial_credit_needs_the_users_word(
    tmp_path: Path, ledger: str | None, spend: float, verdict: list[Kept]
) -> None:
    """T is not known, but B = k T - debt, so that k T is 3."""
    cells = {"k": 0.5, "spend": spend, "final_budget": 1000, "delta_init": -997}
    run = imported(table(tmp_path / "t.csv", **cells), ledger=ledger)
    assert kept(run) == verdict
    assert noticed(run, "debt-negative") == (0 if ledger == "unknown" else ROWS)


@pytest.mark.parametrize(
    ("spend", "debt", "verdict"),
    [(30.0, -10.0, OPEN), (20.0, -10.0, INSIDE), (30.0, -1.0, ABOVE), (36.0, -10.0, ABOVE)],
)
def test_an_initial_credit_of_a_query(
    tmp_path: Path, spend: float, debt: float, verdict: list[Kept]
) -> None:
    """50 tokens at k = 0.5 grant 25, and 10 more explain a budget of 35; 1 does not."""
    rows = [
        logs.query(k=0.5, prompt_id=f"p{i}", Z=spend, B=35.0, delta_init=debt, n_tokens=50)
        for i in range(ROWS)
    ]
    assert kept(imported(logs.write(tmp_path / "queries.jsonl", *rows))) == verdict


@pytest.mark.parametrize(
    ("told", "ledger", "verdict"),
    [
        (-2.0, None, OPEN),
        (-2.0, "banking", ABOVE),
        (-2.0, "unknown", INSIDE),
        (-1.0, None, ABOVE),  # does not explain the grants
        (None, None, ABOVE),
    ],
)
def test_an_initial_credit_with_steps(
    tmp_path: Path, told: float | None, ledger: str | None, verdict: list[Kept]
) -> None:
    """Every step spends all that it is allowed, and the first one 2 nats more than k."""
    rows = []
    for i in range(ROWS):
        steps = [
            logs.step(t, charge, charge, t + 2.0 if t else 0.0, budget_so_far=t + 3.0)
            for t, charge in enumerate([3.0, 1.0, 1.0])
        ]
        row = logs.record(f"p{i}", rows=steps)
        row["prefix_analysis"] = {} if told is None else {"delta_init": told}
        rows.append(row)
    run = imported(logs.write(tmp_path / "trajectories_k1_test.jsonl", *rows), ledger=ledger)
    assert kept(run) == verdict


@pytest.mark.parametrize("field", ["prefix_debt", "init_budget_tensor", None])
def test_a_credit_that_is_only_derived_explains_nothing(tmp_path: Path, field: str | None) -> None:
    batches = []
    for i in range(ROWS):
        history = [
            {"kl_to_safe": [charge], "k_t": [charge], "bd": [0.5], "budget_so_far": [t + 3.0],
             "cum_kl_spent": [t + 3.0]}
            for t, charge in enumerate([3.0, 1.0, 1.0])
        ]  # fmt: skip
        if field:
            told = {field: [-2.0 if field == "prefix_debt" else 2.0]}
            history = [step | told for step in history]
        batches.append({"kl_stats_history": history, "ids": [f"p{i}"]})
    run = imported(logs.write(tmp_path / "history.jsonl", *batches))
    assert kept(run) == (OPEN if field else ABOVE)


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


@pytest.mark.parametrize(
    ("limit", "one", "another", "larger"),
    [
        (9, "2.0", "4.0", 4.0),  # both within
        (9, "30.0", "40.0", 40.0),  # both over
        (9, "2.0", "40.0", None),
        (9, "-1.0", "2.0", None),  # no spend is negative
        (5, "6.0", "7.0", 7.0),  # both contested: the budget is above k T
        (5, "2.0", "7.0", None),
        (5, "7.0", "40.0", None),
    ],
)
def test_two_spends_are_asked_about_where_they_decide(
    tmp_path: Path, limit: int, one: str, another: str, larger: float | None
) -> None:
    log = table(tmp_path / "t.csv", k=1, T=limit, spend=one, total_kl=another, budget="9.0")
    if larger is None:
        with pytest.raises(InputError, match="two columns could be the spend"):
            imported(log)
        return
    run = imported(log)
    assert {t.spend for t in run.trajectories()} == {larger}
    assert noticed(run, "spend-differs") == ROWS


def test_two_spends_of_a_row_that_no_budget_judges_are_not_asked_about(tmp_path: Path) -> None:
    run = imported(table(tmp_path / "t.csv", k=1, spend="2.0", total_kl="40.0"))
    assert kept(run) == OPEN
    assert {t.spend for t in run.trajectories()} == {40.0}
    # With the paper's rule the length decides.
    log = table(tmp_path / "u.csv", k=1, n_tokens=9, spend="2.0", total_kl="40.0")
    with pytest.raises(InputError, match="two columns could be the spend"):
        import_logs([log], tmp_path / "other", ImportOptions(ledger="banking"))


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
    assert findings["accounting"].verdict == CheckWord.SUSPECT
    assert "logged spend against the steps" in findings["accounting"].text
