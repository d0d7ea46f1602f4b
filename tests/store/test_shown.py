"""What a black box shows of its laws: kept beside the records, checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nafaudit.core.errors import StoreError
from nafaudit.core.trajectory import Key, Shown, Trajectory
from nafaudit.store.run import Run
from nafaudit.store.shown import LAWS, SHOWN, log_laws, shown_families, shown_laws
from tests.records import trajectory
from tests.store.test_artifacts import HOSTILE
from tests.store.test_run import read, write

LAW = np.log(np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]), where=[True, True, False],
             out=np.full((2, 3), -np.inf)).astype(np.float32)  # fmt: skip


def shows(k: float, shown: Shown | None, prompt: str = "../p 0") -> Trajectory:
    return replace(trajectory(Key(prompt, "m", k, 0), [0.1, 0.2]), shown=shown)


def test_what_is_shown_is_read_again_and_the_record_is_as_ever(tmp_path: Path) -> None:
    given = [
        shows(0.0, None),
        shows(1.0, Shown(LAW)),
        shows(2.0, Shown(family="arithmetic")),
        shows(float("inf"), Shown(LAW[::-1], "geometric"), "p0"),
    ]
    run = write(tmp_path / "r", given)
    laws, families = shown_laws(run), shown_families(run)
    assert list(laws) == [given[1].key, given[3].key] and given[0].key not in laws
    assert laws[given[1].key].tobytes() == LAW.tobytes()
    assert laws[given[3].key].tobytes() == LAW[::-1].tobytes()
    assert families == {given[2].key: "arithmetic", given[3].key: "geometric"}
    assert laws.get(given[0].key) is None
    assert all(one.shown is None and one.same_as(two) for one, two in zip(
        read(run.path), sorted(given, key=lambda one: one.key), strict=True))  # fmt: skip
    assert all(path.parent == run.path / LAWS for path in run.path.rglob("*.npy"))


def test_a_run_that_shows_nothing_has_no_such_files(tmp_path: Path) -> None:
    run = write(tmp_path / "r", [shows(1.0, None)])
    assert len(shown_laws(run)) == 0 == len(shown_families(run))
    assert not (run.path / SHOWN).exists() and not (run.path / LAWS).exists()


def test_of_two_lines_for_one_trajectory_the_last_counts(tmp_path: Path) -> None:
    one = shows(1.0, Shown(LAW, "arithmetic"))
    again = replace(one, shown=Shown(LAW[::-1]))
    run = write(tmp_path / "r", [one], [again])
    assert shown_laws(run)[one.key].tobytes() == LAW[::-1].tobytes()
    assert shown_families(run) == {}
    assert len(list((run.path / LAWS).iterdir())) == 1


def test_shown_laws_have_mass_1_when_they_are_used() -> None:
    laws = log_laws(LAW + np.float32(5e-5))
    assert laws.dtype == np.float64 and laws[0, 2] == -np.inf
    assert np.abs(np.exp(laws).sum(axis=1) - 1).max() < 1e-15


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        lambda path: np.save(path, LAW[:1]),
    ],
)
def test_a_damaged_file_of_laws_is_named(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    one = shows(1.0, Shown(LAW))
    run = write(tmp_path / "r", [one])
    (path,) = (run.path / LAWS).iterdir()
    damage(path)
    with pytest.raises(StoreError, match=path.name):
        _ = shown_laws(run)[one.key]


@pytest.mark.parametrize("place", ["key", "family", "laws", "file", "steps", "size", "sha256"])
def test_hostile_lines_are_read_or_refused(tmp_path: Path, place: str) -> None:
    one = shows(1.0, Shown(LAW, "arithmetic"))
    path = write(tmp_path / "r", [one]).path / SHOWN
    line = json.loads(path.read_text())
    for value in (*HOSTILE, "../../../etc/passwd", "0" * 32 + ".npy\n"):
        laws = line["laws"] | {place: value}
        edited = line | ({place: value} if place in line else {"laws": laws})
        path.write_text(json.dumps(edited) + "\n")
        try:
            found = shown_laws(Run(path.parent))
            assert set(shown_families(Run(path.parent)).values()) <= {"geometric", "arithmetic"}
            for key in found:
                assert found[key].shape == LAW.shape
        except StoreError:
            pass
