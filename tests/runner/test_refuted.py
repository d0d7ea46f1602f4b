"""REFUTED, and what a claimed overspend is worth, of black boxes that are run and replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nafaudit.auditor.alternatives import other_promise
from nafaudit.views.words import AS_PROMISED
from tests.commands import call

BOXES = Path(__file__).with_name("boxes.py")
pytestmark = pytest.mark.usefixtures("forked_decoders")
SIZES = ("--pair", "tiny", "--max-new-tokens", 16, "--limit", 4, "--quiet", "--out", "run")


def _run(place: Path, name: str, *options: object) -> tuple[dict[str, Any], Path]:
    spec = f"{BOXES}:{name}"
    done = call("run", "--decoder", spec, *SIZES, *options, "--json", cwd=place)
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout), place / "run"


def _shown(run: Path, place: Path) -> list[str]:
    """What terminal, report.md and page say; the page's glossary names every word."""
    page = (run / "report" / "index.html").read_text().split('<section id="words"')[0]
    page = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    return [call("check", run, cwd=place).stdout, (run / "report" / "report.md").read_text(), page]


def test_a_decoder_that_grants_itself_more_is_refuted(tmp_path: Path) -> None:
    data, run = _run(tmp_path, "Generous", "--k", 2, "--trajectories", 8)
    verdict = next(one for one in data["verdicts"] if one["k"] == 2)
    assert verdict["kept"] == "REFUTED"
    # The replay's own numbers would be those of a decoder which kept its promise.
    assert (verdict["tested"], verdict["violations"]) == ("UNKNOWN", None)
    found = json.loads((run / "verify.json").read_text())["findings"]
    (budget,) = [one for one in found if one["check"] == "replay: budget"]
    assert budget["verdict"] == "UNKNOWN"
    assert verdict["spend"]["mean"] == "nan"
    assert set(verdict["utilisation"].values()) == {"nan"}
    assert {one["mean"] for one in data["classes"]} == {"nan"}
    # As conform says it.
    assert data["why"].endswith(f"; {other_promise([1.5], 0.0)}")
    for text in _shown(run, tmp_path):
        assert "REFUTED" in text and "INCONCLUSIVE" not in text
        assert " ".join(text.split()).count(other_promise([1.5], 0.0)) >= 1, text
        assert "refutes the log" not in text and "the log is refuted" not in text
    report = json.loads((run / "report" / "report.json").read_text())
    assert {one["spend"] for one in report["prompts"]} == {"nan"}
    assert report["bounds"] == []


def test_a_charge_at_k_0_is_not_within(tmp_path: Path) -> None:
    """24 good rows at k = 1 beside 24 that are charged where nothing may be spent."""
    rows = [f"p{n},1,{n / 9},100" for n in range(24)] + [f"p{n},0,0.{n + 11},0" for n in range(24)]
    (tmp_path / "log.csv").write_text("prompt_id,k,spend,budget\n" + "\n".join(rows))
    done = call("check", "log.csv", "--max-new-tokens", 100, "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (data["verdict"], done.returncode) == ("VIOLATED", 1)
    assert data["why"] == "the promise was broken at k = 0"
    shown = call("check", "log.csv", "--max-new-tokens", 100, cwd=tmp_path).stdout
    assert re.search("safe only +VIOLATED", shown)


@pytest.mark.full
def test_a_decoder_that_owes_no_debt_is_told_of_the_option(tmp_path: Path) -> None:
    data, _ = _run(tmp_path, "OwesNothing", "--k", 2, "--trajectories", 8)
    assert data["verdict"] == "REFUTED"
    said = "its tokens fit the promise without debt, not with a prefix debt of up to "
    assert said in data["why"]
    assert data["why"].endswith(". If its promise has none: run it with --no-prefix-debt")


CLAIMED = "by what is claimed none of 32 trajectories went over budget"


@pytest.mark.parametrize(
    ("name", "claims"),
    [("Silent", "nothing is claimed of what 32 trajectories spent"), ("Liar", CLAIMED)],
)
def test_what_is_not_refuted_says_which_overspend_would_have_been_seen(
    name: str, claims: str, tmp_path: Path
) -> None:
    spec = f"{BOXES}:{name}"
    options = ("--k", 2, "--trajectories", 8, "--json")
    done = call("run", "--decoder", spec, *SIZES, *options, cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (done.returncode, data["verdict"]) == (0, "WITHIN"), done.stderr
    assert data["why"].startswith(f"not refuted at k = 2: {claims}, and their tokens fit")
    (seen,) = [f for f in data["findings"] if f["check"] == "overspend"]
    # Twice as much would have been seen: the decoder above, which takes half as much again, is.
    assert 1 < seen["value"] <= 4 and seen["numbers"]["executions"] == 32
    kept = next(f for f in data["findings"] if f["k"] == 2 and f["check"] == "invariant")
    lie = " and claims what k gives" if name == "Liar" else ""
    words = f"grants itself {seen['value']:g} times k{lie} would have been refuted with 95%"
    assert kept["text"].startswith("not refuted: ") and words in kept["text"]
    for text in _shown(tmp_path / "run", tmp_path):
        flat = " ".join(text.split())
        assert "not refuted" in flat.lower() and words in flat, flat
        assert "Yes, in every trajectory" not in flat
    terminal, _, page = (" ".join(text.split()) for text in _shown(tmp_path / "run", tmp_path))
    silent = name == "Silent"
    assert (AS_PROMISED in terminal) == (AS_PROMISED[1:] in page) == silent
    assert ("nothing was claimed, and the tokens fit the promise" in page) == silent
    assert ("its claims and its tokens fit the promise" in page) != silent
    assert "what was claimed is true" not in page


@pytest.mark.full
def test_what_a_verification_suspects_is_shown(tmp_path: Path) -> None:
    """A weight rounded through float16: off by more than noise, by less than a refutation."""
    options = ("--k", "2,4", "--trajectories", 8)
    words = ("run", "--decoder", f"{BOXES}:HalfPrecision", *SIZES, *options)
    done = call(*words, "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "run" / "verify.json").read_text())["findings"]
    assert not [one for one in found if one["verdict"] == "FAILED"]
    suspected = {one["check"] for one in found if one["verdict"] == "SUSPECT"}
    assert "replay: charge" in suspected
    checks = {check.replace("replay: ", "claims: ") for check in suspected}
    said = {one["check"] for one in data["findings"] if one["verdict"] == "SUSPECT"}
    assert checks <= said
    for text in _shown(tmp_path / "run", tmp_path):
        for check in checks:
            assert check in text and "SUSPECT" in text


@pytest.mark.full
def test_an_admitted_overspend_that_no_replay_contradicts_is_a_violation(tmp_path: Path) -> None:
    data, _ = _run(tmp_path, "GenerousAndFrank", "--k", 2, "--trajectories", 8)
    verdict = next(one for one in data["verdicts"] if one["k"] == 2)
    assert verdict["kept"] == "VIOLATED" and verdict["violations"] > 0
    assert verdict["utilisation"]["max"] > 1.2
    found = next(f for f in data["findings"] if f["k"] == 2 and f["check"] == "invariant")
    assert found["witness"]["k"] == 2
    assert "charges that the decoder itself claims" in found["text"]
    verified = call("verify", tmp_path / "run", "--json", "--quiet", cwd=tmp_path)
    assert json.loads(verified.stdout)["verdict"] == "VIOLATED"


def test_a_false_claim_convicts_no_sound_decoder_of_overspending(tmp_path: Path) -> None:
    data, _ = _run(tmp_path, "Overclaims", "--k", 2, "--trajectories", 5)
    verdict = next(one for one in data["verdicts"] if one["k"] == 2)
    assert (verdict["kept"], verdict["violations"]) == ("REFUTED", None)
    failed = {f["check"] for f in data["findings"] if f["verdict"] == "FAILED"}
    assert failed and all(check.startswith("claims: ") for check in failed)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "where"), [("GenerousSometimes", "k = 2"), ("NotTheRiskyModel", "risky only")]
)
def test_what_is_refuted_in_one_arm_is_said_in_every_arm(
    tmp_path: Path, name: str, where: str
) -> None:
    data, _ = _run(tmp_path, name, "--k", "1,2", "--trajectories", 12)
    assert {one["kept"] for one in data["verdicts"]} == {"REFUTED"}
    found = [f for f in data["findings"] if f["k"] == 1 and f["check"] == "invariant"]
    assert f"at {where}, and one program wrote every arm" in found[0]["text"]
