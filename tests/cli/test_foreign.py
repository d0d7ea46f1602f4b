from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest

from tests.commands import WITHOUT_TORCH, call
from tests.conftest import GOLDEN
from tests.store.importers.logs import every_schema, record, write

OFFICIAL = GOLDEN / "official-decoder" / "anchored.csv.gz"


def test_import_check_export_without_torch(tmp_path: Path) -> None:
    code = [sys.executable, "-c", WITHOUT_TORCH]
    log = write(
        tmp_path / "trajectories_k1_test.jsonl", *(record(f"p{i}", pads=2) for i in range(25))
    )
    done = call("import", log, "--out", "r", cwd=tmp_path, code=code)
    assert done.returncode == 0, done.stderr
    assert "25 trajectories, 125 steps, 25 prompts (trajectories)" in done.stdout
    assert "50 x pad-tail: step after the row's end" in done.stdout
    assert f"(first: {log}:1)" in done.stdout
    done = call("check", "r", "--json", cwd=tmp_path, code=code)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["verdicts"][0]["kept"] == "WITHIN"
    noticed = {f["check"]: f["value"] for f in data["findings"] if f["k"] is None}
    assert noticed["import: pad-tail"] == 50
    assert "in the files: 50 x pad-tail" in done.stderr
    done = call("export", "r", "--out", "e", cwd=tmp_path, code=code)
    assert done.stdout == "e/trajectories_k1_test.jsonl\nnext: nafaudit checklist r\n"


def test_a_log_is_checked_directly(tmp_path: Path) -> None:
    done = call("check", OFFICIAL, "--max-new-tokens", 100, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["run"] == str(OFFICIAL)
    assert [v["trajectories"] for v in data["verdicts"]] == [327] * 7
    assert list(tmp_path.iterdir()) == []
    assert "read from:" in call("check", OFFICIAL, cwd=tmp_path).stdout


def test_a_table_of_several_mechanisms_names_them(tmp_path: Path) -> None:
    logs = every_schema(tmp_path / "logs")
    done = call("check", logs["table"], logs["items"], cwd=tmp_path)
    assert done.returncode == 3
    assert "clip k = 0.5" in done.stdout
    assert "table risky only" in done.stdout


def test_an_overspending_table_exits_with_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who,k,kl,final_budget\na,1,9.5,9\n")
    done = call("check", "t.csv", "--column", "spend=kl", "--column", "id=who", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    # Of totals there is no step to name.
    assert "(prompt 'a', trajectory 0)" in re.sub(r"\s+", " ", done.stdout)
    words = ("check", "t.csv", "--column", "spend=kl", "--column", "id=who", "--json")
    found = json.loads(call(*words, cwd=tmp_path).stdout)["findings"]
    assert {f["witness"]["step"] for f in found if f["witness"]} == {None}


def test_a_budget_above_kt_is_said_and_asked_about(tmp_path: Path) -> None:
    rows = "".join(f"p{i},0.5,6,900,1000\n" for i in range(25))
    (tmp_path / "t.csv").write_text(f"id,k,T,spend,budget\n{rows}")
    done = call("check", "t.csv", "--json", cwd=tmp_path)
    assert done.returncode == 3
    assert "in the files: 25 x budget-above-kT" in done.stderr
    found = {f["check"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["import: budget-above-kT"]["verdict"] == "SUSPECT"
    assert found["invariant"]["numbers"] == {"budgets_above_kT": 25, "contested": 25}
    shown = " ".join(call("check", "t.csv", cwd=tmp_path).stdout.split())
    for text in (found["invariant"]["text"], shown):
        assert "25 of 25 trajectories cannot be judged" in text
        assert "25 state a budget above k T" in text
        assert "--ledger banking" in text
        assert "--ledger unknown" in text
    assert call("check", "t.csv", "--ledger", "banking", cwd=tmp_path).returncode == 1
    assert call("check", "t.csv", "--ledger", "unknown", cwd=tmp_path).returncode == 0


def test_two_spends_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,k,spend,total_kl,budget\na,1,2.0,40.0,9\n")
    for command in (["check", "t.csv"], ["import", "t.csv", "--out", "r"]):
        done = call(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert "--column spend=spend or --column spend=total_kl" in " ".join(done.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    assert call("check", "t.csv", "--column", "spend=total_kl", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["import", "nothing.csv", "--out", "r"], "nothing.csv: cannot be read"),
        (["import", "t.csv", "--out", "r"], "t.csv:2: no known log"),
        (["import", "t.csv", "--column", "spend", "--out", "r"], "column must be OURS=THEIRS"),
        (["import", "t.csv", "--k", "-3", "--out", "r"], "k must be at least 0"),
        (["import", "t.csv", "--ledger", "bank", "--out", "r"], "ledger must be one of banking"),
        (["import", "t.csv", "--mechanism", "../x", "--out", "r"], "a path out of its directory"),
        (["check", "nowhere"], "nowhere does not exist"),
        (["check", "t.csv", "t.csv"], "t.csv:2: no known log"),
    ],
)
def test_bad_input_exits_with_two(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "t.csv").write_text("who,kl\na,9.5\n")
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_import_reports_as_json(tmp_path: Path) -> None:
    done = call("import", OFFICIAL, "--out", "r", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert data["trajectories"] == 2289
    assert data["not_kept"] == {
        "output_words": 2289,
        "total_kl_to_risky": 2289,
        "total_kl_to_safe": 2289,
    }


def test_a_log_has_class_tables_too(tmp_path: Path) -> None:
    rows = [record(f"{label}{i}", n) for label in "ab" for i in range(25) for n in range(2)]
    for row in rows:
        row["metadata"]["split"] = row["metadata"]["prompt_id"][0]
    log = write(tmp_path / "trajectories.jsonl", *rows)
    told = json.loads(call("check", log, "--json", cwd=tmp_path).stdout)["classes"]
    assert [(row["class"], row["trajectories"], row["prompts"]) for row in told] == [
        ("a", 50, 25), ("b", 50, 25),
    ]  # fmt: skip
    assert told[0]["U_EBB"] is None
    assert told[0]["U_EBB_eff"]["holds"] is False
    assert told[0]["upper"]["n"] == 25
    assert told[0]["mean"] == pytest.approx(rows[0]["aggregate"]["total_spend"])
    assert told[0]["overlap"]["unscored"] == 50
    size = ["--vocabulary-size", 128256]
    told = json.loads(call("check", log, "--json", *size, cwd=tmp_path).stdout)["classes"]
    assert told[0]["R"] == pytest.approx(8 * math.log(128256))
    assert told[0]["U_EBB"]["delta"] == 0.05 / 2
    done = call("check", log.name, *size, cwd=tmp_path)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "a*" in done.stdout


@pytest.mark.parametrize(("size", "why"), [(1, "at least 2"), (-3, "at least 2"), (12, "token 1")])
def test_a_vocabulary_that_cannot_be_is_refused(tmp_path: Path, size: int, why: str) -> None:
    log = write(tmp_path / "trajectories.jsonl", record())
    done = call("check", log, "--vocabulary-size", size, cwd=tmp_path)
    assert done.returncode == 2
    assert why in done.stderr


def test_a_log_that_lacks_its_budget_is_answered_with_the_option_to_paste(tmp_path: Path) -> None:
    rows = "".join(f"p{i},1,3.5,40\n" for i in range(20))
    (tmp_path / "t.csv").write_text(f"prompt_id,k,total_kl,cap\n{rows}")
    said = call("check", "t.csv", cwd=tmp_path)
    assert said.returncode == 3 and "--column budget=cap" in said.stderr
    assert "--ledger banking" in " ".join(said.stdout.split())
    again = call("check", "t.csv", "--column", "budget=cap", cwd=tmp_path)
    assert again.returncode == 0 and "--column budget=cap" not in again.stderr


def test_a_log_that_no_model_can_recompute_is_not_told_to_verify(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("prompt_id,k,total_kl,budget\na,1,3.5,40\n")
    call("import", "t.csv", "--out", "run", cwd=tmp_path)
    call("report", "run", cwd=tmp_path)
    said = (tmp_path / "run" / "report" / "report.md").read_text()
    assert "nafaudit verify ." not in said and "cannot be: the log has no steps" in said


def test_check_takes_one_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    done = call("check", "a", "b", cwd=tmp_path)
    assert done.returncode == 2
    assert "check takes one run, or several log files" in done.stderr
