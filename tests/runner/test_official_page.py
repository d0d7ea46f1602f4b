"""The page on anchoreddecode says what its scripts printed, and they print it again."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

AUDITS = Path(__file__).resolve().parents[2] / "docs" / "audits"
SCRIPTS = AUDITS / "anchoreddecode"
PYTHON = os.environ.get("NAFAUDIT_OFFICIAL_PYTHON", "")


def _measured() -> dict[str, dict[str, Any]]:
    lines = (SCRIPTS / "measured.jsonl").read_text().splitlines()
    found = {data.pop("finding"): data for data in map(json.loads, lines)}
    assert found
    return found


def shown(numbers: dict[str, Any]) -> str:
    """What the page shows of a script's line: every number, to four digits."""
    numbers = {name: value for name, value in numbers.items() if name != "versions"}
    return "\n".join(f"{name} = {_digits(value)}" for name, value in numbers.items())


def _digits(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def test_every_script_was_run_and_is_quoted() -> None:
    page = (AUDITS / "anchoreddecode.md").read_text()
    measured = _measured()
    scripts = {p.stem for p in SCRIPTS.glob("*.py")} - {"all", "common"}
    assert set(measured) == scripts
    for name, numbers in measured.items():
        assert f"anchoreddecode/{name}.py" in page, name
        block = "\n".join(f"    {line}" for line in shown(numbers).splitlines())
        assert block in page, f"{name}: the page does not say\n{block}"
        assert numbers["versions"]["anchoreddecode"] in page
        assert numbers["versions"]["transformers"] in page


@pytest.mark.full
@pytest.mark.skipif(not PYTHON, reason="NAFAUDIT_OFFICIAL_PYTHON names no environment")
@pytest.mark.parametrize("name", sorted(_measured()))
def test_a_script_prints_the_same_again(name: str) -> None:
    command = [PYTHON, str(SCRIPTS / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    printed = json.loads(done.stdout.strip().splitlines()[-1])
    for key, value in _measured()[name].items():
        if isinstance(value, float):
            # Rounding on another machine; an excess of 1e-5 is rounding itself.
            assert math.isclose(printed[key], value, rel_tol=0.05, abs_tol=2e-5), key
        elif key != "versions":
            assert printed[key] == value, key
