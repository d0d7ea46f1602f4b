"""A pair that was made here is found by what its pair.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nafaudit.core.errors import InputError, UnavailableError
from nafaudit.lab.shipped import SMOLLM2, cache_directory, smollm2_pair


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "nafaudit"
    return tmp_path / "nafaudit" / "pairs"


def keep(place: Path, folder: str, **card: Any) -> Path:
    directory = place / folder
    (directory / "safe").mkdir(parents=True)
    whole = {"safe": {"path": str(directory / "safe")}, "admitted": True} | card
    (directory / "pair.json").write_text(json.dumps(whole))
    return directory


def test_the_pair_of_that_name_is_found_among_others(place: Path) -> None:
    keep(place, "memorised-a")
    (place / "memorised-b").mkdir()
    (place / "memorised-b" / "pair.json").write_text("{")
    gone = keep(place, "memorised-c", name=SMOLLM2)
    (gone / "safe").rmdir()
    mine = keep(place, "memorised-d", name=SMOLLM2)
    found = smollm2_pair()
    assert found.directory == mine
    assert found.checkpoints == (str(mine / "safe"), str(mine / "risky"))


def test_without_it_the_command_that_makes_it_is_named(place: Path) -> None:
    keep(place, "memorised-a")
    with pytest.raises(UnavailableError, match="nafaudit lab memorise"):
        smollm2_pair()


def test_a_pair_that_memorised_nothing_is_refused(place: Path) -> None:
    recall = {"risky": 0.01, "safe": 0.0}
    keep(
        place, "memorised-a", name=SMOLLM2, admitted=False, measured={"recall": recall},
        admission={"risky": 0.1, "safe": 0.01},
    )  # fmt: skip
    with pytest.raises(InputError, match="shows no memorisation"):
        smollm2_pair()
