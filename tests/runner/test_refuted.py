"""REFUTED, and what a claimed overspend is worth, of black boxes that are run and replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands import call

BOXES = Path(__file__).with_name("boxes.py")
SIZES = ("--pair", "tiny", "--max-new-tokens", 16, "--limit", 4, "--quiet", "--out", "run")


def _run(place: Path, name: str, *options: object) -> tuple[dict[str, Any], Path]:
    spec = f"{BOXES}:{name}"
    done = call("run", "--decoder", spec, *SIZES, *options, "--json", cwd=place)
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout), place / "run"


def _shown(run: Path, place: Path) -> list[str]:
    """What terminal, report.md and page say."""
    page = (run / "report" / "index.html").read_text()
    page = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    return [call("check", run, cwd=place).stdout, (run / "report" / "report.md").read_text(), page]


def test_a_decoder_that_grants_itself_more_is_refuted(tmp_path: Path) -> None:
    data, run = _run(tmp_path, "Generous", "--k", 2, "--trajectories", 8)
    verdict = next(one for one in data["verdicts"] if one["k"] == 2)
    assert verdict["kept"] == "REFUTED"
    # The replay's own spend would be that of a decoder which kept its promise.
    assert verdict["spend"]["mean"] == "nan"
    assert set(verdict["utilisation"].values()) == {"nan"}
    assert {one["mean"] for one in data["classes"]} == {"nan"}
    for text in _shown(run, tmp_path):
        assert "REFUTED" in text and "INCONCLUSIVE" not in text
        assert "refutes the log" not in text and "the log is refuted" not in text
    report = json.loads((run / "report" / "report.json").read_text())
    assert {one["spend"] for one in report["prompts"]} == {"nan"}
    assert report["bounds"] == []


def test_an_admitted_overspend_that_no_replay_contradicts_is_a_violation(tmp_path: Path) -> None:
    data, _ = _run(tmp_path, "GenerousAndFrank", "--k", 2, "--trajectories", 8)
    verdict = next(one for one in data["verdicts"] if one["k"] == 2)
    assert verdict["kept"] == "VIOLATED" and verdict["violations"] > 0
    assert verdict["utilisation"]["max"] > 1.2
    found = next(f for f in data["findings"] if f["k"] == 2 and f["check"] == "invariant")
    assert found["witness"]["k"] == 2
    assert "charges that the decoder itself claims" in found["text"]


def test_a_false_claim_convicts_no_sound_decoder_of_overspending(tmp_path: Path) -> None:
    data, _ = _run(tmp_path, "Overclaims", "--k", 2, "--trajectories", 5)
    verdict = next(one for one in data["verdicts"] if one["k"] == 2)
    assert (verdict["kept"], verdict["violations"]) == ("REFUTED", 0)
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
