"""The head of a report: what was audited, by what, how far."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from nafaudit import __version__
from nafaudit.measures.audit import AuditResult
from nafaudit.store.run import Run
from nafaudit.views.about import GLOSSARY, VERDICTS, audit, mechanism_parts, subject, terms
from nafaudit.views.page import write_report
from tests.commands import call
from tests.runs import make
from tests.test_frozen import NEW, OLD


def head(run: str, commit: str = NEW) -> dict[str, str]:
    result = AuditResult.for_report(Run(make.HERE / commit / run))
    return {one.term: f"{one.text} {one.digest}" for one in (*subject(result), *audit(result))}


def test_a_head_names_models_mechanism_budgets_date_machine_and_scope() -> None:
    said, identity = head("own"), Run(make.HERE / NEW / "own").design["identity"]
    assert (
        said["Safe model"]
        == f"of the pair lab (a toy of nafaudit's own) {identity['pair']['safe']}"
    )
    assert (
        said["Risky model"]
        == f"of the pair lab (a toy of nafaudit's own) {identity['pair']['risky']}"
    )
    assert said["Mechanism"].startswith("anchored: built in, version 3 of its rules")
    assert said["Budgets"].strip() == (
        "k = 0.25 (K = 4), 3 (K = 48) nats a token; answers of at most T = 16 tokens"
    )
    (session,) = Run(make.HERE / NEW / "own").sessions
    date = session["started"].replace("T", " ")[:16]
    made = "" if __version__ == "0.1.0" else " (decoded with 0.1.0)"
    assert said["Audited by"].strip() == f"nafaudit {__version__}{made}, decoded on {date} UTC"
    assert session["processor"] in said["Machine"] and session["torch"] in said["Machine"]
    assert said["Scope"].startswith(
        "192 trajectories of 24 prompts in 6 classes, 96 of them by one"
    )
    assert "seed 0" in said["Scope"]
    assert "nafaudit search" in said["Not looked at"]
    assert said["Recomputed?"].startswith("No: ")


def test_a_head_says_what_each_kind_of_run_is() -> None:
    box = head("box")
    assert box["Decoder"].startswith("decoders:Fickle: a black box; debt and budgets as anchored:")
    assert box["Decoder"].endswith("44dfcfd0fa0e")
    assert "incomplete: 96 were asked for" in box["Scope"]
    # A verification by earlier rules counts as none, whatever it found.
    assert box["Recomputed?"].startswith("No: 32 of 32 trajectories replayed")
    log = head("imported", OLD)
    assert log["Log"].startswith("log/trajectories_k3_test.jsonl (trajectories) 5f817c8a")
    assert "as the log, or else its file, is named" in log["Mechanism"]
    assert log["Safe model"].strip() == "not named in the log"
    assert "date not recorded" in log["Audited by"] and "seed" not in log["Scope"]
    assert "the models alone" in log["Not looked at"]
    plugin = head("violated", OLD)["Mechanism"]
    assert plugin.startswith("halfway:HalfAndHalf: a class") and "32f6f396a904" in plugin
    assert "nafaudit search" not in head("search")["Not looked at"]
    assert "the models alone" not in head("search")["Not looked at"]
    assert "nafaudit attack" not in head("attack/single")["Not looked at"]


@pytest.mark.parametrize(
    ("mechanism", "parts"),
    [
        ("anchored:debt=positives,n=5", ("anchored", "", "debt=positives,n=5")),
        ("memfree@ab12:debt=positives,n=0", ("memfree", "ab12", "debt=positives,n=0")),
        ("a.b:C@32f6:debt=official,n=5", ("a.b:C", "32f6", "debt=official,n=5")),
        ("anchoreddecode@0.1.0-9a", ("anchoreddecode", "0.1.0-9a", "")),
        ("best-of-n:n=3", ("best-of-n", "", "n=3")),
    ],
)
def test_a_mechanism_is_a_name_a_hash_and_options(
    mechanism: str, parts: tuple[str, str, str]
) -> None:
    assert mechanism_parts(mechanism) == parts


def test_ten_words_are_explained_and_the_verdicts_of_the_run_are_among_them() -> None:
    for name in ("own", "box", "search"):
        result = AuditResult.for_report(Run(make.HERE / NEW / name))
        words = dict(terms(result))
        assert len(words) == 10 and str(result.overall.verdict) in words
        arms = [arm for arm in result.arms if not arm.baseline]
        assert {arm.kept for arm in arms} | {arm.worth for arm in arms} <= set(words)
        every = dict(GLOSSARY) | {str(word): meaning for _, word, meaning in VERDICTS}
        assert words.items() <= every.items()


def test_the_page_of_a_box_that_lost_outputs_refutes_nothing(tmp_path: Path) -> None:
    """Most of its outputs never came, so that the others were chosen."""
    run = Run(shutil.copytree(make.HERE / NEW / "box", tmp_path / "box"))
    done = call("verify", run.path, "--quiet", cwd=tmp_path)
    assert done.returncode == 3 and "those which came were chosen" in " ".join(done.stdout.split())
    page = write_report(run)[1][0].read_text()
    assert "REFUTED" not in page.split('id="words"')[0]
    # What is not known is not answered.
    assert "Yes, the limit acted" not in page and "answers were limited" not in page
    assert "<h1>Audit: decoders:Fickle</h1>" in page


def test_a_page_does_not_speak_of_baselines_that_were_not_run(tmp_path: Path) -> None:
    for name, kind in (
        ("search", "Search for prompts"),
        ("attack/chained30", "Trajectories of an"),
    ):
        run = Run(shutil.copytree(make.HERE / NEW / name, tmp_path / name))
        page = write_report(run)[1][0].read_text()
        assert "both baselines" not in page and re.search(f"<h1>{kind}", page)
