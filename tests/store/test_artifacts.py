"""Files beside the records: what is written is what is declared, and what is read is held to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nafaudit.core.errors import StoreError
from nafaudit.store.artifacts import (
    ARTIFACTS,
    SEARCH,
    VERIFICATION,
    read_search,
    read_verification,
    schema,
)
from nafaudit.store.run import Run

RUNS = Path(__file__).parents[1] / "runs"
SEARCHES = sorted(path.parent for path in RUNS.glob("*/*search/search.json"))
BOXES = sorted(path.parent for path in RUNS.glob("*/*/verify.json"))


def edited(tmp_path: Path, source: Path, name: str, **change: Any) -> Run:
    shutil.copytree(source, tmp_path / "r")
    path = tmp_path / "r" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return Run(tmp_path / "r")


def test_there_are_stored_runs_of_two_versions() -> None:
    assert len(SEARCHES) == 4 and len(BOXES) == 2


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: "-".join(path.parts[-2:]))
def test_a_stored_search_is_what_is_declared(path: Path) -> None:
    found = read_search(Run(path))
    assert found == json.loads((path / SEARCH).read_text())
    # Every field is declared, but for what only an older or the paper's search has.
    assert set(found or ()) <= set(ARTIFACTS[SEARCH].__annotations__)


@pytest.mark.parametrize("path", BOXES, ids=lambda path: "-".join(path.parts[-2:]))
def test_a_stored_verification_is_what_is_declared(path: Path) -> None:
    found = read_verification(Run(path))
    assert found is not None and found["current"]
    assert set(found) - {"current"} <= set(ARTIFACTS[VERIFICATION].__annotations__)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"looked": "many"}, r"looked"),
        ({"k": "large"}, r"Invalid enum value 'large' - at `\$.k`"),
        ({"finalists": [{"use": {"mean": [1]}}]}, r"finalists\[0\].use.mean"),
        ({"outcome": 3}, "no outcome"),
    ],
)
def test_a_part_of_another_type_is_named(tmp_path: Path, change: Any, says: str) -> None:
    run = edited(tmp_path, SEARCHES[0], SEARCH, **change)
    with pytest.raises(StoreError, match=says):
        read_search(run)


def test_numbers_that_are_not_finite_and_fields_of_a_later_version_are_read(
    tmp_path: Path,
) -> None:
    run = edited(tmp_path, SEARCHES[0], SEARCH, k="inf", later={"a": [1]})
    found = read_search(run)
    assert found is not None and found["k"] == "inf" and found["later"] == {"a": [1]}


def test_an_edited_verification_is_refused_whatever_was_edited(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{"tokens": 1}, {"tokens": "1"}, {"more": 1}]
    for number, change in enumerate(changes):
        run = edited(tmp_path / str(number), BOXES[0], VERIFICATION, **change)
        with pytest.raises(StoreError, match="damaged or edited"):
            read_verification(run)


@pytest.mark.parametrize("name", list(ARTIFACTS))
def test_every_artefact_has_a_schema(name: str) -> None:
    found = schema(name)
    assert found["$ref"].removeprefix("#/$defs/") in found["$defs"]
    assert json.dumps(found).count('"enum": ["-inf", "inf", "nan"]')
