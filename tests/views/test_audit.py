from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nafaudit.answers import Audit
from nafaudit.cli.output import show
from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.classes import ClassTable, class_table
from nafaudit.measures.table import Measures
from nafaudit.store.run import Run, open_for_writing
from nafaudit.views.audit import class_sections
from nafaudit.views.document import Document
from nafaudit.views.terminal import terminal
from nafaudit.workload import Prompt, TokenizedPrompt
from tests.measures.test_classes import FACTS, LABELS, PIECES, T, executions


def printed(table: ClassTable) -> list[str]:
    lines = terminal(Document("", tuple(class_sections(table)))).splitlines()
    assert max(map(len, lines), default=0) <= 80
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def table() -> ClassTable:
    return class_table(Measures.of(executions(2.0) + executions(1.0), FACTS))


def test_a_row_per_class_and_budget_with_its_bounds(table: ClassTable) -> None:
    lines = printed(table)
    row, other = (line.split() for line in lines if line.startswith("k = 2") and "wild" in line)
    assert row[3:10] == ["wild*", "50", "25", "21.1", "2.55", "6.12", "109!"]
    assert other[-1] == "100%"
    assert sum(line.startswith("k =") for line in lines) == 8  # spends, then debts and overlaps
    assert any("0.013 for 4 looks" in line for line in lines)


def test_one_class_needs_no_table(table: ClassTable) -> None:
    assert printed(replace(table, rows=table.rows[:1])) == []
    assert printed(ClassTable((), 0, 0.05)) == []


def test_many_classes_are_cut_to_the_worst_and_names_are_no_markup(table: ClassTable) -> None:
    rows = tuple(
        replace(table.rows[0], label=f"[red]{i:02d}", mean=float(i % 29), k=1.5) for i in range(30)
    )
    lines = printed(replace(table, rows=rows))
    assert [line.split()[3] for line in lines if line.startswith("k =")] == ["[red]28*"] * 2
    assert any("only the worst of 30 classes" in line for line in lines)


def test_a_hostile_or_long_name_stays_a_name(table: ClassTable) -> None:
    first, second = (replace(row, k=1.0) for row in table.rows[:2])
    names = "\x1b[31mred", "a class with a name of some length"
    rows = replace(first, label=names[0]), replace(second, label=names[1])
    text = "\n".join(printed(replace(table, rows=rows)))
    assert "\x1b" not in text
    assert "a class with\N{HORIZONTAL ELLIPSIS}*" in text  # the worst is still marked


def test_too_few_for_evidence_leaves_the_bounds_out(table: ClassTable) -> None:
    few = [one for one in executions() if int(one.key.prompt[4:]) < 4]
    text = "\n".join(printed(class_table(Measures.of(few, FACTS))))
    assert "U_eff" not in text
    assert "fewer than 20 are no evidence" in text


def test_a_run_says_its_classes_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:

    identity = Identity({"safe": "a"}, "m", "banking", Decoding(max_new_tokens=T), "h", 256, 0)
    design = Design(identity, Extent((2.0,), 2, tuple(LABELS)))
    prompts = [
        TokenizedPrompt(Prompt(name, "text", label, FACTS.references[name]), (0, 5))
        for name, label in LABELS.items()
    ]
    vocabulary = {"pieces": [piece.decode() for piece in PIECES], "stops": []}
    with open_for_writing(tmp_path, design, prompts, vocabulary) as writer:
        writer.append(executions())
        writer.note_session({"delta": 0.02})
    run = Run(tmp_path)
    show(Audit(run), as_json=True)
    calm, wild = json.loads(capsys.readouterr().out)["classes"]
    assert (wild["class"], wild["trajectories"], wild["prompts"]) == ("wild", 50, 25)
    assert (wild["worst"], calm["worst"]) == (True, False)
    assert wild["upper"]["n"] == 25
    assert wild["upper"]["delta"] == 0.02 / 2
    assert wild["upper"]["evidence"] is True
    assert wild["U_EBB_eff"]["holds"] is False
    assert wild["overlap"]["rouge_l_f1_mean"] == 1
    assert calm["debt"]["max"] == pytest.approx(3.4)
    assert [row.label for row in AuditResult.of(run).classes.rows] == ["calm", "wild"]
