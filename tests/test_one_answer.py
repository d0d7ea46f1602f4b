"""One answer: terminal, JSON, report files, page and exit status say the same of a run."""

from __future__ import annotations

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nafaudit.cli.main import VERBS
from nafaudit.core.trajectory import Trajectory
from nafaudit.workload import Prompt
from tests.commands import call
from tests.handmade import REFERENCE, WORDS, executions, make_run
from tests.runner.forge import without
from tests.runs import make
from tests.selftest import broken
from tests.test_frozen import NEW, OLD, RUNS, stored

# Whatever the command, a word has one exit status.
STATUS = {
    **{"WITHIN": 0, "VIOLATED": 1, "REFUTED": 1, "INCONCLUSIVE": 3, "FINE": 0, "FAILED": 1},
    **{"INFORMATIVE": 0, "VACUOUS": 0, "MEASURED": 0, "ENOUGH": 0, "TOO FEW": 0, "PASSED": 0},
    **{"CONFORMS": 0, "BROKEN": 1, "ANSWERED": 0, "RECOMPUTED": 0},
}
# What these commands print is no answer to a question about a decoder.
SILENT = {"import", "export", "mechanisms", "lab", "schema"}


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
    assert _flat(call("report", run, cwd=place).stdout.split("\n\n")[0]) == first
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
    assert "have not been recomputed" not in shown and "trajectories replayed" in shown
    assert "all text is hidden (--redact)" in shown
    again = call("verify", run, "--quiet", "--pair", "lab", cwd=place).stdout
    assert again.startswith(f"{data['verdict']}: {data['why']}")
    assert f"\nreport: {data['report']}\n" in again
    # One that looks at less does not take its place.
    less = call("verify", run, "--quiet", "--pair", "lab", "--sample", 3, "--json", cwd=place)
    assert json.loads(less.stdout)["replayed"] == 3 and json.loads(less.stdout)["file"] is None
    assert json.loads((place / run / "verify.json").read_text())["replayed"] == data["replayed"]


def _says(place: Path, *words: object, file: str = "") -> str:
    """The verdict of a command that terminal, JSON, exit status and its file agree on."""
    shown, data = call(*words, cwd=place), call(*words, "--json", cwd=place)
    said = json.loads(data.stdout)
    assert list(said)[:3] == ["verdict", "why", "exit_status"], (words, data.stderr)
    first = f"{said['verdict']}: {said['why']}"
    assert _flat(shown.stdout.split("\n\n")[0]) == _flat(first)
    assert shown.returncode == data.returncode == said["exit_status"] == STATUS[said["verdict"]]
    if file:
        written = json.loads((place / file).read_text())
        assert list(written.items())[:3] == list(said.items())[:3]
    return str(said["verdict"])


def test_every_command_that_judges_is_tried_here() -> None:
    tried = {word for line in make.COMMANDS.values() for word in line.split()[:1]}
    tried |= set(re.findall(r'\("(\w+)",', Path(__file__).read_text()))
    tried |= set(re.findall(r'_says\(\w+, "(\w+)"', Path(__file__).read_text()))
    # tests/paper/test_whole.py holds the answer of the whole paper.
    assert set(VERBS) - SILENT - {"paper run"} <= tried


def test_a_comparison_has_one_answer(place: Path) -> None:
    own, later = stored("own", place), stored("own", place, NEW, "later")
    assert _says(place, "compare", own, later, "--out", "c", file="c/compare.json") == "FINE"
    page, text = (place / "c" / f"compare.{kind}" for kind in ("html", "md"))
    first = _flat(call("compare", own, later, cwd=place).stdout.split("\n\n")[0])
    lead = re.search(
        r'<p class="lead good"><span class="badge">(\w+)</span> (.*?)</p>', page.read_text()
    )
    assert lead is not None and f"{lead[1]}: {_flat(lead[2])}" == first
    assert f"<title>{lead[1]} " in page.read_text()
    assert _flat(text.read_text().split("\n")[2]) == first
    shown = call("compare", own, later, "--out", "c", cwd=place).stdout
    assert shown.endswith("c/compare.html\nnext: open c/compare.html in a browser\n")
    # An unfinished run decides nothing.
    without(place / "later", place / "halved", lambda key: key.trajectory == 1)
    assert _says(place, "compare", own, "halved") == "INCONCLUSIVE"
    assert _says(place, "checklist", "halved") == "INCONCLUSIVE"


def test_a_new_violation_is_the_answer_of_a_comparison(tmp_path: Path) -> None:
    def over(one: Trajectory) -> Trajectory:
        steps = one.steps
        return replace(one, steps=replace(steps, charge=steps.charge * 9))

    sound = [one for n in range(24) for one in executions(f"p{n}", 0, 8, len(WORDS))]
    prompts = [Prompt(f"p{n}", f"Once upon {n}", "story", REFERENCE) for n in range(24)]
    make_run(tmp_path / "a", prompts, sound)
    make_run(tmp_path / "b", prompts, [over(one) for one in sound])
    assert _says(tmp_path, "compare", "a", "b") == "VIOLATED"


@pytest.mark.parametrize(("name", "verb"), [("certificate", "certify"), ("frontier", "frontier")])
def test_what_follows_text_has_one_answer(name: str, verb: str, place: Path) -> None:
    words = (*make.COMMANDS[name].split(), "--out", "f", "--quiet")
    assert words[0] == verb
    expected = {"certify": "INFORMATIVE", "frontier": "MEASURED"}[verb]
    assert _says(place, *words, file=f"f/{name}.json") == expected


def test_text_that_the_risky_model_does_not_know_is_inconclusive(place: Path) -> None:
    (place / "new.txt").write_text("zyx wvu tsr qpo nml kji hgf edc ba. " * 6)
    (place / "ordinary.txt").write_text("The weather was fine and the street was quiet. " * 6)
    words = ("frontier", "new.txt", "--ordinary", "ordinary.txt", "--k", 1, "--out", "f", "--quiet")
    assert _says(place, *words, file="f/frontier.json") == "INCONCLUSIVE"


def test_an_attack_has_one_answer(place: Path) -> None:
    stored("attack", place, NEW)
    words = (*make.COMMANDS["attack"].split(), "--out", "attack", "--quiet", "--mixed")
    if "constant_rows" in call(*words, cwd=place).stderr:
        pytest.skip("not tested here: products depend on their number of rows")
    assert _says(place, *words, file="attack/attack.json") == "INCONCLUSIVE"


@pytest.mark.usefixtures("forked_decoders")
@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ("ENOUGH", ("plan", "--seconds", 0)),
        ("TOO FEW", ("plan", "--seconds", 0, "--limit", 3, "--trajectories", 2)),
        ("RECOMPUTED", ("paper",)),
        ("ANSWERED", ("checklist", "--paper")),
        ("CONFORMS", ("conform", "best-of-n:2")),
        ("BROKEN", ("conform", f"{broken.__file__}:Raises", "--timeout", 60)),
    ],
)
def test_what_judges_no_run_has_one_answer(
    expected: str, words: tuple[object, ...], place: Path
) -> None:
    assert _says(place, *words) == expected


@pytest.mark.parametrize(("alarms", "expected"), [(0, "PASSED"), (40, "FAILED")])
def test_a_self_test_has_one_answer(
    alarms: int, expected: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nafaudit.selftest import run
    from tests.selftest.test_run import found_of

    monkeypatch.setattr(run, "selftest", lambda **_: found_of(alarms=alarms))
    assert _says(place, "selftest", "--out", "s.json", file="s.json") == expected
