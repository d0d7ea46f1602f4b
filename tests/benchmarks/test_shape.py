"""The shape of a source tree is counted as its page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.shape import AIMS, COMMANDS, shape

LONG = "def long() -> None:\n" + "    pass\n" * 6


def test_a_small_tree_is_counted(tmp_path: Path) -> None:
    package = tmp_path / "src" / "nafaudit"
    for room in ("core", "paper"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").write_text("")
        (package / room / "same.py").write_text("class Same:\n    x: int\n" + LONG)
    (package / "core" / "padded.py").write_text(
        "class RunSettings:\n    a: int\n    b: int\n"
        "def short(x: str) -> str:\n    return f'{x:>9}'\n"
    )
    (tmp_path / "README.md").write_text("| two words | 3 |\n")
    assert shape(tmp_path, commands=()) == {
        "lines of source": 23,
        "of which without paper/ and workshop/": 14,
        "files": 5,
        "functions of at most 5 lines": 1 / 3,
        "files that lay out a text table": 1,
        "largest group of options, in fields": 2,
        "file names used twice": 1,
        "class names used twice": 1,
        "words of README and docs": 2,
    }


@pytest.mark.full
def test_every_number_has_an_aim() -> None:
    here = Path(__file__).resolve().parents[2]
    entered = {f"files entered by {command}" for command in COMMANDS}
    assert set(shape(here, commands=())) | entered == set(AIMS)
