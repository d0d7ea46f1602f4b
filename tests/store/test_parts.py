"""Whatever a part predicts, the record that comes back has every bit of the one that went in."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.trajectory import STEP_TYPES, Key, Logged, Steps, Trajectory
from nafaudit.store import parts
from tests.records import many, trajectory

PREDICTED = {"allowance_xor_banking", "served_xor_model"}


def stored_columns(content: bytes) -> set[str]:
    return set(pq.read_table(io.BytesIO(content)).column_names)


def comes_back(records: list[Trajectory]) -> set[str]:
    """Asserts the round trip; returns the stored columns."""
    content = parts.encode(records)
    assert all(a.same_as(b) for a, b in zip(records, parts.decode(content), strict=True))
    assert parts.decode_keys(content) == [record.key for record in records]
    return stored_columns(content)


def noise(rng: np.random.Generator, length: int) -> Steps:
    """Steps of random bits: NaN of every kind, infinities, both zeros, subnormals."""
    columns = {}
    for name, dtype in STEP_TYPES.items():
        size = np.dtype(dtype).itemsize
        columns[name] = np.frombuffer(rng.bytes(length * size), dtype)
    return Steps(**columns)


@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.sampled_from([0.0, -0.0, 1.0, 1e308, math.inf, math.nan]),
    st.sampled_from([0.0, 1 / 3, 1e308, math.inf, math.nan]),
)
def test_any_bits_come_back(seed: int, lengths: list[int], k: float, debt: float) -> None:
    rng = np.random.default_rng(seed)
    records = [
        Trajectory(Key(f"p{i}", "m", 1.0 if math.isnan(k) else k, i), debt, False, noise(rng, n))
        for i, n in enumerate(lengths)
    ]
    comes_back(records)


def charged(k: float, length: int, served: str, seed: int = 0) -> Trajectory:
    """A sound trajectory that serves one model, or neither."""
    rng = np.random.default_rng(seed)
    plain = trajectory(Key("p", "anchored", k, seed), list(rng.random(length)), debt=1 / 3)
    safe, risky = -rng.random((2, length), np.float32)
    theta = np.full(length, {"safe": 0.0, "risky": 1.0, "mixed": 0.5}[served], np.float32)
    law = {"safe": safe, "risky": risky, "mixed": (safe + risky) / 2}[served]
    steps = replace(plain.steps, safe=safe, risky=risky, theta=theta, served=law)
    return replace(plain, steps=steps)


@pytest.mark.parametrize("k", [0.0, 0.7, 3.0, math.inf])
@pytest.mark.parametrize("served", ["safe", "risky"])
def test_what_follows_from_the_rest_takes_no_room(k: float, served: str) -> None:
    records = [charged(k, 200, served, seed) for seed in range(20)]
    assert comes_back(records) >= PREDICTED
    table = pq.read_table(io.BytesIO(parts.encode(records)))
    for name in PREDICTED:
        assert not table[name].chunk(0).values.to_numpy().any()


def test_what_does_not_follow_is_kept_as_it_is() -> None:
    rng = np.random.default_rng(0)
    lying = [charged(1.0, 50, "mixed", seed) for seed in range(4)]
    other = [replace(one, steps=replace(one.steps, allowance=rng.random(50))) for one in lying]
    assert comes_back(lying) & PREDICTED == {"allowance_xor_banking"}
    assert not comes_back(other) & PREDICTED


def test_one_step_that_lies_keeps_its_lie() -> None:
    records = [charged(1.0, 50, "risky")]
    steps = records[0].steps
    allowance, served = steps.allowance.copy(), steps.served.copy()
    allowance[7] = np.nextafter(allowance[7], 0)
    served[9] = np.nextafter(served[9], np.float32(0))
    records[0] = replace(records[0], steps=replace(steps, allowance=allowance, served=served))
    assert comes_back(records) >= PREDICTED


def test_logs_that_keep_only_totals() -> None:
    comes_back([replace(one, logged=Logged(1.0, 2.0, 3.0)) for one in many(3, length=0)])
    one, two, three = many(3, length=0)
    contested = replace(two, logged=Logged(1.0, 2.0, 3.0, contested=0.5))
    comes_back([replace(one, logged=Logged(1.0, 2.0, 3.0)), contested, three])


def test_parts_without_predictions_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [charged(1.0, 50, "risky", seed) for seed in range(4)]
    with monkeypatch.context() as plain:
        plain.setattr(parts, "_RESIDUALS", {})
        content = parts.encode(records)
    assert stored_columns(content) >= set(STEP_TYPES)
    assert all(a.same_as(b) for a, b in zip(records, parts.decode(content), strict=True))


def test_a_run_is_twenty_times_smaller_than_json_lines() -> None:
    command = [sys.executable, "-m", "benchmarks.store", "--trajectories", "256", "--checks", "1"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ratio = re.search(r"JSON Lines / run +([\d.]+)", done.stdout)
    assert ratio is not None
    assert float(ratio[1]) >= 20
