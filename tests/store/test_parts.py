"""A part is plain Parquet, and the record that comes back has every bit of the one that went in."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import store
from nafaudit.core.errors import StoreError
from nafaudit.core.trajectory import STEP_TYPES, Key, Logged, Steps, Trajectory
from nafaudit.store import parts
from nafaudit.store.run import Run
from tests.records import many, trajectory

ROOT = Path(__file__).parents[2]
NAN, INF = math.nan, math.inf


def comes_back(records: list[Trajectory]) -> pa.Table:
    """Asserts the round trip; returns the stored table."""
    content = parts.encode(records)
    ordered = sorted(records, key=lambda one: one.key)
    assert all(a.same_as(b) for a, b in zip(ordered, parts.decode(content), strict=True))
    assert parts.decode_keys(content) == [record.key for record in ordered]
    return pq.read_table(io.BytesIO(content))


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
    st.sampled_from([0.0, -0.0, 1.0, 1e308, INF]),
    st.sampled_from([0.0, 1 / 3, 1e308, INF, NAN]),
    st.sampled_from(["none", "totals", "steps", "some"]),
)
def test_any_bits_come_back(
    seed: int, lengths: list[int], k: float, debt: float, claims: str
) -> None:
    rng = np.random.default_rng(seed)

    def claim(i: int, n: int) -> Logged | None:
        if claims == "none" or (claims == "some" and i % 2):
            return None
        totals = dict(zip(("spend", "budget", "length", "contested"), rng.random(4), strict=True))
        if claims == "totals":
            return Logged(**totals)
        return Logged(NAN, granted=noise(rng, n).charge, cumulative=noise(rng, n).allowance)

    records = [
        Trajectory(Key(f"p{i}", "m", k, i), debt, bool(i % 2), noise(rng, n), claim(i, n))
        for i, n in enumerate(lengths)
    ]
    comes_back(records)


def test_rows_are_sorted_by_key_and_step_and_every_column_is_a_value() -> None:
    records = [
        trajectory(Key("b", "m", INF, 0), [0.5, INF], allowance=[INF, NAN], stopped=True),
        trajectory(Key("a", "m", 2.0, 1), [0.25, 0.5, 0.75], debt=1 / 3, theta=[0.0, 0.5, 1.0]),
        trajectory(Key("a", "m", 2.0, 0), [-0.0], debt=NAN),
        trajectory(Key("a", "m", 0.5, 7), [0.125]),
    ]
    table = comes_back(records)
    order = [tuple(row[name] for name in (*Key._fields, "step")) for row in table.to_pylist()]
    assert order == sorted(order)
    assert len(order) == sum(map(len, records))
    assert table.column_names == [column.name for column in parts.COLUMNS]
    assert not any(pa.types.is_nested(field.type) for field in table.schema)
    rows = table.slice(2, 3).to_pydict()
    assert rows["charge"] == [0.25, 0.5, 0.75]
    assert rows["allowance"] == records[1].steps.allowance.tolist()
    assert rows["theta"] == [0.0, 0.5, 1.0]
    assert rows["log_p_served"] == records[1].steps.served.tolist()
    assert rows["debt"] == [1 / 3] * 3
    assert rows["stopped"] == [False] * 3


def test_a_file_names_its_format_and_its_units() -> None:
    content = parts.encode([replace(one, logged=Logged(1.0)) for one in many(2)])
    schema = pq.read_schema(io.BytesIO(content))
    units = {field.name: field.metadata[b"unit"].decode() for field in schema}
    assert units == json.loads(schema.metadata[b"nafaudit.units"])
    assert units["charge"] == units["allowance"] == units["debt"] == "nats"
    assert units["k"] == "nats per token"
    assert schema.metadata[b"nafaudit.format"] == b"2"
    group = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
    assert [schema.names[one.column_index] for one in group.sorting_columns] == [
        *Key._fields,
        "step",
    ]


def test_a_later_format_is_not_guessed_at() -> None:
    table = parts.to_table(many(2))
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"nafaudit.format": "3"}), sink)
    for read in (lambda c: list(parts.decode(c)), parts.decode_keys, parts.read_table):
        with pytest.raises(StoreError, match="format 3, and this nafaudit reads formats 1 and 2"):
            read(sink.getvalue())


def test_logs_that_keep_only_totals_have_a_row_without_step() -> None:
    one, two, three = many(3, length=0)
    contested = replace(two, logged=Logged(1.0, 2.0, 3.0, contested=0.5))
    table = comes_back([replace(one, logged=Logged(1.0, NAN, 3.0)), contested, three])
    assert table["step"].to_pylist() == table["charge"].to_pylist() == [None] * 3
    assert table["claimed_spend"].to_pylist() == [1.0, 1.0, None]
    mixed = comes_back([one, *many(2, k=2.0, length=4)])
    assert mixed["step"].to_pylist() == [None, 0, 1, 2, 3, 0, 1, 2, 3]


def test_a_claim_is_of_every_step_or_of_none() -> None:
    claims = Logged(granted=np.zeros(3))
    with pytest.raises(ValueError, match="has 5 steps and 3 values of 'granted'"):
        parts.encode([replace(many(1)[0], logged=claims)])


def test_every_part_of_a_run_has_the_same_columns() -> None:
    assert parts.to_table(many(2), claims=True).column_names == [
        column.name for column in (*parts.COLUMNS, *parts.CLAIMS)
    ]
    content = parts.encode(many(2), claims=True)
    assert all(a.same_as(b) for a, b in zip(many(2), parts.decode(content), strict=True))


def test_other_tools_read_a_part_as_it_is(tmp_path: Path) -> None:
    odd = trajectory(
        Key("né, \"q\"", "m", INF, 3), [0.1, INF, NAN], theta=[NAN, 1e-30, 1.0],
        allowance=[INF, -0.0, NAN], token=[5, 2**31 - 1, -1],
    )  # fmt: skip
    records = [*many(300, length=7), odd]
    (tmp_path / "000001.parquet").write_bytes(parts.encode(records[:200]))
    (tmp_path / "000002.parquet").write_bytes(parts.encode(records[200:]))
    glob = f"{tmp_path}/*.parquet"
    columns = [column.name for column in parts.COLUMNS]
    wanted = {one.key: one for one in records}

    def agrees(rows: list[tuple[object, ...]]) -> bool:
        found: dict[Key, list[dict[str, object]]] = {}
        for row in rows:
            at = dict(zip(columns, row, strict=True))
            key = Key(*(at[name] for name in Key._fields))  # type: ignore[arg-type]
            found.setdefault(key, []).append(at)
        assert found.keys() == wanted.keys()
        for key, own in found.items():
            for name, column in parts.STEP_COLUMNS.items():
                values = np.array([row[column] for row in own], STEP_TYPES[name])
                assert np.array_equal(values, getattr(wanted[key].steps, name), equal_nan=True)
        return True

    order = ", ".join((*Key._fields, "step"))
    assert agrees(duckdb.execute(f"from '{glob}' order by {order}").fetchall())
    assert agrees(polars.read_parquet(glob).rows())
    frame = pandas.read_parquet(tmp_path)
    assert agrees(list(frame.itertuples(index=False, name=None)))
    assert str(frame["charge"].dtype) == "float64"
    assert str(frame["token"].dtype) == "int32"


def test_the_page_documents_every_column() -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    for name, type_, unit, text in (*parts.COLUMNS, *parts.CLAIMS):
        assert f"| `{name}` | {type_} | {unit} | {text} |\n" in page
    assert f"This is **format {parts.FORMAT}**" in page


def test_the_reader_on_the_page_reads_every_bit(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    code = next(c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def read" in c)
    assert len(code.splitlines()) <= 25
    names: dict[str, Any] = {}
    exec(code, names)
    written = [*many(5), *many(2, k=3.0, length=0), *many(3, k=4.0)]
    journal = []
    (tmp_path / "parts").mkdir()
    for number, own in enumerate((written[:6], written[6:]), start=1):
        content, part = parts.encode(own), f"{number:06d}.parquet"
        (tmp_path / "parts" / part).write_bytes(content)
        journal.append({"part": part, "sha256": hashlib.sha256(content).hexdigest()})
    (tmp_path / "000003.parquet.pending").write_bytes(b"")
    journal.append({"part": "000003.parquet", "sha256": ""})
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in journal))
    found = {key: rest for key, *rest in names["read"](tmp_path)}
    assert found.keys() == {tuple(one.key) for one in written}
    for one in written:
        debt, stopped, rows = found[tuple(one.key)]
        assert (debt, stopped) == (one.debt, one.stopped)
        for name, column in parts.STEP_COLUMNS.items():
            values = rows[column].to_numpy()
            assert values.tobytes() == getattr(one.steps, name).tobytes()


# Format 1, which earlier versions wrote.

OLD_RUNS = sorted((ROOT / "tests" / "runs").glob("*/**/design.json"))


@pytest.mark.parametrize("design", OLD_RUNS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_old_runs_say_the_same_in_the_new_format(design: Path) -> None:
    run = Run(design.parent)
    for entry in run.journal():
        content = run.content(entry)
        assert b"nafaudit.format" not in content
        comes_back(list(parts.decode(content)))
        table = parts.read_table(content)
        assert table.num_rows == sum(max(1, len(one)) for one in parts.decode(content))


def test_the_differences_of_format_1_are_undone() -> None:
    """Columns as format 1 kept them, written here by a slow twin of its prediction."""
    rng = np.random.default_rng(0)
    records = [noise(rng, 5), noise(rng, 0), noise(rng, 9)]
    k, debt = 0.7, 1 / 3
    lists: dict[str, list[list[object]]] = {name: [] for name in STEP_TYPES}
    with np.errstate(all="ignore"):
        for steps in records:
            for name in STEP_TYPES:
                lists[name].append(getattr(steps, name).tolist())
            lists["allowance"][-1], lists["served"][-1] = [], []
            spent = 0.0
            for t in range(len(steps)):
                due = np.float64((t + 1) * k)
                due = (due - spent if t else due) - debt
                due = due if due > 0 else np.float64(0.0)
                spent = steps.charge[t] if t == 0 else spent + steps.charge[t]
                law = steps.safe[t] if steps.theta[t] == 0 else steps.risky[t]
                bits = steps.allowance[t].view(np.int64) ^ due.view(np.int64)
                lists["allowance"][-1].append(int(bits))
                lists["served"][-1].append(int(steps.served[t].view(np.int32) ^ law.view(np.int32)))
    types = STEP_TYPES | {"allowance": np.int64, "served": np.int32}
    names = {"allowance": "allowance_xor_banking", "served": "served_xor_model"}
    stored = {
        names.get(name, name): pa.array(
            [np.array(one, types[name]) for one in lists[name]],
            pa.list_(pa.from_numpy_dtype(types[name])),
        )
        for name in STEP_TYPES
    }
    # As bits: Python's numbers know only one NaN.
    for name in ("charge", "theta", "safe", "risky"):
        flat = np.concatenate([getattr(steps, name) for steps in records])
        stored[name] = pa.ListArray.from_arrays(stored[name].offsets, pa.array(flat))
    keys = {"prompt": ["a", "b", "c"], "mechanism": ["m"] * 3, "k": [k] * 3}
    rest = {"trajectory": pa.array([0] * 3, pa.int32()), "debt": [debt] * 3, "stopped": [True] * 3}
    sink = io.BytesIO()
    pq.write_table(pa.table({**keys, **rest, **stored, "logged": pa.nulls(3)}), sink)
    for one, steps in zip(parts.decode(sink.getvalue()), records, strict=True):
        assert one.same_as(Trajectory(one.key, debt, True, steps))


def test_a_run_is_fifteen_times_smaller_than_json_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["store", "--trajectories", "256", "--checks", "1"])
    store.main()
    ratio = re.search(r"JSON Lines / run +([\d.]+)", capsys.readouterr().out)
    assert ratio is not None
    assert float(ratio[1]) >= 15
