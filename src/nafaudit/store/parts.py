"""Trajectories to Parquet and back: one row each, per-step columns as lists."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nafaudit.core.trajectory import (
    LOGGED_FIELDS,
    STEP_TYPES,
    Key,
    Logged,
    Steps,
    Trajectory,
)

_ARROW_TYPES = {
    np.int32: pa.int32(),
    np.float32: pa.float32(),
    np.float64: pa.float64(),
}

KEY_COLUMNS = ("prompt", "mechanism", "k", "trajectory")

SCHEMA = pa.schema(
    [
        ("prompt", pa.string()),
        ("mechanism", pa.string()),
        ("k", pa.float64()),
        ("trajectory", pa.int32()),
        ("debt", pa.float64()),
        ("stopped", pa.bool_()),
        *((name, pa.list_(_ARROW_TYPES[dtype])) for name, dtype in STEP_TYPES.items()),
        # Claims of a foreign log; null, and so next to nothing on disk, for our own.
        (
            "logged",
            pa.struct(
                [
                    ("spend", pa.float64()),
                    ("budget", pa.float64()),
                    ("length", pa.float64()),
                    ("granted", pa.list_(pa.float64())),
                    ("cumulative", pa.list_(pa.float64())),
                ]
            ),
        ),
    ]
)


def encode(trajectories: Sequence[Trajectory]) -> bytes:
    """Returns the Parquet file of some trajectories."""
    keys = [trajectory.key for trajectory in trajectories]
    columns: dict[str, pa.Array] = {
        name: pa.array([getattr(key, name) for key in keys], SCHEMA.field(name).type)
        for name in KEY_COLUMNS
    }
    columns["debt"] = pa.array([t.debt for t in trajectories], pa.float64())
    columns["stopped"] = pa.array([t.stopped for t in trajectories], pa.bool_())
    ends = np.cumsum([0, *(len(t) for t in trajectories)], dtype=np.int32)
    for name in STEP_TYPES:
        joined = np.concatenate([getattr(t.steps, name) for t in trajectories])
        columns[name] = pa.ListArray.from_arrays(pa.array(ends), pa.array(joined))
    columns["logged"] = pa.array(
        [_logged_row(t.logged) for t in trajectories], SCHEMA.field("logged").type
    )
    sink = io.BytesIO()
    pq.write_table(
        pa.table(columns, schema=SCHEMA),
        sink,
        compression="zstd",
        use_dictionary=["prompt", "mechanism", "token.list.element"],
        # Bytes of like weight side by side: exponents repeat where mantissas do not.
        use_byte_stream_split=[
            f"{name}.list.element" for name, dtype in STEP_TYPES.items() if dtype != np.int32
        ],
    )
    return sink.getvalue()


def decode(content: bytes) -> Iterator[Trajectory]:
    """Yields the trajectories of a Parquet file, in its order."""
    table = pq.read_table(io.BytesIO(content)).combine_chunks()
    keys = _keys(table)
    debts, stopped = table["debt"].to_pylist(), table["stopped"].to_pylist()
    logged = table["logged"].to_pylist()
    lists = {name: table[name].chunk(0) for name in STEP_TYPES} if keys else {}
    values = {name: column.values.to_numpy() for name, column in lists.items()}
    offsets = lists["token"].offsets.to_numpy() if lists else []
    for row, key in enumerate(keys):
        span = slice(offsets[row], offsets[row + 1])
        steps = Steps(**{name: values[name][span] for name in STEP_TYPES})
        yield Trajectory(key, debts[row], stopped[row], steps, _logged(logged[row]))


def decode_keys(content: bytes) -> list[Key]:
    """Returns only which trajectories a Parquet file holds."""
    return _keys(pq.read_table(io.BytesIO(content), columns=list(KEY_COLUMNS)))


def _logged_row(logged: Logged | None) -> dict[str, Any] | None:
    return None if logged is None else {name: getattr(logged, name) for name in LOGGED_FIELDS}


def _logged(row: dict[str, Any] | None) -> Logged | None:
    if row is None:
        return None
    arrays = {name: np.array(row[name], np.float64) for name in ("granted", "cumulative")}
    return Logged(row["spend"], row["budget"], row["length"], **arrays)


def _keys(table: pa.Table) -> list[Key]:
    columns = [table[name].to_pylist() for name in KEY_COLUMNS]
    return [Key(*values) for values in zip(*columns, strict=True)]
