"""Holds a decoder to its contract and to its budget, as pytest tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nafaudit.selftest.conform import DecoderConformance

HERE = Path(__file__).parent


class TestContract(DecoderConformance):
    """Eleven tests, one for each item of the contract."""

    decoder = f"{HERE / 'decoder.py'}:Careful"


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """An audit of the decoder on the embedded pair, as its JSON has it."""
    words = ["run", "--decoder", f"{HERE / 'decoder.py'}:Careful", "--k", "0.5", "--limit", "12"]
    done = subprocess.run(
        [sys.executable, "-m", "nafaudit", *words, "--max-new-tokens", "24", "--json"],
        cwd=tmp_path_factory.mktemp("audit"),
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    return json.loads(done.stdout)


def test_no_budget_is_exceeded(audit: dict) -> None:
    assert audit["verdict"] == "WITHIN", audit["why"]


def test_the_limit_acts(audit: dict) -> None:
    assert all(one["tested"] == "ACTIVE" for one in audit["verdicts"] if not one["baseline"])
