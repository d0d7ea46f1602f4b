"""Notebooks: at most ten lines from nothing to verdicts, a dataframe, a plot; charges, two runs."""

from __future__ import annotations

import contextlib
import functools
import math
from pathlib import Path
from typing import Any
from unittest import mock

import nbclient
import nbformat
import pytest

import nafaudit

EXAMPLES = Path(__file__).parents[1] / "examples"


def executed(name: str, where: Path) -> list[Any]:
    """Returns a notebook's cells of code, after a kernel has run them in an empty directory."""
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    resources = {"metadata": {"path": str(where)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def results(cells: list[Any]) -> list[Any]:
    """Returns what cells end with, by media type."""
    return [
        one.data for cell in cells for one in cell.outputs if one.output_type == "execute_result"
    ]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return executed("tour.ipynb", tmp_path_factory.mktemp("notebook"))


def test_it_has_ten_lines_at_most() -> None:
    cells = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    assert 0 < len([line for text in code for line in text.splitlines() if line.strip()]) <= 10


def test_its_lines_run_in_any_interpreter(tmp_path: Path) -> None:
    """The same lines, of a smaller audit; a kernel runs them as they stand in the second tier."""
    cells = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    small = functools.partial(nafaudit.audit, pair="tiny", limit=4, max_new_tokens=4)
    names: dict[str, Any] = {}
    with (
        contextlib.chdir(tmp_path),
        mock.patch.object(nafaudit, "audit", small),
        pytest.warns(nafaudit.NafauditWarning, match="a verdict needs 20"),
    ):
        exec(code, names)
        assert [one.k for one in names["run"].verdicts] == [0, 0.25, 1, 10, math.inf]
        assert set(names["frame"].k) == {0, 0.25, 1, 10, math.inf}


@pytest.mark.full
def test_it_shows_verdicts_a_dataframe_and_a_plot(cells: list[Any]) -> None:
    verdicts, frame, plot = results(cells)
    assert '<td>k = 0.25</td><td class="good">WITHIN</td>' in verdicts["text/html"]
    assert "VACUOUS" in verdicts["text/html"]
    assert "dataframe" in frame["text/html"]
    assert "<th>use</th>" in frame["text/html"]
    assert len(plot["image/png"]) > 10_000


@pytest.mark.full
def test_progress_is_one_line_that_was_rewritten(cells: list[Any]) -> None:
    """Nothing is left on standard error, and the last state of the line is kept."""
    first = cells[0].outputs
    assert [one for one in first if one.output_type == "stream"] == []
    lines = [one.data["text/plain"] for one in first if one.output_type == "display_data"]
    assert len(lines) == 1
    assert "480/480 trajectories" in lines[0]


@pytest.mark.full
def test_charges_of_one_execution_and_two_runs_compared(tmp_path: Path) -> None:
    cells = executed("charges.ipynb", tmp_path)
    verdicts, steps, plot, moved, spends = results(cells)
    assert '<td>k = 0.5</td><td class="good">WITHIN</td>' in verdicts["text/html"]
    assert "<th>allowance</th>" in steps["text/html"]
    assert len(plot["image/png"]) > 5_000
    assert "FINE" in moved["text/plain"]
    assert "spend" in moved["text/html"]
    assert "<th>capped</th>" in spends["text/html"]
    # Neither libraries nor we warn of anything, which would name paths of the machine.
    assert [one for cell in cells for one in cell.outputs if one.output_type == "stream"] == []
    bank, capped = (
        nafaudit.open_run(tmp_path / "runs" / name).measures().to_pandas().query("k == 0.5")
        for name in ("bank", "capped")
    )
    assert capped.spend.sum() < bank.spend.sum()


def test_no_output_is_stored() -> None:
    """What a notebook shows is made anew; a stored output would grow old."""
    for path in EXAMPLES.glob("**/*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            assert not cell.get("outputs"), path
