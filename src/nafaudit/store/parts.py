"""Trajectories to Parquet and back: one row per token, as docs/format.md documents it.

Rows are sorted by prompt, mechanism, k, trajectory and step. What is true of a whole trajectory
stands in each of its rows. A trajectory without tokens, from a log that keeps only totals, has one
row whose step is null.

Parts of format 1, which earlier versions wrote, are read too: one row per trajectory, steps as
lists, and two columns kept as the XOR of their bits with a prediction from the others.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nafaudit.core.errors import StoreError
from nafaudit.core.trajectory import STEP_TYPES, Key, Logged, Steps, Trajectory

FORMAT = 2
"""Version of the layout that `encode` writes; a file names its own."""

_FORMAT_KEY, _UNITS_KEY = b"nafaudit.format", b"nafaudit.units"


class Column(NamedTuple):
    """A column of a table: its type, its unit and what it is."""

    name: str
    type: pa.DataType
    unit: str
    text: str


COLUMNS = (
    Column("prompt", pa.string(), "id", "id of the prompt, as in prompts.jsonl"),
    Column("mechanism", pa.string(), "name", "name of the mechanism, with what decides its laws"),
    Column(
        *("k", pa.float64(), "nats per token"),
        "budget per token; 0 is the safe model alone, inf the risky model alone",
    ),
    Column("trajectory", pa.int32(), "number from 0", "number of the trajectory of this prompt"),
    Column("step", pa.int32(), "number from 0", "place of the token in the output"),
    Column("token", pa.int32(), "token id", "token that was drawn; negative if a log lacks it"),
    Column("allowance", pa.float64(), "nats", "what the step was allowed to cost"),
    Column("charge", pa.float64(), "nats", "what the step was charged"),
    Column(
        *("theta", pa.float32(), "weight"),
        "weight of the risky law, exactly 0 or 1 only if one law was served unchanged; NaN if none",
    ),
    Column("log_p_served", pa.float32(), "nats", "log of the token's probability as served"),
    Column("log_p_safe", pa.float32(), "nats", "the same under the safe model"),
    Column("log_p_risky", pa.float32(), "nats", "the same under the risky model"),
    Column("debt", pa.float64(), "nats", "prefix debt of the trajectory; NaN if a log is silent"),
    Column("stopped", pa.bool_(), "true or false", "whether a stop token ended the trajectory"),
)
"""The columns of every part."""

CLAIMS = (
    Column("claimed_spend", pa.float64(), "nats", "total charge of the trajectory"),
    Column("claimed_budget", pa.float64(), "nats", "budget at its end"),
    Column("claimed_length", pa.float64(), "tokens", "tokens written"),
    Column("claimed_granted", pa.float64(), "nats", "budget after the step"),
    Column("claimed_cumulative", pa.float64(), "nats", "charge summed up to the step"),
    Column(
        *("claimed_contested", pa.float64(), "nats"),
        "what k and the length grant, where the log states a larger budget",
    ),
)
"""Further columns where records are not ours (a log, a black box): what is claimed beyond steps."""

KEY_COLUMNS = Key._fields
STEP_COLUMNS = {
    **{name: name for name in STEP_TYPES},
    **{name: f"log_p_{name}" for name in ("served", "safe", "risky")},
}
"""The column of each field of `Steps`."""

_TOTALS = {name: f"claimed_{name}" for name in ("spend", "budget", "length", "contested")}
_RUNNING = {name: f"claimed_{name}" for name in ("granted", "cumulative")}
_REPEATED = (*KEY_COLUMNS, "debt", *_TOTALS.values())


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Returns a schema whose fields name their units."""
    return pa.schema([pa.field(c.name, c.type, metadata={"unit": c.unit}) for c in columns])


def encode(trajectories: Sequence[Trajectory], *, claims: bool | None = None) -> bytes:
    """Returns the Parquet file of some trajectories, sorted by their keys.

    Args:
        trajectories: The records.
        claims: True if the file has columns for claims of a log, which all parts of a run must
            have or lack; None if that follows from the records.
    """
    table = to_table(trajectories, claims=claims)
    names = table.column_names
    split = [n for n in names if n not in _REPEATED and pa.types.is_floating(table[n].type)]
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=9,
        use_dictionary=[name for name in _REPEATED if name in names],
        # First bytes of all values, then the second, and so on: exponents repeat.
        column_encoding={
            **dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
            **{"step": "DELTA_BINARY_PACKED", "token": "PLAIN"},
        },
        # Minima and maxima only of the columns that readers select rows by.
        write_statistics=[*KEY_COLUMNS, "step"],
        sorting_columns=pq.SortingColumn.from_ordering(
            table.schema, [(name, "ascending") for name in (*KEY_COLUMNS, "step")]
        ),
    )
    return sink.getvalue()


def to_table(trajectories: Sequence[Trajectory], *, claims: bool | None = None) -> pa.Table:
    """Returns trajectories as a table of one row per token, sorted by their keys.

    Args:
        trajectories: The records.
        claims: As for `encode`.
    """
    found = sorted(trajectories, key=lambda one: _order(one.key))
    if claims is None:
        claims = any(one.logged is not None for one in found)
    lengths = np.array([len(one) for one in found], np.int64)
    rows = np.maximum(lengths, 1)
    owner = pa.array(np.repeat(np.arange(len(found)), rows))
    step = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    empty = np.repeat(lengths == 0, rows)
    mask = empty if empty.any() else None

    def repeated(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
        return pa.array(values, type_).take(owner)

    def stepwise(arrays: Sequence[NDArray[Any] | None], type_: pa.DataType) -> pa.Array:
        """Joins a column of all trajectories; null where one has none, or no steps."""
        dtype = type_.to_pandas_dtype()
        blank = [a is None or not len(one) for a, one in zip(arrays, found, strict=True)]
        values = np.concatenate(
            [
                np.zeros(count, dtype) if is_blank else array
                for array, is_blank, count in zip(arrays, blank, rows, strict=True)
            ]
            or [np.empty(0, dtype)]
        )
        return pa.array(values, type_, mask=np.repeat(blank, rows) if any(blank) else None)

    columns: dict[str, pa.Array] = {
        **{
            name: repeated([getattr(one.key, name) for one in found], type_)
            for name, type_, *_ in COLUMNS[:4]
        },
        "step": pa.array(step, pa.int32(), mask=mask),
        "debt": repeated([one.debt for one in found], pa.float64()),
        "stopped": repeated([one.stopped for one in found], pa.bool_()),
    }
    for name, column in STEP_COLUMNS.items():
        type_ = pa.from_numpy_dtype(STEP_TYPES[name])
        columns[column] = stepwise([getattr(one.steps, name) for one in found], type_)
    if claims:
        for name, column in _TOTALS.items():
            values = [None if one.logged is None else getattr(one.logged, name) for one in found]
            columns[column] = repeated(values, pa.float64())
        for name, column in _RUNNING.items():
            columns[column] = stepwise([_running(one, name) for one in found], pa.float64())
    stored = COLUMNS + CLAIMS if claims else COLUMNS
    # The units once more as JSON, for readers that do not know Arrow's own metadata.
    units = json.dumps({column.name: column.unit for column in stored})
    schema = schema_of(stored).with_metadata({_FORMAT_KEY: str(FORMAT), _UNITS_KEY: units})
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _order(key: Key) -> tuple[Any, ...]:
    """Returns what a key is sorted by: a budget that is no number comes last."""
    return key.prompt, key.mechanism, math.isnan(key.k), key.k, key.trajectory


def _running(trajectory: Trajectory, name: str) -> NDArray[np.float64] | None:
    """Returns a claim of each step; None if there is none."""
    claim = None if trajectory.logged is None else getattr(trajectory.logged, name)
    if claim is None or not claim.size:
        return None
    if claim.size != len(trajectory):
        raise ValueError(
            f"trajectory {tuple(trajectory.key)} has {len(trajectory)} steps and {claim.size} "
            f"values of {name!r}; a claim is of every step or of none."
        )
    return np.asarray(claim, np.float64)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some trajectories, the steps of all of them one after another in one set of columns.

    Attributes:
        keys: Which trajectories.
        debts: Their prefix debts.
        stopped: Whether a stop token ended each.
        lengths: How many steps each has.
        steps: All steps.
        claims: What a log says of each; None for our own.
    """

    keys: Sequence[Key]
    debts: NDArray[np.float64]
    stopped: Sequence[bool]
    lengths: NDArray[np.int64]
    steps: Steps
    claims: Sequence[Logged | None]

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Batch:
        """Joins the steps of trajectories."""
        given = list(trajectories)
        none = {name: np.empty(0, dtype) for name, dtype in STEP_TYPES.items()}
        return cls(
            [one.key for one in given],
            np.array([one.debt for one in given], np.float64),
            [one.stopped for one in given],
            np.array([len(one) for one in given], np.int64),
            Steps(
                **{
                    name: np.concatenate([empty, *(getattr(one.steps, name) for one in given)])
                    for name, empty in none.items()
                }
            ),
            [one.logged for one in given],
        )

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Where the steps of each trajectory end in the columns."""
        return np.cumsum(self.lengths)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where the steps of each trajectory begin in the columns."""
        return self.ends - self.lengths

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Trajectory]:
        debts, starts, ends = self.debts.tolist(), self.starts.tolist(), self.ends.tolist()
        for row, key in enumerate(self.keys):
            steps = self._cut(starts[row], ends[row])
            yield Trajectory(key, debts[row], self.stopped[row], steps, self.claims[row])

    def trajectory(self, row: int) -> Trajectory:
        """Returns one of them; its steps are views."""
        steps, debt = self._cut(self.starts[row], self.ends[row]), float(self.debts[row])
        return Trajectory(self.keys[row], debt, self.stopped[row], steps, self.claims[row])

    def _cut(self, start: int, end: int) -> Steps:
        return Steps(**{name: column[start:end] for name, column in vars(self.steps).items()})

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """Returns some of them, in ascending order of their places; itself if they are all."""
        if rows.size == len(self):
            return self
        lengths = self.lengths[rows]
        first = np.repeat(self.starts[rows] - (np.cumsum(lengths) - lengths), lengths)
        places = first + np.arange(lengths.sum())
        return Batch(
            [self.keys[row] for row in rows],
            self.debts[rows],
            [self.stopped[row] for row in rows],
            lengths,
            Steps(**{name: getattr(self.steps, name)[places] for name in Steps.columns}),
            [self.claims[row] for row in rows],
        )


def decode(content: bytes) -> Iterator[Trajectory]:
    """Yields the trajectories of a Parquet file, in its order.

    Raises:
        StoreError: The file is of a later format.
    """
    yield from decode_batch(content)


def decode_batch(content: bytes) -> Batch:
    """Returns the trajectories of a Parquet file together, in its order; as `decode` otherwise."""
    file = _open(content)
    if _format(file) == 1:
        return Batch.of(_decode_lists(_read(file)))
    table = _read(file)
    starts, ends = _spans(table)
    lengths = ends - starts
    if not starts.size:
        return Batch.of(())
    claims: Sequence[Logged | None] = [None] * starts.size
    if _TOTALS["spend"] in table.column_names:
        totals = {name: _values(table, column, starts) for name, column in _TOTALS.items()}
        claims = _claims(table, totals, starts, ends)
    steps = {name: _array(table[column].chunk(0), 0) for name, column in STEP_COLUMNS.items()}
    if not lengths.all():
        # A trajectory without steps has a row, but nothing in it.
        there = _array(table["step"].chunk(0), -1) >= 0
        steps = {name: column[there] for name, column in steps.items()}
    debts = np.array(_values(table, "debt", starts), np.float64)
    stopped = _values(table, "stopped", starts)
    return Batch(_keys(table, starts), debts, stopped, lengths, Steps(**steps), claims)


def decode_keys(content: bytes) -> list[Key]:
    """Returns only which trajectories a Parquet file holds, in its order."""
    file = _open(content)
    if _format(file) == 1:
        return _keys(_read(file, KEY_COLUMNS))
    table = _read(file, (*KEY_COLUMNS, "step"))
    return _keys(table, _spans(table)[0])


def read_table(content: bytes, *, claims: bool | None = None) -> pa.Table:
    """Returns a Parquet file of any format as a table of one row per token.

    Args:
        content: The file.
        claims: As for `encode`.
    """
    if _format(_open(content)) == 1:
        return to_table(list(_decode_lists(_read(_open(content)))), claims=claims)
    table = _read(pq.ParquetFile(io.BytesIO(content), pre_buffer=False))
    has = _TOTALS["spend"] in table.column_names
    if claims is None or claims == has:
        return table
    return to_table(list(decode(content)), claims=claims)


def join(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns tables of one row per token as one, sorted by key and step."""
    table = pa.concat_tables(tables or [to_table([])]).combine_chunks()
    starts, _ = _spans(table)
    lengths = np.diff(np.append(starts, table.num_rows))
    keys = _keys(table, starts)
    order = np.array(sorted(range(len(keys)), key=lambda row: _order(keys[row])), np.int64)
    if (order == np.arange(order.size)).all():
        return table
    rows = np.repeat(starts[order] - (np.cumsum(lengths[order]) - lengths[order]), lengths[order])
    return table.take(pa.array(rows + np.arange(table.num_rows)))


def _keys(table: pa.Table, rows: NDArray[np.int64] | None = None) -> list[Key]:
    """Returns the keys of some rows; of all if None."""
    chosen = np.arange(table.num_rows) if rows is None else rows
    columns = [_values(table, name, chosen) for name in KEY_COLUMNS]
    return [Key(*values) for values in zip(*columns, strict=True)]


def _values(table: pa.Table, name: str, rows: NDArray[np.int64]) -> list[Any]:
    """Returns a column of some rows as Python's values: by way of NumPy, faster than by Arrow."""
    column = table[name].combine_chunks()
    if pa.types.is_dictionary(column.type):
        words: list[str] = column.dictionary.to_pylist()
        return [words[index] for index in _array(column.indices)[rows].tolist()]
    if pa.types.is_boolean(column.type):
        return [bool(value) for value in _array(column.cast(pa.uint8()))[rows].tolist()]
    if column.null_count or pa.types.is_string(column.type):
        some: list[Any] = column.take(pa.array(rows)).to_pylist()
        return some
    every: list[Any] = _array(column)[rows].tolist()
    return every


def _array(column: pa.Array, missing: int = 0) -> NDArray[Any]:
    """Returns numbers as they are in memory; `to_numpy` would import pandas where it is there."""
    return np.from_dlpack(column.fill_null(missing) if column.null_count else column)


def _spans(table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns where the steps of each trajectory begin and end."""
    numbers = _array(table["step"].combine_chunks(), -1)
    starts = np.flatnonzero(numbers <= 0)
    ends = np.append(starts[1:], numbers.size)
    return starts, np.where(numbers[starts] < 0, starts, ends)


def _claims(
    table: pa.Table,
    totals: Mapping[str, Sequence[float | None]],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> list[Logged | None]:
    running = {name: table[column].chunk(0) for name, column in _RUNNING.items()}
    found: list[Logged | None] = []
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        own = {name: values[row] for name, values in totals.items()}
        if own["spend"] is None:
            found.append(None)
            continue
        spans = {name: column.slice(start, end - start) for name, column in running.items()}
        arrays = {
            name: np.empty(0) if span.null_count else _array(span) for name, span in spans.items()
        }
        found.append(Logged(**own, **arrays))  # type: ignore[arg-type]
    return found


def _open(content: bytes) -> pq.ParquetFile:
    names = ["prompt", "mechanism"]
    return pq.ParquetFile(io.BytesIO(content), pre_buffer=False, read_dictionary=names)


def _format(file: pq.ParquetFile) -> int:
    """Returns the format that a file names; 1 if it names none."""
    given = (file.metadata.metadata or {}).get(_FORMAT_KEY, b"1").decode()
    if given not in ("1", str(FORMAT)):
        raise StoreError(
            f"a part of this run has format {given}, and this nafaudit reads formats 1 and "
            f"{FORMAT}; use the version that wrote it, which sessions.jsonl names."
        )
    return int(given)


def _read(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads Parquet without threads: a process that exits while one of Arrow's runs may abort."""
    names = None if columns is None else list(columns)
    return file.read(columns=names, use_threads=False).combine_chunks()


# Format 1.

_WORDS: dict[str, type[np.generic]] = {"allowance": np.int64, "served": np.int32}
_RESIDUALS = {"allowance": "allowance_xor_banking", "served": "served_xor_model"}

_Columns = Mapping[str, NDArray[Any]]
_Rows = Sequence[tuple[float, float]]


def _decode_lists(table: pa.Table) -> Iterator[Trajectory]:
    """Yields the trajectories of a part of format 1."""
    keys = _keys(table)
    if not keys:
        return
    debts, stopped = table["debt"].to_pylist(), table["stopped"].to_pylist()
    logged = table["logged"].to_pylist()
    ends = _array(table["token"].chunk(0).offsets)
    names = {*STEP_TYPES, *_RESIDUALS.values()}.intersection(table.column_names)
    rows = [(key.k, debt) for key, debt in zip(keys, debts, strict=True)]
    stored = {name: _array(table[name].chunk(0).values) for name in names}
    values = {name: stored[name] for name in STEP_TYPES if name in stored}
    for name, residual in _RESIDUALS.items():
        if residual in stored:
            bits = _predicted(name, values, rows, ends).view(_WORDS[name])
            values[name] = (stored[residual] ^ bits).view(STEP_TYPES[name])
    for row, key in enumerate(keys):
        span = slice(ends[row], ends[row + 1])
        steps = Steps(**{name: values[name][span] for name in STEP_TYPES})
        yield Trajectory(key, debts[row], stopped[row], steps, _logged(logged[row]))


def _predicted(
    name: str, steps: _Columns, rows: _Rows, ends: NDArray[np.int32]
) -> NDArray[np.float64] | NDArray[np.float32]:
    """Predicts a column from the others, by single IEEE operations: the same on any machine."""
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


def _logged(row: dict[str, Any] | None) -> Logged | None:
    if row is None:
        return None
    arrays = {name: np.array(row[name], np.float64) for name in _RUNNING}
    contested = row.get("contested", math.nan)
    return Logged(row["spend"], row["budget"], row["length"], **arrays, contested=contested)
