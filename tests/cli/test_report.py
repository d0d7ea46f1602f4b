"""`nafaudit report` as a user calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nafaudit.store.run import Run
from tests.commands import WITHOUT_TORCH, call
from tests.handmade import plain_run

FILES = [f"runs/r/report/{name}" for name in ("index.html", "report.md", "report.json")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    plain_run(path / "runs" / "r")
    return path


def test_it_names_its_files_and_takes_the_latest_run(directory: Path) -> None:
    done = call("report", cwd=directory)
    assert done.returncode == 0
    answer, *names, then = [line for line in done.stdout.splitlines() if line]
    assert answer.startswith("WITHIN: ")
    assert names == FILES and then == f"next: open {FILES[0]} in a browser"
    assert all((directory / name).is_file() for name in FILES)


def test_its_json_is_the_file_with_the_run_named(directory: Path) -> None:
    done = call("report", "runs/r", "--json", cwd=directory)
    data = json.loads(done.stdout, parse_constant=pytest.fail)
    file = json.loads((directory / FILES[2]).read_text())
    assert data["made"].pop("run") == "runs/r"
    assert data["made"].pop("files") == FILES
    assert data == file


def test_the_command_of_a_number_works_where_the_page_says(directory: Path) -> None:
    run = directory / "runs" / "r"
    done = call("report", ".", "--record", "000001.parquet:5", cwd=run)
    assert json.loads(done.stdout)["spend"] == list(Run(run).trajectories())[5].spend
    named = call("report", ".", "--record", list(Run(run).keys())[5].name(), cwd=run)
    assert json.loads(named.stdout).keys() == json.loads(done.stdout).keys()
    wrong = call("report", ".", "--record", "7", cwd=run)
    assert wrong.returncode == 2
    assert "give PROMPT@K#TRAJECTORY" in wrong.stderr


def test_it_needs_no_torch(directory: Path) -> None:
    code = [sys.executable, "-c", WITHOUT_TORCH]
    done = call("report", "runs/r", "--redact", cwd=directory, code=code)
    assert done.returncode == 0, done.stderr
    assert "Once upon" not in (directory / FILES[0]).read_text()
