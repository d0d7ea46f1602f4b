"""The published decoder, where an environment for it exists: NAFAUDIT_OFFICIAL_PYTHON names it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.commands import call

PYTHON = os.environ.get("NAFAUDIT_OFFICIAL_PYTHON", "")


pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not PYTHON,
        reason="no environment with anchoreddecode 0.1.0: set NAFAUDIT_OFFICIAL_PYTHON to its "
        "interpreter (docs/protocols.md says how to build it)",
    ),
]


def test_its_claims_are_replayed(tmp_path: Path) -> None:
    result = call(
        "run",
        *("--decoder", "anchoreddecode", "--decoder-python", PYTHON),
        *("--limit", "4", "--k", "0.5", "--max-new-tokens", "40", "--out", "run", "--json"),
        cwd=tmp_path,
    )
    data = json.loads(result.stdout)
    assert not [f for f in data["findings"] if f["verdict"] == "FAILED"]
    assert not [f for f in data["findings"] if f["check"].startswith("decoder: ")]
    verdict = next(v for v in data["verdicts"] if v["k"] == 0.5)
    assert (verdict["trajectories"], verdict["violations"]) == (8, 0)
    found = json.loads((tmp_path / "run" / "verify.json").read_text())
    for name in ("debt", "allowance", "charge", "theta", "spend"):
        assert float(found["deviation"][name]["max"]) < 1e-4


# Its tokens are tested too: a false alarm once in 1000 runs by checks.sampler.ALPHA; fixed seeds.
def test_at_a_temperature_it_is_held_to_the_debt_that_it_counts(tmp_path: Path) -> None:
    cooled = ("--limit", "10", "--k", "0.25", "--max-new-tokens", "40", "--temperature", "0.7")
    asked = ("run", "--decoder", "anchoreddecode", "--decoder-python", PYTHON, *cooled, "--json")
    result = call(*asked, "--out", "own", cwd=tmp_path)
    data = json.loads(result.stdout)
    assert [v["kept"] for v in data["verdicts"] if v["k"] == 0.25] == ["WITHIN"]
    assert not [f for f in data["findings"] if f["verdict"] == "FAILED"]
    assert result.returncode == 0
    # Told to hold it to another count, the verdict says what it rests on.
    told = call(*asked, "--debt", "official", "--out", "told", cwd=tmp_path)
    texts = [f["text"] for f in json.loads(told.stdout)["findings"] if f["check"] == "invariant"]
    assert any("9 within the decoder's own count of the debt, over the" in text for text in texts)
    assert not any("overspent" in text for text in texts)
