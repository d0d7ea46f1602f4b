"""The map of the paper misses nothing, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nafaudit.paper.view import MAP_KINDS, map_page, map_rows
from tests.commands import call, typed

ROOT = Path(__file__).parents[2]
PAPER = ROOT.parent / "shared" / "reference" / "paper.tex"
ROWS = map_rows()
COMMANDS = sorted({row["command"] for row in ROWS if row["command"]})


def test_every_label_and_section_of_the_paper_is_in_the_map() -> None:
    if not PAPER.is_file():
        pytest.skip("the paper's source is not beside this checkout")
    source = PAPER.read_text(encoding="utf-8")
    labels = set(re.findall(r"\\label\{([^}]+)\}|label=\{([^}]+)\}", source))
    assert {one or other for one, other in labels} == {r["label"] for r in ROWS if r["label"]}
    titles = re.findall(r"\\(?:sub)?section\{((?:[^{}]|\{[^}]*\})*)\}", source)
    assert titles == [row["what"] for row in ROWS if row["kind"] == "section"]
    items = re.findall(r"\\item \\textbf\{", source)
    assert len(items) == sum(row["kind"] == "checklist item" for row in ROWS) == 7
    ahead = source[source.index(r"\label{app:future}") : source.index(r"\label{app:checklist}")]
    assert len(re.findall(r"^\(\d\)", ahead, re.M)) == sum(r["kind"] == "future work" for r in ROWS)
    advice = source[source.index("We therefore recommend") : source.index(r"\section{Discussion}")]
    wanted = sorted(set(re.findall(r"^\(([a-z])\)", advice, re.M)))
    assert wanted == [row["what"][1] for row in ROWS if row["kind"] == "recommendation"]


def test_every_remedy_is_named_by_its_option() -> None:
    typed = " ".join(COMMANDS)
    for option in ("--fix min-n,width,reff,delta", "--searches 2", "--archive kdpp", "--embedding ",
                   "--coupled", "--variant text"):  # fmt: skip
        assert option in typed


def test_every_kind_is_shown_and_every_row_has_a_place() -> None:
    assert {row["kind"] for row in ROWS} == set(MAP_KINDS)
    for row in ROWS:
        assert (row["command"] and row["where"] and row["test"]) or row["note"], row


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_typed(command: str, tmp_path: Path) -> None:
    for name in ("DIR", "RUN", "RUN2"):
        (tmp_path / name).mkdir()
        command = re.sub(rf"\b{name}\b", str(tmp_path / name), command)
    command = command.replace("OWNER/NAME@COMMIT", f"a/b@{40 * chr(48)}")
    typed(command)


def test_every_test_is_there() -> None:
    for name in sorted({row["test"] for row in ROWS if row["test"]}):
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(), name


def test_the_page_is_what_the_data_say_and_the_readme_names_it_first(tmp_path: Path) -> None:
    assert (ROOT / "docs" / "paper-map.md").read_text() == map_page()
    assert call("paper", "--map", cwd=tmp_path).stdout == map_page()
    lines = (ROOT / "README.md").read_text().splitlines()
    assert any("docs/paper-map.md" in line for line in lines[:40])
    assert len(lines) <= 90
