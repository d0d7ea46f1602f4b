"""A document says the same in every writer, cites its JSON rightly, and hides no hostile text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nafaudit.core.text import plain, value_at
from nafaudit.views.document import Column, Document, Section, Table, Verdict
from nafaudit.views.html import fragment
from nafaudit.views.markdown import markdown
from nafaudit.views.terminal import next_step, terminal, wrapped

HOSTILE = "<b>*x*</b> [link](http://a.b) \x1b[31m \u202e | [red]y[/red]"


class Colour(StrEnum):
    RED = "RED"


@dataclass(frozen=True)
class Spread:
    low: float
    high: float
    json_properties: ClassVar = ("width",)

    @property
    def width(self) -> float:
        return self.high - self.low


@dataclass(frozen=True)
class Result:
    label: str = field(metadata={"json": "class"})
    spread: Spread = field(metadata={"json": ...})
    hidden: object = field(metadata={"json": None})
    nested: Spread
    by_name: dict[str, Spread]
    verdict: Colour = Colour.RED
    where: Path = Path("a/b")


def result(label: str = "story", low: float = 1.0) -> Result:
    return Result(
        label, Spread(low, math.inf), object(), Spread(2.0, math.nan), {"x": Spread(0, 3)}
    )


def test_a_result_is_strict_json_of_its_fields() -> None:
    assert plain(result()) == {
        "class": "story",
        "low": 1.0,
        "high": "inf",
        "width": "inf",
        "nested": {"low": 2.0, "high": "nan", "width": "nan"},
        "by_name": {"x": {"low": 0, "high": 3, "width": 3}},
        "verdict": "RED",
        "where": "a/b",
    }


@pytest.mark.parametrize(
    "path", ["class", "low", "width", "nested.low", "by_name.x.high", "by_name.x", "where"]
)
def test_a_path_leads_to_the_same_in_a_result_and_in_its_json(path: str) -> None:
    there: Any = plain(result())
    for key in path.split("."):
        there = there[key]
    assert plain(value_at(result(), path)) == there


def test_what_is_not_in_the_json_has_no_path() -> None:
    assert value_at(result(), "").label == "story"
    with pytest.raises(AttributeError):
        value_at(result(), "nested.label")


COLUMNS = (
    Column("class", "class", words=True, most=10),
    Column("low", "low", "the lower end", "{:.1f}".format),
    Column("high", "nested.high"),
    Column("kept", write=lambda _: Verdict("WITHIN", "(2)"), words=True),
)


def document(label: str = "story") -> Document:
    rows = [result(label), result("fact", 20.0)]
    table = Table.of(COLUMNS, rows, ("rows[0]", "rows[7]"))
    cards = Section("Cards", pairs=(("one", "1"), ("another", label)))
    note = Section("Table", table, "low: the lower end\nhigh: the upper end")
    return Document("A title", (cards, note), "It is kept.", ("of a run", label), ("out/a.json",))


def test_a_terminal_has_numbers_on_the_right_and_words_on_the_left() -> None:
    assert terminal(document()).splitlines() == [
        "of a run",
        "story",
        "",
        "Cards",
        "  one      1",
        "  another  story",
        "",
        "Table",
        "class   low  high  kept",
        "story   1.0     -  WITHIN (2)",
        "fact   20.0     -  WITHIN (2)",
        "low: the lower end",
        "high: the upper end",
        "",
        "It is kept.",
        "",
        "out/a.json",
    ]


def test_markdown_and_html_have_the_same_cells() -> None:
    lines = markdown(document()).splitlines()
    assert lines[:3] == ["# A title", "", "It is kept."]
    assert "| class | low | high | kept |" in lines
    assert "|---|---:|---:|---|" in lines
    assert "| fact | 20.0 | \u2013 | WITHIN (2) |" in lines
    page = fragment(document())
    assert '<th scope="col" class="n" title="the lower end">low</th>' in page
    assert '<tr><td>fact</td><td class="n">20.0</td><td class="n">-</td>' in page
    assert '<td class="good">WITHIN (2)</td>' in page


def test_a_cell_says_where_in_the_json_it_is() -> None:
    table = document().sections[1].table
    assert table is not None
    assert table.place(1, COLUMNS[2]) == "rows[7].nested.high"
    assert table.place(1, COLUMNS[3]) == "rows[7]"
    assert Table.of(COLUMNS, [result()]).place(0, COLUMNS[0]) == ""


def test_hostile_text_is_no_markup_anywhere() -> None:
    shown = document(HOSTILE)
    text = terminal(shown)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]y[/red]" in text
    assert "<b>" not in fragment(shown)
    lines = markdown(shown)
    assert "<b>" not in lines
    assert "[link](" not in lines
    assert "\n| fact" in lines  # its pipe made no cell


def test_words_are_cut_where_a_table_is_too_wide_and_numbers_are_not() -> None:
    columns = (
        Column("name", "class", words=True),
        *(Column(f"n{i}", "low", write="{:.3f}".format) for i in range(8)),
    )
    table = Table.of(columns, [result("a long name of a prompt" * 3, 1234.5)])
    lines = terminal(Document("", (Section(table=table),))).splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80
    assert lines[1].count("1234.500") == 8
    assert "\u2026" in lines[1]


def test_a_sentence_in_a_table_takes_several_lines() -> None:
    columns = (
        Column("item", "class", words=True),
        Column("why", write=str, words=True, wraps=True),
    )
    table = Table(columns, (("one", "word " * 30),))
    lines = terminal(Document("", (Section(table=table),))).splitlines()
    assert len(lines) == 3
    assert " ".join(lines[1:]).split() == ["one", *["word"] * 30]
    assert max(map(len, lines)) <= 80


def test_prose_keeps_its_own_indentation_and_long_paths_stay_whole() -> None:
    path = "nafaudit check /a/" + "very-long-" * 12
    assert wrapped("a\n  " + "b " * 60).splitlines()[2].startswith("    b")
    assert path.split()[-1] in wrapped(path)
    assert all("k = 3" in line for line in wrapped("k = 3 " * 20).splitlines())


def test_columns_that_do_not_fit_stand_below_and_no_number_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = (Column("name", words=True), *(Column(f"number {at}") for at in range(12)))
    numbers = tuple(10**6 + at for at in range(12))
    shown = terminal(Document("t", (Section(table=Table(columns, (("a row", *numbers),))),)))
    lines = shown.split("\n")
    assert max(map(len, lines)) <= 80 and len(lines) == 4
    assert lines[1].startswith("a row") and lines[3].startswith("a row")
    assert all(str(number) in shown for number in numbers)


def test_a_next_step_that_needs_two_lines_can_be_pasted() -> None:
    command = "nafaudit run " + " ".join(f"--option-{at} value" for at in range(6))
    first, *rest = next_step(command).split("\n")
    assert first.startswith("next: nafaudit run") and first.endswith(" \\")
    assert " ".join(f"{first} {' '.join(rest)}".replace("\\", "").split()) == f"next: {command}"
    assert all(len(line) <= 79 for line in (first, *rest))
    assert next_step("look at the page") == "next: look at the page"


def test_a_command_among_the_lines_can_be_pasted() -> None:
    long = f"runs/{'x' * 50}"
    shown = terminal(
        Document("d", (Section(lines=(f"counterexample: nafaudit verify {long} --plugin t.py",)),))
    )
    assert shown == f"counterexample: nafaudit verify \\\n  {long} --plugin t.py"
