"""What people and machines get: 80 columns, one object, four figures, a page that is up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nafaudit.cli.main import app
from nafaudit.core.errors import InputError
from nafaudit.paper.figures import FIGURES
from nafaudit.paper.recompute import counterfactuals, recompute
from nafaudit.paper.view import page, paper_document
from nafaudit.views.terminal import terminal

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_code_computes() -> None:
    """Whatever else stands in docs/paper.md stands after the generated part."""
    written = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert written.startswith(page()), "write it again: nafaudit paper --markdown > docs/paper.md"
    for name in FIGURES:
        assert (ROOT / "docs" / "paper" / f"{name}.svg").stat().st_size > 10_000


@pytest.mark.parametrize("every", [False, True])
def test_80_columns_summary_first_disagreements_last(every: bool) -> None:
    result = recompute()
    text = terminal(paper_document(result, counterfactuals(), every=every))
    assert max(map(len, text.split("\n"))) <= 80
    first = text.split("\n")[0]
    assert first.startswith(f"RECOMPUTED: {len(result.cells)} checks: ")
    tail = text[text.index("disagreements found") :]
    assert all(point in tail for point in (*result.points, *result.readings))
    assert ("every check" in text) == every


@pytest.fixture(scope="module")
def as_json(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("paper") / "figures"
    shown = CliRunner().invoke(app, ["paper", "--json", "--out", str(out)])
    assert shown.exit_code == 0
    data: dict[str, Any] = json.loads(shown.stdout)
    return data


def test_json_counts_and_lists(as_json: dict[str, Any]) -> None:
    data = as_json
    lists = ("disagree", "depends", "not_checkable")
    assert data["cells"] == data["agree"] + sum(len(data[name]) for name in lists)
    assert len({row["point"] for row in data["disagree"]}) == data["points"] >= 10
    assert {row["group"] for row in data["depends"]} == {"depends"}
    for row in (*data["disagree"], *data["depends"]):
        assert {"where", "printed", "computed", "text"} <= set(row)
        assert row["printed"] in row["text"]
    assert all(row["why"] and row["where"] for row in data["not_checkable"])
    assert len(data["figures"]) == 8
    assert all(Path(path).stat().st_size > 5_000 for path in data["figures"])


@pytest.mark.full
def test_text_and_the_same_eight_figures_again(
    as_json: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["paper"])
    assert shown.exit_code == 0
    assert "disagreements found" in shown.stdout
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "paper").iterdir()}
    assert set(drawn) == {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "pdf")}
    assert len(drawn) == 8
    assert all(len(content) > 5_000 for content in drawn.values())
    assert drawn == {Path(p).name: Path(p).read_bytes() for p in as_json["figures"]}


def test_markdown_from_the_command_line() -> None:
    assert CliRunner().invoke(app, ["paper", "--markdown"]).stdout == page()


@pytest.mark.parametrize("pair", [("--json", "--markdown"), ("--json", "--all")])
def test_two_ways_to_print_are_refused(pair: tuple[str, str]) -> None:
    shown = CliRunner().invoke(app, ["paper", *pair])
    assert isinstance(shown.exception, InputError)
    assert f"leave out {pair[1]}" in str(shown.exception)


def test_figures_do_not_go_into_a_file(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    shown = CliRunner().invoke(app, ["paper", "--out", str(taken)])
    assert isinstance(shown.exception, InputError)
    assert "is a file" in str(shown.exception)
