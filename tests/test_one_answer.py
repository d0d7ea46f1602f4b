"""One answer: terminal, JSON, report files, page and exit status say the same of a run."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.commands import call
from tests.runs import make
from tests.test_frozen import NEW, OLD, RUNS, stored

STATUS = {"WITHIN": 0, "VIOLATED": 1, "REFUTED": 1, "INCONCLUSIVE": 3}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with what the stored runs were made of."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in make.INPUTS:
        source, copy = make.HERE / name, tmp_path / Path(name).name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    return tmp_path


def _flat(text: str) -> str:
    return " ".join(html.unescape(text).replace("\\", "").split())


def _answers(run: str, place: Path) -> dict[str, tuple[str, str]]:
    """Verdict and reason, from everything that says them of a run."""
    shown, data = call("check", run, cwd=place), call("check", run, "--json", cwd=place)
    printed = call("report", run, "--json", cwd=place)
    statuses = {shown.returncode, data.returncode, printed.returncode}
    directory = place / run / "report"
    checked, told = json.loads(data.stdout), json.loads(printed.stdout)
    report = json.loads((directory / "report.json").read_text())
    for one in (checked, told, report):
        assert list(one)[:3] == ["verdict", "why", "exit_status"]
        assert {one["exit_status"]} == statuses == {STATUS[one["verdict"]]}
    page = (directory / "index.html").read_text()
    title = re.search(r"<title>(\w+) ", page)
    lead = re.search(r'<p class="lead \w*"><span class="badge">(\w+)</span>(.*?)</p>', page, re.S)
    assert title is not None and lead is not None and title[1] == lead[1]
    head = _flat((directory / "report.md").read_text().split("\n")[2]).partition(": ")
    first = _flat(shown.stdout.split("\n\n")[0])
    return {
        "check --json": (checked["verdict"], checked["why"]),
        "report --json": (told["verdict"], told["why"]),
        "report.json": (report["verdict"], report["why"]),
        "terminal": (first.split(": ", 1)[0], first.split(": ", 1)[1]),
        "report.md": _head(head[0], head[2], checked["why"]),
        "page": _head(lead[1], _flat(lead[2]), checked["why"]),
    }


def _head(word: str, text: str, why: str) -> tuple[str, str]:
    """The word, and the reason if the text begins with it as a sentence."""
    sentence = f"{why[:1].upper()}{why[1:]}."
    return word, why if text.startswith(sentence) else text


@pytest.mark.parametrize("name", RUNS)
def test_one_run_has_one_answer_wherever_it_is_said(name: str, place: Path) -> None:
    found = _answers(stored(name, place), place)
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("name", ("search", "paper-search"))
def test_a_search_ends_as_its_directory_is_judged(name: str, place: Path) -> None:
    stored(name, place, NEW)
    words = (*make.COMMANDS[name].split(), "--out", name, "--quiet", "--mixed")
    done = call(*words, "--json", cwd=place)
    if "constant_rows" in done.stderr:
        pytest.skip("not tested here: products depend on their number of rows")
    said: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == said["exit_status"]
    # Its page is written, named, and says what the search found.
    page = place / said["report"]
    assert page.is_file() and said["why"].startswith("the search ")
    found = _answers(name, place)
    assert set(found.values()) == {(said["verdict"], said["why"])}
    shown = call(*words, cwd=place).stdout
    assert _flat(shown.split("\n\n")[0]) == f"{said['verdict']}: {said['why']}"
    assert f"report: {said['report']}" in shown


def test_a_verification_refreshes_the_page(place: Path) -> None:
    run = stored("imported", place, OLD)
    call("report", run, "--redact", cwd=place)
    page = place / run / "report" / "index.html"
    assert "have not been recomputed" in page.read_text()
    done = call("verify", run, "--quiet", "--pair", "lab", "--json", cwd=place)
    data = json.loads(done.stdout)
    assert list(data)[:3] == ["verdict", "why", "exit_status"]
    assert data["exit_status"] == done.returncode
    assert place / data["report"] == page
    shown = page.read_text()
    assert "have not been recomputed" not in shown and "executions replayed" in shown
    assert "all text is hidden (--redact)" in shown
    again = call("verify", run, "--quiet", "--pair", "lab", cwd=place).stdout
    assert again.startswith(f"{data['verdict']}: {data['why']}")
    assert f"\nreport: {data['report']}\n" in again


def test_what_a_verification_suspects_is_shown(place: Path) -> None:
    """A weight in float16 is off by more than noise and by less than a refutation."""
    run = stored("imported", place, OLD)
    call("verify", run, "--quiet", "--pair", "lab", cwd=place)
    path = place / run / "verify.json"
    from nafaudit.store.artifacts import write_verification
    from nafaudit.store.run import Run

    data = json.loads(path.read_text())
    del data["sha256"], data["journal"]
    for finding in data["findings"]:
        if finding["check"] == "replay: charge":
            k = next(iter(Run(place / run).keys())).k
            witness = {"prompt": "p", "trajectory": 0, "step": 1, "k": k}
            finding |= {
                "verdict": "SUSPECT",
                "text": "charge of each step: off",
                "witness": witness,
            }
    write_verification(Run(place / run), data)
    call("report", run, cwd=place)
    assert (
        "claims: charge SUSPECT: charge of each step: off" in call("check", run, cwd=place).stdout
    )
    report = place / run / "report"
    assert "claims: charge" in (report / "report.md").read_text()
    assert "claims: charge" in (report / "index.html").read_text()
