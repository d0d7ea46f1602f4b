"""The published decoder's own numbers: 6,867 sequences of three rules at seven budgets."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from nafaudit.core.errors import InputError
from nafaudit.core.finding import Kept
from nafaudit.core.trajectory import Arm
from nafaudit.measures import verdicts
from nafaudit.measures.table import Measures
from nafaudit.store.artifacts import import_report
from nafaudit.store.importers import ImportOptions, import_logs
from nafaudit.store.run import Run
from tests.conftest import GOLDEN
from tests.records import judge_run

LOGS = sorted((GOLDEN / "official-decoder").glob("*.csv.gz"))
BUDGETS = (0.001, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("official") / "run"
    return import_logs(LOGS, out, ImportOptions(max_new_tokens=100))


def test_no_sequence_exceeds_its_budget(run: Run) -> None:
    arms = judge_run(run)
    assert {arm.mechanism for arm in arms} == {"anchored", "clip", "renyi2"}
    assert len(arms) == 21
    assert sum(arm.trajectories for arm in arms) == 6867 == run.asked
    assert sum(arm.violations or 0 for arm in arms) == 0
    assert {arm.kept for arm in arms} == {Kept.WITHIN}


def test_mean_spend_by_budget(run: Run) -> None:
    spend = {a.k: a.spend.mean for a in judge_run(run) if a.mechanism == "anchored"}
    expected = (0.0, 3.30, 41.54, 82.97, 123.82, 128.76, 129.10)
    assert tuple(spend) == BUDGETS
    assert tuple(spend.values()) == pytest.approx(expected, abs=0.005)


def test_debts(run: Run) -> None:
    debts = [t.debt for t in run.trajectories()]
    assert math.fsum(debts) / len(debts) == pytest.approx(6.640, abs=5e-4)
    assert min(debts) == pytest.approx(2.556, abs=5e-4)
    assert max(debts) == pytest.approx(12.136, abs=5e-4)


def test_sequences_that_never_leave_the_anchor(run: Run) -> None:
    rows = Measures.of_run(run)
    broke = {k: sum(r.budget <= 0 for r in rows.of_arm(Arm("anchored", k))) for k in BUDGETS}
    assert [broke[k] for k in BUDGETS[:3]] == [327, 14, 0]


def test_what_was_noticed(run: Run) -> None:
    report = import_report(run)
    assert report is not None
    kinds = {note["kind"]: note["count"] for note in report["notes"]}
    assert kinds["debt-derived"] == 6867
    assert "utilisation-differs" not in kinds
    assert kinds["percent"] > 5000


def test_without_the_length_limit_the_debt_is_unknown(tmp_path: Path) -> None:
    run = import_logs(LOGS[:1], tmp_path / "run")
    assert all(math.isnan(t.debt) for t in run.trajectories())
    assert {arm.kept for arm in judge_run(run)} == {Kept.WITHIN}


def test_a_limit_that_was_typed_too_small_accuses_nobody(tmp_path: Path) -> None:
    options = ImportOptions(max_new_tokens=50)
    rows = Measures.of_run(import_logs(LOGS[:1], tmp_path / "run", options))
    assert not any(row.violated for row in rows)
    open_ = [arm.arm for arm in verdicts.judge(rows) if arm.kept == Kept.INCONCLUSIVE]
    assert open_
    for arm in open_:
        unjudged = [row.contested for row in rows.of_arm(arm) if not row.judged]
        assert unjudged and all(unjudged)


def test_a_tampered_table_is_caught(tmp_path: Path) -> None:
    import gzip

    lines = gzip.decompress(LOGS[0].read_bytes()).decode().split("\n")
    cells = lines[400].split(",")
    cells[5] = repr(float(cells[6]) + 0.002)
    lines[400] = ",".join(cells)
    path = tmp_path / "anchored.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="two columns could be the spend"):
        import_logs([path], tmp_path / "run")
    options = ImportOptions(columns={"spend": "final_cum_kl_spent"})
    arms = judge_run(import_logs([path], tmp_path / "run", options))
    assert sum(arm.violations or 0 for arm in arms) == 1
