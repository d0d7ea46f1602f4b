"""`nafaudit export --measures` and `--steps`: tables that other tools read as numbers."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nafaudit.cli.main import main
from nafaudit.measures.table import Measures, steps_table
from nafaudit.store.artifacts import RULES, VERIFICATION, write_verification
from nafaudit.store.export import write_table
from nafaudit.store.run import Run

RUNS = Path(__file__).parents[1] / "runs" / "c049abe"
NAMES = ("own", "violated", "imported", "box", "sequence")


def by_duckdb(path: Path) -> dict[str, list[Any]]:
    found = duckdb.read_csv(str(path))
    return dict(zip(found.columns, map(list, zip(*found.fetchall(), strict=True)), strict=True))


READERS: dict[str, Callable[[Path], dict[str, list[Any]]]] = {
    "pandas": lambda path: pandas.read_csv(path).to_dict("list"),
    "polars": lambda path: polars.read_csv(path, infer_schema_length=None).to_dict(as_series=False),
    "duckdb": by_duckdb,
}


def export(monkeypatch: pytest.MonkeyPatch, *options: object) -> int:
    monkeypatch.setattr("sys.argv", ["nafaudit", "export", *map(str, options)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def verified(name: str, tmp_path: Path) -> Run:
    """A stored run; of a black box one whose verification is of today's rules."""
    if name != "box":
        return Run(RUNS / name)
    shutil.copytree(RUNS / name, tmp_path / name)
    run = Run(tmp_path / name)
    found = json.loads((run.path / VERIFICATION).read_text())
    del found["sha256"], found["journal"]
    write_verification(run, found | {"rules": RULES})
    return run


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_stored_runs_hold_what_is_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(RUNS / name)
    files = ["--measures", tmp_path / "m.parquet", "--steps", tmp_path / "s.parquet"]
    assert export(monkeypatch, run.path, *files) in (0, 3)
    measures, steps = pq.read_table(tmp_path / "m.parquet"), pq.read_table(tmp_path / "s.parquet")
    rows = Measures.of_run(run)
    assert measures.equals(rows.to_arrow())
    again = steps_table(run)
    assert steps.schema.equals(again.schema, check_metadata=True)
    assert repr(steps.to_pydict()) == repr(again.to_pydict())
    assert all(column.metadata[b"unit"] for column in (*measures.schema, *steps.schema))
    for row, shown in zip(rows, measures.to_pylist(), strict=True):
        assert (row.key.prompt, row.key.k, row.length) == (
            *(shown["prompt"], shown["k"], shown["length"]),
        )
        assert shown["spend"] == row.spend or (shown["spend"] is None and math.isnan(row.spend))
        assert shown["violated"] == (shown["verdict"] == "VIOLATED")
    records = sorted(run.trajectories(), key=lambda one: one.key)
    charges = [one.steps.charge if len(one) else np.array([np.nan]) for one in records]
    found = steps["charge"].to_numpy()
    assert np.array_equal(found, np.concatenate(charges), equal_nan=True)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", NAMES)
def test_csv_is_read_with_the_same_numbers(reader: str, name: str, tmp_path: Path) -> None:
    run = verified(name, tmp_path)
    for table in (Measures.of_run(run).to_arrow(), steps_table(run)):
        write_table(table, tmp_path / "t.csv")
        found = READERS[reader](tmp_path / "t.csv")
        assert list(found) == table.column_names
        for column in table.schema:
            if pa.types.is_floating(column.type):
                wanted = table[column.name].to_numpy().astype(np.float64)
                values = np.array(found[column.name], np.float64)
                precision = 1e-7 if column.type == pa.float32() else 0.0
                assert np.allclose(values, wanted, rtol=precision, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("reader", READERS)
def test_numbers_that_are_not_finite_leave_a_column_of_csv_numbers(
    reader: str, tmp_path: Path
) -> None:
    values = [1.5, math.inf, -math.inf, math.nan, None, -0.0]
    write_table(pa.table({"x": pa.array(values, pa.float64()), "n": range(6)}), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().split("\n")[1:6] == [
        *("1.5,0", "inf,1", "-inf,2", "nan,3", ",4")
    ]
    found = np.array(READERS[reader](tmp_path / "t.csv")["x"], np.float64)
    assert np.array_equal(found, np.array(values, np.float64), equal_nan=True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--measures", "m.xlsx"], "m.xlsx ends with '.xlsx'; give a name that ends with .parquet"),
        (["--steps", "steps"], "steps ends with 'no suffix'; give a name that ends with .parquet"),
        (["--steps", "nowhere/s.csv"], "there is no directory nowhere; give the name of a file"),
        (["--steps", "d.csv"], "d.csv is a directory; give the name of a file"),
        (["--steps", "r/parts/s.parquet"], "among the parts of the run"),
        (["--steps", "t.csv", "--measures", "t.csv"], "name the same file; give two names"),
        (["--steps", "t.csv", "--paper"], "--steps and --paper do not go together"),
        (["--measures", "t.csv", "--out", "o"], "--measures and --out do not go together"),
        (["--measures", "t.csv", "--delta", "0.1"], "--measures and --delta do not go together"),
    ],
)
def test_what_cannot_be_written_is_said_first(
    options: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(RUNS / "own", tmp_path / "r")
    (tmp_path / "d.csv").mkdir()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert export(monkeypatch, "r", *options) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_table_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.parquet").write_bytes(b"before")

    def full(table: pa.Table, where: Path, **options: Any) -> None:
        where.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(pq, "write_table", full)
        assert export(monkeypatch, RUNS / "own", "--measures", tmp_path / "m.parquet") == 2
    assert (tmp_path / "m.parquet").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["m.parquet"]
    assert export(monkeypatch, RUNS / "own", "--measures", tmp_path / "m.parquet") in (0, 3)
    assert pq.read_table(tmp_path / "m.parquet").num_rows
