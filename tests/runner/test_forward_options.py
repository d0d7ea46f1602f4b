"""How the forwards run: what bfloat16 changes, what two threads and two devices do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.store.run import Run
from tests.commands import call

Paths = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def run(
    tiny_pair_paths: Paths, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Path, dict[Key, Trajectory], dict[str, Any]]]:
    """Runs a tiny pair with more options; returns the place, the records and the session."""
    directory = tmp_path_factory.mktemp("forwards")
    safe, risky = tiny_pair_paths("llama")
    lines = [{"id": f"p{i}", "text": "The baker said " * (i + 1), "class": "c"} for i in range(3)]
    (directory / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    models = ("--safe", safe, "--risky", risky, "--prompts", "p.jsonl")
    sizes = ("--k", "0.5", "--trajectories", 2, "--max-new-tokens", 8, "--quiet")

    def run(name: str, *more: object) -> tuple[Path, dict[Key, Trajectory], dict[str, Any]]:
        done = call("run", *models, *sizes, "--out", name, *more, cwd=directory)
        assert done.returncode in (0, 3), done.stderr
        path = directory / name
        session = json.loads((path / "sessions.jsonl").read_text().splitlines()[-1])
        return path, {t.key: t for t in Run(path).trajectories()}, session

    return run


Started = Callable[..., tuple[Path, dict[Key, Trajectory], dict[str, Any]]]


@pytest.fixture(scope="module")
def plain(run: Started) -> tuple[Path, dict[Key, Trajectory], dict[str, Any]]:
    return run("plain", "--batch", 8)


def _same(one: dict[Key, Trajectory], other: dict[Key, Trajectory]) -> bool:
    return one.keys() == other.keys() and all(one[key].same_as(other[key]) for key in one)


def test_two_threads_and_two_devices_are_recorded_and_change_nothing(
    run: Started, plain: tuple[Path, dict[Key, Trajectory], dict[str, Any]]
) -> None:
    _, expected, session = plain
    assert (session["together"], session["safe_device"], session["speculate"]) == (False, "cpu", 0)
    _, found, session = run("both", "--batch", 8, "--together", "--safe-device", "cpu:0")
    assert (session["together"], session["safe_device"]) == (True, "cpu:0")
    assert session["device"] == "cpu"
    assert _same(found, expected)


def test_bfloat16_changes_the_laws_and_not_the_promise(
    run: Started, plain: tuple[Path, dict[Key, Trajectory], dict[str, Any]]
) -> None:
    path, found, session = run("short", "--batch", 8, "--dtype", "bfloat16")
    assert found.keys() == plain[1].keys()
    # The first step has the prompt before it both ways: other laws, so another charge or debt.
    assert any(
        found[key].debt != plain[1][key].debt
        or found[key].steps.safe[0] != plain[1][key].steps.safe[0]
        for key in found
    )
    assert not _same(found, plain[1])
    for trajectory in found.values():
        if 0 < trajectory.key.k < float("inf"):
            # Laws are float64 whatever the forwards are: no tolerance.
            assert (trajectory.steps.charge <= trajectory.steps.allowance).all()
            assert trajectory.spend <= max(0.0, len(trajectory) * 0.5 - trajectory.debt)
    # The precision is part of what the run is, by which replay loads the models.
    for place, dtype in ((path, "bfloat16"), (plain[0], "float32")):
        assert f'"dtype": "{dtype}"' in json.dumps(Run(place).design)
    # Independent of the batch, or the session says that it is not.
    _, other, _ = run("short3", "--batch", 3, "--dtype", "bfloat16")
    assert _same(other, found) or not session["probe"]["batch_free"]


def test_a_true_bfloat16_run_is_true(run: Started) -> None:
    path, _, _ = run("short", "--batch", 8, "--dtype", "bfloat16")
    done = call("verify", path, "--json", "--quiet", cwd=path.parent)
    assert done.returncode == 0, done.stderr
