"""Trajectories to Parquet and back: one row each, per-step columns as lists.

Two columns mostly follow from the others: the allowance is what the banking rule says, the
served law is that of one model unless both were mixed. Where that is so for most steps of a
part, the part keeps the XOR of the column's bits with that prediction, nearly all zeros, under a
name that says so. Whatever the prediction, every bit comes back. It is made of single IEEE
operations, so that every machine makes the same one.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nafaudit.core.trajectory import (
    LOGGED_FIELDS,
    STEP_TYPES,
    Key,
    Logged,
    Steps,
    Trajectory,
)

_WORDS: dict[str, type[np.generic]] = {"allowance": np.int64, "served": np.int32}
_RESIDUALS = {"allowance": "allowance_xor_banking", "served": "served_xor_model"}

KEY_COLUMNS = ("prompt", "mechanism", "k", "trajectory")

_ROW_COLUMNS = pa.schema(
    [
        ("prompt", pa.string()),
        ("mechanism", pa.string()),
        ("k", pa.float64()),
        ("trajectory", pa.int32()),
        ("debt", pa.float64()),
        ("stopped", pa.bool_()),
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


_Columns = Mapping[str, NDArray[Any]]
_Rows = Sequence[tuple[float, float]]


def encode(trajectories: Sequence[Trajectory]) -> bytes:
    """Returns the Parquet file of some trajectories."""
    keys = [trajectory.key for trajectory in trajectories]
    columns: dict[str, pa.Array] = {
        name: pa.array([getattr(key, name) for key in keys], _ROW_COLUMNS.field(name).type)
        for name in KEY_COLUMNS
    }
    columns["debt"] = pa.array([t.debt for t in trajectories], pa.float64())
    columns["stopped"] = pa.array([t.stopped for t in trajectories], pa.bool_())
    ends = np.cumsum([0, *(len(t) for t in trajectories)], dtype=np.int32)
    steps = {
        name: np.concatenate([getattr(t.steps, name) for t in trajectories]) for name in STEP_TYPES
    }
    rows = [(key.k, t.debt) for key, t in zip(keys, trajectories, strict=True)]
    stored = {
        name: pa.ListArray.from_arrays(pa.array(ends), pa.array(values))
        for name, values in _with_residuals(steps, rows, ends)
    }
    columns["logged"] = _logged_column([t.logged for t in trajectories])
    sink = io.BytesIO()
    pq.write_table(
        pa.table(columns | stored),
        sink,
        compression="zstd",
        use_dictionary=["prompt", "mechanism"],
        # Bytes of like weight side by side: exponents repeat where mantissas do not.
        use_byte_stream_split=[f"{name}.list.element" for name in stored],
    )
    return sink.getvalue()


def decode(content: bytes) -> Iterator[Trajectory]:
    """Yields the trajectories of a Parquet file, in its order."""
    table = _table(content).combine_chunks()
    keys = _keys(table)
    if not keys:
        return
    debts, stopped = table["debt"].to_pylist(), table["stopped"].to_pylist()
    logged = table["logged"].to_pylist()
    ends = table["token"].chunk(0).offsets.to_numpy()
    names = [name for name in table.column_names if name not in _ROW_COLUMNS.names]
    rows = [(key.k, debt) for key, debt in zip(keys, debts, strict=True)]
    values = _without_residuals(
        {name: table[name].chunk(0).values.to_numpy() for name in names}, rows, ends
    )
    for row, key in enumerate(keys):
        span = slice(ends[row], ends[row + 1])
        steps = Steps(**{name: values[name][span] for name in STEP_TYPES})
        yield Trajectory(key, debts[row], stopped[row], steps, _logged(logged[row]))


def decode_keys(content: bytes) -> list[Key]:
    """Returns only which trajectories a Parquet file holds."""
    return _keys(_table(content, KEY_COLUMNS))


def _with_residuals(
    steps: _Columns, rows: _Rows, ends: NDArray[np.int32]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields each column as stored: a predicted one as its difference, if that is mostly zero."""
    for name, values in steps.items():
        if name in _RESIDUALS:
            word = _WORDS[name]
            residual = values.view(word) ^ _predicted(name, steps, rows, ends).view(word)
            if 2 * np.count_nonzero(residual) <= residual.size:
                yield _RESIDUALS[name], residual
                continue
        yield name, values


def _without_residuals(stored: _Columns, rows: _Rows, ends: NDArray[np.int32]) -> _Columns:
    """Returns the columns of the record from those of a part."""
    steps = {name: stored[name] for name in STEP_TYPES if name in stored}
    for name, residual in _RESIDUALS.items():
        if residual in stored:
            bits = _predicted(name, steps, rows, ends).view(_WORDS[name])
            steps[name] = (stored[residual] ^ bits).view(STEP_TYPES[name])
    return steps


def _predicted(
    name: str, steps: _Columns, rows: _Rows, ends: NDArray[np.int32]
) -> NDArray[np.float64] | NDArray[np.float32]:
    if name == "served":
        return np.asarray(np.where(steps["theta"] == 0, steps["safe"], steps["risky"]))
    charge, allowance = steps["charge"], np.zeros(steps["charge"].size)
    with np.errstate(invalid="ignore", over="ignore"):
        for (k, debt), start, end in zip(rows, ends[:-1], ends[1:], strict=True):
            if end > start:
                spent = np.cumsum(charge[start : end - 1])  # one after the other, as it was paid
                allowance[start:end] = np.arange(1, end - start + 1) * k
                allowance[start + 1 : end] -= spent
                allowance[start:end] -= debt
    # Not `maximum`: which zero, or which NaN, it returns depends on the machine.
    return np.where(allowance > 0, allowance, 0.0)


def _logged_column(claims: Sequence[Logged | None]) -> pa.Array:
    """Returns the claims; a contested budget is a field only where there is one."""
    fields = list(_ROW_COLUMNS.field("logged").type)
    if any(one is not None and not math.isnan(one.contested) for one in claims):
        fields.append(pa.field("contested", pa.float64()))
    rows = [one and {name: getattr(one, name) for name in LOGGED_FIELDS} for one in claims]
    return pa.array(rows, pa.struct(fields))


def _logged(row: dict[str, Any] | None) -> Logged | None:
    if row is None:
        return None
    arrays = {name: np.array(row[name], np.float64) for name in ("granted", "cumulative")}
    contested = row.get("contested", math.nan)
    return Logged(row["spend"], row["budget"], row["length"], **arrays, contested=contested)


def _keys(table: pa.Table) -> list[Key]:
    columns = [table[name].to_pylist() for name in KEY_COLUMNS]
    return [Key(*values) for values in zip(*columns, strict=True)]


def _table(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads Parquet without threads: a process that ends beside one of Arrow's may abort."""
    file = pq.ParquetFile(io.BytesIO(content), pre_buffer=False)
    return file.read(columns=None if columns is None else list(columns), use_threads=False)
