"""Ratios of the benchmark, never times; the published decoder's column needs its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import store

PYTHON = os.environ.get("NAFAUDIT_OFFICIAL_PYTHON", "")


@pytest.mark.full
def test_the_record_is_read_and_checked_beside_json_lines() -> None:
    row, check, page, growth = store.rows(60, 1)
    assert row.name == "record" and row.invalid == "" and "60 trajectories" in row.about
    assert row.ratios["size, JSON Lines/run"].middle > 10
    assert [one.name for one in (check, page, growth)] == [
        "record: check",
        "record: page",
        "growth: check",
    ]
    assert not (check.invalid or page.invalid or growth.invalid)
    assert check.ratios["MiB, 60 outputs"].middle > 10
    # An aim in seconds is of a full audit only.
    assert check.verdict("seconds, 60 outputs") == page.verdict("seconds, 60 outputs") == ""


@pytest.mark.parametrize(
    ("given", "said"), [(["--rounds", "0"], "at least 1"), (["--real", "/none"], "not exist")]
)
def test_bad_arguments_are_refused_before_anything_is_built(
    given: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(program, "checkpoints", None)
    monkeypatch.setattr(program, "Bench", None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *given])
    with pytest.raises(SystemExit) as refused:
        program.main()
    assert refused.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.skipif(
    not PYTHON,
    reason="no environment with anchoreddecode 0.1.0: set NAFAUDIT_OFFICIAL_PYTHON to its "
    "interpreter (docs/protocols.md says how to build it)",
)
def test_ahead_of_the_published_decoder_where_rows_bind(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--profile"]
    done = subprocess.run([*command, "--peer", PYTHON, "--json", str(out)], timeout=1200)
    assert done.returncode == 0  # every gate passed
    rows = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    for name in ("8 prompts, binding", "32 prompts, binding", "1 prompt x 10"):
        assert rows[f"r32: {name}"]["ratios"]["peer/ours"]["middle"] >= 1.0
    assert rows["r32: 1 prompt x 10"]["ratios"]["memory, peer/ours"]["middle"] >= 2.0
    assert rows["record"]["ratios"]["reading, JSON Lines/run"]["middle"] >= 2.0
    assert rows["r32: five arms"]["ratios"]["one run/five runs"]["middle"] <= 0.8
