"""What CI reads: JUnit files, thresholds, the summary of a job, and the page on them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import xmlschema
import yaml

from nafaudit.core.finding import (
    CheckWord,
    Finding,
    Kept,
    Overall,
    Thresholds,
    Witness,
    Worth,
)
from nafaudit.core.trajectory import Key
from nafaudit.views.junit import Case, Suite, _case, junit
from tests.commands import call, typed
from tests.conftest import GOLDEN
from tests.runs import make
from tests.test_frozen import NEW, RUNS, stored

ROOT = Path(__file__).resolve().parents[2]
LOG = GOLDEN / "official-decoder" / "anchored.csv.gz"
SHAPE = xmlschema.XMLSchema(Path(__file__).with_name("junit.xsd"))


def _read(path: Path) -> ElementTree.Element:
    """A file that has the shape, and whose counts are those of its cases."""
    SHAPE.validate(path)
    root = ElementTree.parse(path).getroot()
    for suite in root:
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
        for count, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[count]) == len(suite.findall(f"testcase/{kind}"))
    return root


def _problems(root: ElementTree.Element) -> int:
    return len(root.findall(".//failure")) + len(root.findall(".//error"))


@pytest.mark.parametrize("name", RUNS)
def test_a_junit_file_has_a_problem_exactly_if_the_exit_status_is_not_0(
    name: str, tmp_path: Path
) -> None:
    run = stored(name, tmp_path)
    done = call("check", run, "--json", "--junit", "junit.xml", cwd=tmp_path)
    root, said = _read(tmp_path / "junit.xml"), json.loads(done.stdout)
    assert (_problems(root) == 0) == (done.returncode == 0)
    # A suite for each budget with all of its findings, then the answer.
    *suites, last = root
    arms = [suite for suite in suites if suite.attrib["name"] != "the log"]
    assert [_facts(suite)["kept"] for suite in arms] == [one["kept"] for one in said["verdicts"]]
    checks = [case.attrib["name"] for suite in suites for case in suite.findall("testcase")]
    assert checks == [one["check"] for one in said["findings"]]
    answer = last.find("testcase")
    assert answer is not None and last.attrib["name"] == "answer"
    assert {0: None, 1: "failure", 3: "error"}[done.returncode] == next(
        (one.tag for one in answer), None
    )
    assert f"{said['verdict']}: {said['why']}" in (last.findtext("system-out") or "")


def _facts(suite: ElementTree.Element) -> dict[str, str]:
    return {one.attrib["name"]: one.attrib["value"] for one in suite.findall(".//property")}


def test_a_violation_is_a_failure_with_its_witness(tmp_path: Path) -> None:
    run = stored("violated", tmp_path)
    assert call("check", run, "--junit", "junit.xml", cwd=tmp_path).returncode == 1
    failures = _read(tmp_path / "junit.xml").findall(".//failure")
    assert any("VIOLATED" in one.attrib["message"] for one in failures)
    assert any("trajectory" in one.attrib["message"] for one in failures)


def test_hostile_text_is_text_in_a_junit_file(tmp_path: Path) -> None:
    evil = "]]><x a='\"'>&amp;\x00\x1b[31m\ud800\ufffe\u202e"
    witness = Witness(Key(evil, "m", 1.0, 0), 3)
    case = _case(Finding(evil, CheckWord.FAILED, 1.0, evil, witness), [])
    (tmp_path / "evil.xml").write_bytes(
        junit("nafaudit check", [Suite(evil, [case, Case("", "NO", "", "error")], {"a": evil})])
    )
    root = _read(tmp_path / "evil.xml")
    assert root.find(".//x") is None
    said = root.findall(".//failure")[0].text or ""
    assert "]]><x a='\"'>&amp;" in said and "⟨0000⟩⟨001B⟩[31m" in said


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        (Thresholds(), Overall(Kept.WITHIN, "w", 0), ("WITHIN", 0)),
        (Thresholds(("suspect",)), Overall(Kept.WITHIN, "w", 0), ("SUSPECT", 1)),
        (Thresholds(("suspect",)), Overall(Kept.INCONCLUSIVE, "w", 3), ("SUSPECT", 1)),
        (Thresholds(("suspect",)), Overall(Kept.VIOLATED, "w", 1), ("VIOLATED", 1)),
        (Thresholds(("vacuous", "suspect")), Overall(Kept.WITHIN, "w", 0), ("SUSPECT", 1)),
        (Thresholds(("idle",)), Overall(Kept.WITHIN, "w", 0), ("WITHIN", 0)),
        (Thresholds((), 30), Overall(Kept.WITHIN, "w", 0), ("WITHIN", 0)),
        (Thresholds((), 31), Overall(Kept.WITHIN, "w", 0), ("INCONCLUSIVE", 3)),
        (Thresholds((), 31), Overall(Kept.REFUTED, "w", 1), ("REFUTED", 1)),
        (Thresholds(("suspect",), 31), Overall(Kept.WITHIN, "w", 0), ("SUSPECT", 1)),
    ],
)
def test_thresholds_decide_the_answer(
    asked: Thresholds, answer: Overall, expected: tuple[str, int]
) -> None:
    found = {CheckWord.SUSPECT: "copying is SUSPECT at k = 1", Worth.INFORMATIVE: "worth"}
    decided = asked.decide(
        answer, {str(k): v for k, v in found.items()}, {"k = 1": 30, "k = 3": 40}
    )
    assert (decided.verdict, decided.exit_status) == expected


@pytest.mark.parametrize(
    ("name", "words", "verdict", "status"),
    [
        ("own", ("--fail-on", "suspect,idle,vacuous"), "WITHIN", 0),
        ("own", ("--min-executions", 1000), "INCONCLUSIVE", 3),
        ("attack", (), "INCONCLUSIVE", 3),
        ("attack", ("--fail-on", "suspect"), "INCONCLUSIVE", 3),
        ("attack", ("--fail-on", "idle"), "INCONCLUSIVE", 3),  # two answers of a budget
        ("attack", ("--fail-on", "vacuous,idle"), "VACUOUS", 1),
        # How a log was read is no doubt about it.
        ("log", ("--max-new-tokens", 100, "--fail-on", "suspect"), "WITHIN", 0),
        ("repeats", ("--max-new-tokens", 100, "--fail-on", "suspect"), "SUSPECT", 1),
        ("repeats", ("--max-new-tokens", 100, "--min-executions", 25), "INCONCLUSIVE", 3),
    ],
)
def test_terminal_json_file_and_exit_status_agree_on_thresholds(
    name: str, words: tuple[object, ...], verdict: str, status: int, tmp_path: Path
) -> None:
    run: Path | str
    if name == "repeats":
        run = tmp_path / "repeats.csv"
        run.write_text("prompt_id,k,spend,budget\n" + "p,1,7.25,100\n" * 24)
    else:
        run = LOG if name == "log" else stored(name, tmp_path, NEW)
    shown = call("check", run, *words, "--junit", "a.xml", cwd=tmp_path)
    data = call("check", run, *words, "--json", "--junit", "b.xml", cwd=tmp_path)
    said = json.loads(data.stdout)
    assert (said["verdict"], said["exit_status"]) == (verdict, status), said["why"]
    assert shown.returncode == data.returncode == status
    assert " ".join(shown.stdout.split()).startswith(f"{verdict}: {said['why'][:40]}")
    for file in ("a.xml", "b.xml"):
        root = _read(tmp_path / file)
        assert (_problems(root) == 0) == (status == 0)
        # Hostile or not, white space of the answer is that of the file.
        assert root[-1].findtext("system-out") == f"answer: {verdict}: {said['why']}"


def test_what_is_asked_of_ci_is_checked_before_work(tmp_path: Path) -> None:
    for words, said in (
        (("--junit", "no/junit.xml"), "junit no/junit.xml cannot be written"),
        (("--junit", "."), "name a file in an existing directory"),
        (("--fail-on", "suspekt"), "did you mean 'suspect'"),
        (("--min-executions", 5), "min-executions must be at least 20, got 5"),
    ):
        for command in ("run", "check", "verify"):
            done = call(command, *words, cwd=tmp_path)
            assert done.returncode == 2 and said in done.stderr, done.stderr
    done = call("verify", "--fail-on", "idle", cwd=tmp_path)
    assert done.returncode == 2 and "a verification can be suspect only" in done.stderr


def test_a_junit_file_that_cannot_be_written_fails_the_command_and_leaves_the_old(
    tmp_path: Path,
) -> None:
    run = stored("own", tmp_path, NEW)
    place = tmp_path / "ci"
    place.mkdir()
    (place / "junit.xml").write_text("old")
    # Its temporary name is taken by a directory.
    (place / f".junit.xml.{os.getpid()}").mkdir()
    done = call("check", run, "--junit", "ci/junit.xml", cwd=tmp_path)
    assert done.returncode == 2 and "no JUnit file" in done.stderr and "WITHIN" in done.stdout
    assert (place / "junit.xml").read_text() == "old"


@pytest.mark.usefixtures("forked_decoders")
def test_verify_and_conform_write_the_same_shape(tmp_path: Path) -> None:
    run = stored("imported", tmp_path)
    for name in make.INPUTS:
        source, copy = make.HERE / name, tmp_path / Path(name).name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    words = ("--pair", "lab", "--quiet", "--sampler", 0, "--junit", "verify.xml", "--json")
    done = call("verify", run, *words, cwd=tmp_path)
    root = _read(tmp_path / "verify.xml")
    assert (_problems(root) == 0) == (done.returncode == 0)
    said = json.loads(done.stdout)
    checks = {case.attrib["name"] for case in root.findall(".//testcase")} - {"answer"}
    assert checks == {one["check"] for one in said["findings"]}
    more = ("--min-executions", 1000)
    done = call("verify", run, *words, *more, cwd=tmp_path)
    said = json.loads(done.stdout)
    if said["exit_status"] != 1:
        assert (said["verdict"], done.returncode) == ("INCONCLUSIVE", 3)
        assert "the replay has" in said["why"]
    (tmp_path / "mine.py").write_text(
        "from nafaudit.mechanisms.reference import AnchoredDecoder\n\n\n"
        "class Late(AnchoredDecoder):\n"
        "    def decode(self, requests):\n"
        "        return []\n"
    )
    done = call("conform", "mine.py:Late", "--junit", "conform.xml", cwd=tmp_path)
    root = _read(tmp_path / "conform.xml")
    assert done.returncode == 1 and _problems(root) > 1


def test_a_job_summary_is_appended_and_no_text_of_it_is_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stored("violated", tmp_path)
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for _ in range(2):
        call("check", run, cwd=tmp_path)
    text = summary.read_text()
    assert text.startswith("before\n# nafaudit") and text.count("VIOLATED: ") == 2
    assert "| budget | kept? | tested? | worth? |" in text
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "summary.md"))
    done = call("check", run, cwd=tmp_path)
    assert done.returncode == 1 and "no job summary" in done.stderr


EXAMPLE = ROOT / "examples" / "ci"


def _blocks(kind: str) -> list[str]:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.M | re.S)


def test_the_page_shows_the_example_as_it_is_run() -> None:
    assert _blocks("yaml") == [(EXAMPLE / "nafaudit.yml").read_text(encoding="utf-8")]
    assert _blocks("python") == [(EXAMPLE / "test_decoder.py").read_text(encoding="utf-8")]


def _workflow() -> list[str]:
    """The commands of the workflow, as a shell would get them."""
    data = yaml.safe_load((EXAMPLE / "nafaudit.yml").read_text(encoding="utf-8"))
    assert list(data["jobs"]) == ["audit"]
    steps = data["jobs"]["audit"]["steps"]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    return [step["run"] for step in steps if "run" in step]


def test_the_commands_of_the_workflow_are_commands() -> None:
    installs = [one for one in _workflow() if one.startswith("pip install ")]
    commands = [one for one in _workflow() if one.startswith("nafaudit ")]
    assert len(installs) == len(commands) == 2 and len(_workflow()) == 4
    with contextlib.chdir(EXAMPLE):
        assert [type(typed(one)).__name__ for one in commands] == [
            "ConformSettings",
            "GatedRunSettings",
        ]


@pytest.mark.full
def test_the_workflow_passes_with_its_decoder_and_fails_with_a_broken_one(tmp_path: Path) -> None:
    commands = [one for one in _workflow() if one.startswith("nafaudit ")]
    source = (EXAMPLE / "decoder.py").read_text(encoding="utf-8")
    (tmp_path / "decoder.py").write_text(source)
    for line in commands:
        done = call(*shlex.split(line)[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    for name in ("conform.xml", "run.xml"):
        assert _problems(_read(tmp_path / name)) == 0
    # It forgets what it has spent.
    faulty = source.replace(" - debt - sum(charges)", " - debt")
    assert faulty != source
    (tmp_path / "decoder.py").write_text(faulty)
    for line in commands:
        done = call(*shlex.split(line)[1:], cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
    for name in ("conform.xml", "run.xml"):
        assert _problems(_read(tmp_path / name)) > 0


@pytest.mark.full
def test_the_pytest_example_passes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(EXAMPLE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0 and "14 passed" in done.stdout, done.stdout[-3000:]
