"""Texts and scores of other people's logs are kept, rescored, and compared with what is claimed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nafaudit.core.errors import StoreError
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.measures.audit import AuditResult
from nafaudit.paper.files import paper_scores, write_paper_files
from nafaudit.paper.proxy import PromptSpends, ProxyRow
from nafaudit.store.artifacts import PASSAGES, TEXTS, read_texts, write_passages
from nafaudit.store.export import export_run
from nafaudit.store.importers import ImportOptions, import_logs
from nafaudit.store.run import Run
from tests.commands import call
from tests.conftest import GOLDEN
from tests.store.importers.logs import candidate, record, write

FORK = sorted((GOLDEN / "fork").glob("*_literal_gen.json"))
WORDS = "one two three four five six seven eight nine ten"
K3 = ImportOptions(k=3.0, max_new_tokens=200)


def findings(run: Run, check: str) -> list[Any]:
    return [one.finding(check) for one in AuditResult.of(run).arms]


def with_text(output: str, reference: str, **scores: float) -> dict[str, Any]:
    row = record()
    row["aggregate"] |= {"generation": output, **scores}
    return row | {"source_record": {"reference": reference}}


def test_outputs_of_the_public_fork_are_judged_for_copying(tmp_path: Path) -> None:
    run = import_logs(FORK, tmp_path / "run", ImportOptions(max_new_tokens=100))
    little, much = findings(run, "copying")
    assert (little.verdict, much.verdict) == ("INFO", "INFO")
    # Three words at k = 0.5, the whole reference of thirty at k = 20.
    assert (little.numbers["substring_words_max"], much.numbers["substring_words_max"]) == (3, 30)
    assert (little.value, much.value) == (0, 1)
    assert "reference" not in json.loads((run.path / "import.json").read_text())["not_kept"]


def test_the_texts_are_hidden_where_text_is_hidden(tmp_path: Path) -> None:
    call("import", *FORK, "--max-new-tokens", 100, "--out", "run", cwd=tmp_path)
    text = json.loads(FORK[1].read_text())[0]["output"][:40]
    for hide in ([], ["--redact"]):
        shown = call("report", "run", "--record", "lab_0@20#0", *hide, cwd=tmp_path).stdout
        assert (text in shown) is not bool(hide)
    call("report", "run", "--redact", "--figures", cwd=tmp_path)
    for path in (tmp_path / "run" / "report").rglob("*.*"):
        assert text not in path.read_text(errors="ignore")


def test_scores_of_the_papers_logs_are_compared_with_their_texts(tmp_path: Path) -> None:
    output, reference = WORDS + " and more", WORDS
    right = paper_scores(output, reference)._asdict()
    log = write(tmp_path / "a_k1.jsonl", with_text(output, reference, **right))
    (found,) = findings(import_logs([log], tmp_path / "right"), "log: rouge_l")
    assert (found.verdict, found.numbers) == ("FINE", {"compared": 1})
    wrong = right | {"rouge_l": right["rouge_l"] / 2}
    log = write(tmp_path / "b_k1.jsonl", with_text(output, reference, **wrong))
    run = import_logs([log], tmp_path / "wrong")
    (found,) = findings(run, "log: rouge_l")
    assert (found.verdict, found.numbers) == ("SUSPECT", {"compared": 1, "differ": 1})
    # What is shown is recomputed, whatever the log claims.
    (row,) = AuditResult.of(run).rows
    assert row.overlap.rouge_l_f1 == pytest.approx(right["rouge_l"])


def test_scores_without_texts_are_taken_from_the_log_and_said_to_be(tmp_path: Path) -> None:
    rows = [record("a"), record("neutral")]
    for row, score in zip(rows, (0.09, 0.0), strict=True):
        row["aggregate"] |= {"generation": None, "rouge_l": score, "minhash_5gram": score / 9}
    run = import_logs([write(tmp_path / "a_k1.jsonl", *rows)], tmp_path / "run")
    scored, unscored = AuditResult.of(run).rows
    assert scored.overlap.rouge_l_f1 == 0.09
    assert not unscored.overlap.scored  # the paper writes 0 where it has no reference
    (found,) = findings(run, "copying")
    assert found.verdict == "UNKNOWN" and "as the log claims" in found.text


def test_stage_2_claims_are_recomputed(tmp_path: Path) -> None:
    spends, budget = (150.0, 180.0, 170.0, 237.4), 594.0
    row = ProxyRow(PromptSpends("c1", spends, (budget,) * 4), 600.0)
    claims = {"U_EBB": row.upper, "rho": row.rho, "certified": row.certified}
    true = candidate(
        N=4, spends=list(spends), final_budgets=[budget] * 4, delta_inits=[6.0] * 4,
        effective_budget_min=budget, **claims,
    )  # fmt: skip
    run = import_logs([write(tmp_path / "a.jsonl", true)], tmp_path / "true", K3)
    for name in claims:
        assert [one.verdict for one in findings(run, f"log: {name}")] == ["FINE"]
    false = true | {"rho": 0.4, "certified": True}
    run = import_logs([write(tmp_path / "b.jsonl", false)], tmp_path / "false", K3)
    assert [one.verdict for one in findings(run, "log: rho")] == ["SUSPECT"]


def test_a_round_trip_keeps_texts_and_what_a_budget_is_worth(tmp_path: Path) -> None:
    log = write(tmp_path / "a_k1.jsonl", *(with_text(f"{WORDS} {i}", WORDS) for i in range(3)))
    run = import_logs([log], tmp_path / "run")
    scores = PassageScores("its prompt", "safe", (ScoredPassage("p", 8, (9.0,) * 8),))
    write_passages(run.path / PASSAGES, scores)
    before = AuditResult.of(run)
    assert [arm.worth for arm in before.arms] == ["INFORMATIVE"]
    exports = {"export": export_run(run, tmp_path / "export")}
    exports["paper"] = write_paper_files(run, tmp_path / "paper")
    for name, files in exports.items():
        assert tmp_path / name / "nafaudit" / PASSAGES in files
        back = import_logs(sorted((tmp_path / name).glob("*.jsonl")), tmp_path / f"back-{name}")
        after = AuditResult.of(back)
        assert read_texts(back).texts == read_texts(run).texts
        assert [arm.worth for arm in after.arms] == ["INFORMATIVE"]
        # By their words: from Python 3.13 on NaN makes two equal dataclasses differ.
        assert [repr(row.overlap) for row in after.rows] == [
            repr(row.overlap) for row in before.rows
        ]
    # The passages of any certificate can be named with foreign logs.
    bare = import_logs([log, run.path / PASSAGES], tmp_path / "named")
    assert [arm.worth for arm in AuditResult.of(bare).arms] == ["INFORMATIVE"]


def test_runs_of_older_imports_are_read_and_edited_texts_are_not(tmp_path: Path) -> None:
    run = import_logs(FORK, tmp_path / "run", ImportOptions(max_new_tokens=100))
    path, report = run.path / TEXTS, run.path / "import.json"
    path.write_bytes(path.read_bytes().replace(b"nothing", b"Nothing", 1))
    with pytest.raises(StoreError, match="not what was imported"):
        AuditResult.of(run)
    told = json.loads(report.read_text())
    del told["texts"]
    report.write_text(json.dumps(told))
    path.unlink()
    assert findings(run, "copying")[0].verdict == "UNKNOWN"
    assert replace(AuditResult.of(run).context).logged.texts == {}
