"""An option is declared once, and read alike from a command line, a file and Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nafaudit.core.errors import InputError
from nafaudit.core.options import Group, build, declared, from_words, load, option
from nafaudit.core.settings import PlanSettings, RunSettings
from nafaudit.worth.settings import AttackSettings


@dataclass(frozen=True, kw_only=True)
class Small(Group):
    """One option of every type."""

    refused: ClassVar[Mapping[str, str]] = {"gone": "it went. Leave it out."}

    count: int = option(1, "How many.", least=1, unit=" thing", why="None is not enough.")
    share: float = option(0.5, "How much.", above=0, below=1)
    word: str | None = option(None, "Which.", choices=("red", "blue"))
    fast: bool = option(False, "Whether.")
    sizes: tuple[int, ...] = option((3,), "Sizes.", name="size", form="whole numbers")
    names: tuple[str, ...] = option((), "Names.", split=False)
    caps: Mapping[str, int] = option({}, "Caps.", form="NAME=N")
    columns: Mapping[str, str] = option({}, "Columns.", form="A=B", split=False)
    where: Path | None = option(None, "Where.")

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"count": 7} if given.get("word") == "blue" else {}


def one(name: str) -> Any:
    return next(found for found in declared(Small) if found.name == name)


def test_a_file_and_python_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(
        'count = 2\nshare = 0.25\nword = "red"\nfast = true\nsize = [4, 5]\nnames = ["a,b"]\n'
        'caps.x = 3\ncolumns.y = "z"\nwhere = "there"\n'
    )
    python: dict[str, Any] = {
        "count": 2, "share": 0.25, "word": "red", "fast": True, "size": [4, 5], "names": ["a,b"],
        "caps": {"x": 3}, "columns": {"y": "z"}, "where": Path("there"),
    }  # fmt: skip
    found = build(Small, python)
    assert load(Small, tmp_path / "d.toml", {}) == found
    assert (found.sizes, found.where) == ((4, 5), Path("there"))
    # What is given beside a file wins; None is not given.
    assert load(Small, tmp_path / "d.toml", {"count": 3, "share": None}).count == 3


def test_defaults_may_depend_on_what_is_given() -> None:
    assert build(Small, {}).count == 1
    assert build(Small, {"word": "blue"}).count == 7
    assert build(Small, {"word": "blue", "count": 2}).count == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cuont": 1}, r"unknown option 'cuont'; did you mean 'count'\? Allowed: caps, columns"),
        ({"sizes": 1}, r"unknown option 'sizes'; did you mean 'size'\?"),
        ({"count": 0}, r"count must be at least 1 thing, got 0\. None is not enough\."),
        ({"count": True}, r"count must be int, got True"),
        ({"count": 1.5}, r"count must be int, got 1\.5"),
        ({"share": 1}, r"share must be above 0 and below 1, got 1"),
        ({"word": "bleu"}, r"word must be red or blue, got 'bleu'; did you mean 'blue'\?"),
        ({"fast": 1}, r"fast must be bool, got 1"),
        ({"size": "big"}, r"size must be a number or a list of numbers, got 'big'"),
        ({"caps": {"x": 1.5}}, r"caps must be a table of whole numbers"),
        ({"gone": 3}, r"gone = 3 is refused: it went\. Leave it out\."),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^{said}"):
        build(Small, given)


def test_a_range_holds_however_settings_are_made() -> None:
    with pytest.raises(InputError, match="count must be at least 1"):
        Small(count=0)


def test_words_of_a_command_line_are_repeated_or_between_commas() -> None:
    assert from_words(one("size"), ["1,2", "3"]) == (1, 2, 3)
    assert from_words(one("names"), ["a,b", "c"]) == ("a,b", "c")
    assert from_words(one("caps"), ["x=1, y=2"]) == {"x": 1, "y": 2}
    assert from_words(one("columns"), ["spend=a=b,c"]) == {"spend": "a=b,c"}
    for name, words in (("size", ["1,x"]), ("caps", ["x"]), ("caps", ["x=1,x=2"])):
        with pytest.raises(InputError, match=rf"^{one(name).flag} (must be|of 'x' is given twice)"):
            from_words(one(name), words)


def test_commands_share_an_option_and_may_name_it_otherwise() -> None:
    made = build(AttackSettings, {"attempts": 3, "user_budget": 5, "temperature": 0.7})
    assert (made.trajectories, made.user_budgets, made.decoding.temperature) == (3, (5.0,), 0.7)
    assert build(PlanSettings, {"seed": 3}).seed == 3  # of a run, and not on plan's command line


def test_nothing_after_the_solve_is_taken_from_python() -> None:
    with pytest.raises(InputError, match=r"top-p = 0\.9 is refused: it truncates the law"):
        build(RunSettings, {"top_p": 0.9})
