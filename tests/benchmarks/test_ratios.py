"""Ratios of the benchmark, never times; the published decoder's column needs its environment."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.sides import ratio

from benchmarks import gates

PYTHON = os.environ.get("NAFAUDIT_OFFICIAL_PYTHON", "")


def test_a_ratio_is_of_medians_with_the_range_over_rounds() -> None:
    assert ratio([4.0, 9.0, 2.0], [2.0, 1.0, 2.0]) == (2.0, 1.0, 9.0)


def test_gates_fire(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    logits = {name: draw.standard_normal((2, 50)) for name in ("safe", "risky")}
    np.savez(tmp_path / "x.npz", safe=logits["safe"], risky=logits["risky"])
    truth = gates.bisected(tmp_path / "x.npz", 0.1)
    good = {"theta": [t for t, _ in truth], "charge": [c for _, c in truth]}
    assert gates.solved(good, truth, 0.1, strict=True) == ""
    assert "theta" in gates.solved(good | {"theta": [0.9, 0.9]}, truth, 0.1, strict=True)
    over = good | {"charge": [math.nextafter(0.1, 1)] * 2}
    assert "above" in gates.solved(over, truth, 0.1, strict=True)
    assert gates.solved(over, truth, 0.1, strict=False) == ""
    assert gates.debts({"debt": [1.0]}, {"debt": [1.0 + 5e-5]}) == ""
    assert "differ" in gates.debts({"debt": [1.0]}, {"debt": [1.001]})
    assert "above" in gates.feasible({"over": 1e-18})


@pytest.mark.full
@pytest.mark.skipif(
    not PYTHON,
    reason="no environment with anchoreddecode 0.1.0: set NAFAUDIT_OFFICIAL_PYTHON to its "
    "interpreter (docs/doors.md says how to build it)",
)
def test_ahead_of_the_published_decoder_where_rows_bind(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1"]
    done = subprocess.run([*command, "--peer", PYTHON, "--json", str(out)], timeout=1200)
    assert done.returncode == 0  # every gate passed
    rows = {row["row"]: row for row in json.loads(out.read_text())["rows"]}
    for name in ("8 prompts, binding", "32 prompts, binding", "1 prompt x 10"):
        assert rows[f"r32: {name}"]["peer/own"][0] >= 1.0
