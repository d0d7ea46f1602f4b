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
from benchmarks.__main__ import line
from benchmarks.sides import ratio

from benchmarks import gates, growth, store

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
    assert gates.spending({"a": 1.0}, {"a": 1.0, "b": 2.0}) == ""
    assert "differs" in gates.spending({"a": 1.0}, {"a": 1.002})
    assert gates.same_scores([(0.5, 1.0)], [(0.5, 1.0)]) == ""
    assert "differ" in gates.same_scores([(0.5, 1.0)], [(0.5, 1.0 - 1e-9)])
    assert "off" in gates.replayed(2e-4)


def test_growth_is_over_the_smallest_size_and_counts_only_if_nothing_is_overdrawn() -> None:
    def decode(size: int) -> dict[str, float]:
        return {"cpu": 2.0 * size, "over": 0.0 if size < 5 else 1e-9}

    found = growth._grown("rows", (1, 2), decode, 2)
    assert found["2"] == (2.0, 2.0, 2.0) and found["invalid"] == ""
    assert "above" in growth._grown("rows", (1, 5), decode, 2)["invalid"]


def test_the_record_is_read_and_checked_beside_json_lines() -> None:
    (row,) = store.rows(60, 1)
    assert row["invalid"] == ""
    assert row["size, JSON Lines/run"].middle > 10
    assert row["reading, JSON Lines/run"].middle > 1
    assert "60 trajectories" in line(row)


def test_bad_arguments_are_refused_before_anything_is_built() -> None:
    for given, said in ((["--rounds", "0"], "at least 1"), (["--real", "/none"], "not exist")):
        command = [sys.executable, "-m", "benchmarks", *given]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and said in done.stderr


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
