"""What commands say of stored records does not change unseen, and old runs keep their findings.

The runs are in `tests/runs`, what is said of them in `tests/snapshots`. Nothing is decoded here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nafaudit import __version__
from nafaudit.core.design import Decoding, Identity, ImportedDecoding
from nafaudit.core.numerics import ConstantRows
from tests import snapshots
from tests.commands import call
from tests.conftest import GOLDEN
from tests.runs import make

OLD, NEW = "c049abe", "89722fc"
RUNS = [name for name in make.COMMANDS if name not in make.RESULTS]
# A black box is judged by rules that changed since: what older ones found counts as none.
OUTDATED = ("box",)
# So is an imported log; that its claims are true is found as before.
OTHERS = ("box", "imported")
# A black box is replayed each time, so that what is said of it depends on last bits.
RESUMED = ("own", "search", "paper-search", "attack")
REPORTED = ("own", "violated", "box", "imported", "sequence", "search", "paper-search")
COMMANDS = (
    *("run", "search", "check", "verify", "report", "compare", "certify", "attack", "frontier"),
    *(
        "plan",
        "import",
        "export",
        "schema",
        "conform",
        "selftest",
        "mechanisms",
        "paper",
        "checklist",
    ),
)
LAB = ("train", "workload", "digests", "memorise")

Snapshot = Callable[[str, str], None]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with what the stored runs were made of; a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in make.INPUTS:
        source, copy = make.HERE / name, tmp_path / Path(name).name
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copy(source, copy)
    return tmp_path


def stored(name: str, place: Path, commit: str = OLD, to: str | None = None) -> str:
    """Copies a stored run, and returns the name of the directory that commands take."""
    to = to or name
    shutil.copytree(make.HERE / commit / name, place / to)
    return make.RUN_OF.get(name, to)


def said(place: Path, *words: object, show: Callable[[str], str] = str) -> str:
    """A command, its exit status and what it printed."""
    done = call(*words, cwd=place)
    show = snapshots.plain if "--json" in words and show is str else show
    parts = [f"$ nafaudit {' '.join(map(str, words))}", show(done.stdout)]
    noted = [f"stderr: {line}" for line in done.stderr.splitlines()]
    return "\n".join([*parts, *noted, f"exit status {done.returncode}", ""])


def in_both(place: Path, *words: object) -> str:
    """What a command prints for people, and for programs."""
    return said(place, *words) + "\n" + said(place, *words, "--json")


@pytest.mark.parametrize("name", RUNS)
def test_old_runs_have_the_findings_that_their_own_version_printed(
    name: str, place: Path, snapshot: Snapshot
) -> None:
    expected, run = _expected(name)["check"], stored(name, place)
    done = call("check", run, "--json", cwd=place)
    now = json.loads(done.stdout)
    if name in OUTDATED:
        assert done.returncode == 3 and f"older rules: nafaudit verify {run} makes" in now["why"]
    else:
        # A directory of a search is answered as the search was, and these drew too few.
        assert done.returncode == (3 if "search" in name else expected["status"])
        then = _as_now(expected)
        assert _differences(_untested(then["verdicts"]), _untested(now["verdicts"])) == []
        assert _differences(_rest(then["findings"]), _as_then(now["findings"])) == []
    snapshot(f"check-{name}", said(place, "check", run) + snapshots.plain(done.stdout))


@pytest.mark.parametrize("name", ("own", "box", "paper-search"))
def test_check_says_the_same_of_records_of_the_new_layout(
    name: str, place: Path, snapshot: Snapshot
) -> None:
    snapshot(f"check-{name}-{NEW}", in_both(place, "check", stored(name, place, NEW)))


@pytest.mark.parametrize("name", RUNS)
def test_old_runs_are_reported_with_the_same_findings_and_words(
    name: str, place: Path, snapshot: Snapshot
) -> None:
    run = stored(name, place)
    shown = said(place, "report", run)
    texts = {path.name: path.read_text() for path in (place / run / "report").iterdir()}
    findings = json.loads(texts["report.json"])["findings"]
    if name not in OUTDATED:
        then = _as_now(_expected(name)["check"])["findings"]
        assert _differences(_rest(then), _as_then(findings)) == []
    shown += "--- report.json\n" + snapshots.plain(texts["report.json"])
    shown += "\n--- report.md\n" + texts["report.md"]
    shown += "\n--- index.html\n" + snapshots.visible(texts["index.html"])
    if name in REPORTED:
        snapshot(f"report-{name}", shown)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "sequence"])
def test_old_runs_are_verified_with_the_same_verdicts_and_words(
    name: str, place: Path, snapshot: Snapshot
) -> None:
    run = stored(name, place)
    words = ("verify", run, "--quiet", *(make.VERIFY.get(name) or "").split())
    shown = said(place, *words, show=snapshots.masked)
    kept = json.loads((place / run / "verify.json").read_text())
    found = [{key: one[key] for key in make.KEYS[:4]} for one in kept["findings"]]
    expected = _expected(name)["verify"]
    if any(one["verdict"] == "FAILED" for one in found):  # then no replay says what was spent
        (budget,) = [one for one in expected["findings"] if one["check"] == "replay: budget"]
        budget["verdict"] = "UNKNOWN" if budget["verdict"] == "WITHIN" else budget["verdict"]
    if name not in OTHERS:
        assert found == expected["findings"]
    # Of the box most outputs never came: what came was chosen, and refutes nothing.
    assert f"exit status {3 if name == 'box' else expected['status']}" in shown
    rows = [" ".join(map(str, one.values())) for one in found]
    shown += "\n".join(["--- verify.json", f"keys: {', '.join(sorted(kept))}", *rows])
    snapshot(f"verify-{name}", shown)


def test_a_sequence_is_not_replayed(place: Path, snapshot: Snapshot) -> None:
    snapshot("verify-sequence", said(place, "verify", stored("sequence", place)))


def test_compare_says_the_same_of_stored_records(place: Path, snapshot: Snapshot) -> None:
    before, after = stored("own", place), stored("own", place, NEW, "later")
    shown = in_both(place, "compare", before, after) + said(
        place, "compare", before, stored("paper", place), "--out", "."
    )
    snapshot("compare", shown + "\n--- compare.md\n" + (place / "compare.md").read_text())


@pytest.mark.parametrize("name", ("own", "search", "paper-search"))
def test_checklist_says_the_same_of_stored_records(
    name: str, place: Path, snapshot: Snapshot
) -> None:
    snapshot(f"checklist-{name}", in_both(place, "checklist", stored(name, place)))


def test_logs_go_out_and_come_in_the_same(place: Path, snapshot: Snapshot) -> None:
    run = stored("paper", place)
    shown = said(place, "export", run, "--paper", "--out", "log")
    shown += said(place, "export", run, "--out", "whole", "--json")
    files = [path for path in (place / "log").rglob("*") if path.is_file()]
    sums = {path.name: hashlib.sha256(path.read_bytes()) for path in files}
    shown += "\n".join(f"{name} {sums[name].hexdigest()[:16]}" for name in sorted(sums)) + "\n"
    log = "log/trajectories_k3_test.jsonl"
    shown += said(place, *make.COMMANDS["imported"].split(), "--out", "again")
    shown += said(place, "import", log, "--max-new-tokens", 12, "--out", "twice", "--json")
    shown += said(place, "check", log, "--max-new-tokens", 12)
    shutil.copy(GOLDEN / "official-decoder" / "anchored.csv.gz", place)
    shown += said(place, "check", "anchored.csv.gz", "--max-new-tokens", 100)
    snapshot("logs", shown)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("paper", ("paper",)),
        ("mechanisms", ("mechanisms",)),
        ("plan", ("plan", "--seconds", 0, "--prompts", "prompts.jsonl")),
        ("checklist-paper", ("checklist", "--paper")),
    ],
)
def test_what_needs_no_run_is_said_the_same(
    name: str, words: tuple[object, ...], place: Path, snapshot: Snapshot
) -> None:
    snapshot(name, in_both(place, *words))


@pytest.mark.parametrize("name", RESUMED)
def test_a_finished_command_says_the_same_when_it_is_given_again(
    name: str, place: Path, snapshot: Snapshot
) -> None:
    stored(name, place, NEW)
    before = _files(place / name)
    words = (*make.COMMANDS[name].split(), "--out", name, "--quiet", "--mixed")
    if "constant_rows" in (first := call(*words, cwd=place)).stderr:
        pytest.skip("not tested here: products depend on their number of rows")
    parts = [f"$ nafaudit {make.COMMANDS[name]}", first.stdout, f"exit status {first.returncode}\n"]
    shown = "\n".join(parts)
    if name != "own":  # whose JSON is that of check
        shown += said(place, *words, "--json")
    after = _files(place / name)  # nothing was decoded, and results are written as before
    for path, parts in after.items():
        if path == "attack.json":
            after[path] = [_unanswered(parts[0])]
    found = _differences(before, {path: after[path] for path in before}, near=1e-4)
    found = [one for one in found if ".nafaudit: " not in one]  # which version wrote it
    # The paper's search has more numbers than it had, and its files the paper's domain and split.
    more = (".paper.", ".paper/", ".gates[")
    found = [one for one in found if not (": None then" in one and any(at in one for at in more))]
    found = [one for one in found if not re.search(r"\.paper/.*\.(domain|split): ", one)]
    # These searches had a surrogate behind a shut gate, which the tool has no more.
    # Tested is told by answers now, and not by steps.
    found = [one for one in found if not re.search(r"\.tested: ", one)]
    assert [one for one in found if name != "search" or ".surrogate." not in one] == []
    snapshot(f"{name}-again", shown)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_the_same(command: str, place: Path, snapshot: Snapshot) -> None:
    shown = said(place, command, "--help")
    if "--help-all" in shown:
        shown += "\n" + said(place, command, "--help-all")
    snapshot(f"help-{command}", shown)


def test_help_of_the_rest_says_the_same(place: Path, snapshot: Snapshot) -> None:
    asked = ([], ["lab"], *(["lab", name] for name in LAB))
    snapshot("help", "\n".join(said(place, *words, "--help") for words in asked))


@pytest.mark.parametrize("name", make.RESULTS)
def test_what_follows_text_gives_the_stored_result(
    name: str, place: Path, snapshot: Snapshot
) -> None:
    """Reads the models once, and decodes nothing."""
    words = (*make.COMMANDS[name].split(), "--out", name, "--quiet")
    snapshot(name, said(place, *words, show=snapshots.masked))
    now = json.loads((place / name / f"{name}.json").read_text())
    expected = json.loads((make.HERE / OLD / name / f"{name}.json").read_text())
    expected["nafaudit"] = __version__  # which version wrote it
    assert _differences(expected, _unanswered(now), near=1e-4) == []


# Old findings


def test_old_runs_are_compared_with_the_same_result(place: Path) -> None:
    expected = _expected("compare")
    done = call("compare", stored("own", place), stored("paper", place), "--json", cwd=place)
    now = json.loads(done.stdout)
    for side in ("a", "b"):
        assert now[side].pop("missing") is None  # since then: what a run lacks
    found = _differences(expected, {key: now[key] for key in expected})
    assert [one for one in found if not re.search(r"\.tested: ", one)] == []


# Identities


def test_stored_designs_keep_their_hash() -> None:
    designs = sorted(make.HERE.glob("*/**/design.json"))
    assert len(designs) > 15
    for path in designs:
        design = json.loads(path.read_text())
        given = dict(design["identity"])
        length = ImportedDecoding if given["protocol"] == "imported" else Decoding
        given["decoding"] = length(**given["decoding"])
        assert Identity(**given).hash == design["hash"], path


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "1ee926ea32aa83b7"),
        ({"protocol": "paper", "seed": 42}, "1b3875456f3c296e"),
        (
            {"promise": "anchored:debt=positives,n=5", "mechanism": "box:Class@00"},
            "7be26ba973a9203f",
        ),
        ({"decoding": Decoding(8, 0.5, 1.2), "chat": "ab"}, "fc735e7ca5928d56"),
        (
            {"promise": "anchored:debt=positives,n=5", "held_to": "", "mechanism": "box:Class@00"},
            "7be26ba973a9203f",
        ),
        ({"currency": "renyi:2", "constant_rows": ConstantRows(32, 64)}, "b40858e9f1d966d1"),
        ({"decoding": ImportedDecoding(), "protocol": "imported"}, "835ce8c91a162f13"),
    ],
)
def test_an_identity_keeps_its_hash(more: dict[str, Any], expected: str) -> None:
    given: dict[str, Any] = {
        "pair": {"safe": "a", "risky": "b", "dtype": "float32"},
        "mechanism": "anchored:debt=positives,n=5",
        "ledger": "banking",
        "decoding": Decoding(),
        "workload": "c",
        "width": 128,
        "seed": 0,
    }
    assert Identity(**given | more).hash[:16] == expected


def test_no_snapshot_is_left_over() -> None:
    names = {f"help-{name}" for name in COMMANDS} | {f"check-{name}" for name in RUNS}
    names |= {f"check-{name}-{NEW}" for name in ("own", "box", "paper-search")}
    names |= {f"report-{name}" for name in REPORTED} | {f"verify-{name}" for name in RUNS}
    names |= {f"{name}-again" for name in RESUMED}
    names |= {f"checklist-{name}" for name in ("own", "search", "paper-search", "paper")}
    found = {path.stem for path in snapshots.HERE.glob("*.txt")}
    names |= set(make.RESULTS)
    assert found == names | {
        "help",
        "logs",
        "compare",
        "paper",
        "mechanisms",
        "plan",
        "public-names",
    }


def test_stored_runs_name_no_machine() -> None:
    for path in make.HERE.rglob("*.json*"):
        assert not re.search(r'"/\w', path.read_text()), f"{path} has an absolute path"


def _expected(name: str) -> dict[str, Any]:
    """What c049abe itself said of a run that it recorded."""
    return dict(json.loads((make.HERE / OLD / "expected" / f"{name}.json").read_text()))


def _as_now(expected: dict[str, Any]) -> dict[str, Any]:
    """What c049abe said, with REFUTED where a replay refutes a black box, its numbers unknown."""
    found: dict[str, Any] = json.loads(json.dumps(expected))
    if not any(one["verdict"] == "FAILED" for one in found["findings"]):
        return found
    for one in found["verdicts"]:
        one["kept"], one["spend"]["mean"] = "REFUTED", "nan"
        one["utilisation"] = dict.fromkeys(one["utilisation"], "nan")
        one["regime"] = dict.fromkeys(one["regime"], "nan")
        one["trajectories_active"] = "nan"
        one |= {"tested": "UNKNOWN", "violations": None}
    for one in found["findings"]:
        if one["check"] == "invariant":
            one["verdict"] = "REFUTED"
        if one["check"] == "regime":
            one["verdict"] = "UNKNOWN"
        if one["check"] in ("utilisation", "classes"):
            one |= {"verdict": "UNKNOWN", "value": "nan", "numbers": {}, "witness": None}
    return found


def _untested(verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Verdicts without the second: it is told by answers now, and not by steps."""
    gone = ("tested", "limited", "copies")
    return [{key: one[key] for key in one if key not in gone} for one in verdicts]


def _rest(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings without that of the second verdict."""
    return [one for one in findings if one["check"] != "regime"]


def _as_then(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings without their words, and without what changed on purpose since c049abe.

    * A witness names its arm too.
    * A silent black box has a finding on the overspend that would have been seen.
    * Of a decoder's faults the first by key is the witness, not the first that was seen.
    * Tested is told by answers, not by steps (tests/measures/test_tested.py).
    """
    found = json.loads(json.dumps([one for one in _rest(findings) if one["check"] != "overspend"]))
    found = [{key: one[key] for key in make.KEYS} for one in found]
    for one in found:
        if (witness := one["witness"]) is not None:
            del witness["mechanism"], witness["k"]
        if one["check"] == "decoder: token":
            assert witness["prompt"] == "lab.06.02.00"
            witness["prompt"] = "neutral_qa_045"
    return found


def _unanswered(result: dict[str, Any]) -> dict[str, Any]:
    """A result without the answer at its top, which files have since."""
    assert list(result)[:3] == ["verdict", "why", "exit_status"]
    return dict(list(result.items())[3:])


def _files(directory: Path) -> dict[str, Any]:
    """What a run's files hold, but for sessions, of which each command adds one."""
    found = {}
    for path in sorted(directory.rglob("*.json*")):
        if path.name != "sessions.jsonl" and "report" not in path.parts:
            text = path.read_text()
            lines = text.splitlines() if path.suffix == ".jsonl" else [text]
            found[str(path.relative_to(directory))] = [json.loads(line) for line in lines]
    return found


def _differences(old: Any, new: Any, where: str = "", near: float = 1e-9) -> list[str]:
    """Where two values differ; numbers may in their last digits."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted({*old, *new})
        return _all(_differences(old.get(n), new.get(n), f"{where}.{n}", near) for n in names)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        both = enumerate(zip(old, new, strict=True))
        return _all(_differences(a, b, f"{where}[{i}]", near) for i, (a, b) in both)
    if isinstance(old, float) and isinstance(new, float):
        same = math.isclose(old, new, rel_tol=near, abs_tol=near / 1000)
    else:
        same = old == new
    return [] if same else [f"{where}: {old!r} then, {new!r} now"]


def _all(found: Iterable[list[str]]) -> list[str]:
    return [one for part in found for one in part]
