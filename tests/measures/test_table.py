"""Rows of a run: their order, their groups, and the table that they make."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.core.finding import Fault
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Arm, Key, Logged
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import Measure, measure
from nafaudit.measures.overlap import METRICS
from nafaudit.measures.table import (
    MEASURE_COLUMNS,
    STEP_ADDITIONS,
    Measures,
    largest_with_witness,
    steps_table,
)
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt
from tests.records import judge, many, trajectory

CONTEXT = RunContext(
    Banking(),
    max_new_tokens=5,
    labels={"p1": "story"},
    references={"p1": "a b", "p2": "c"},
    pieces=[b"a ", b"b ", b"c ", b"d ", b"e "],
)


def test_rows_are_in_the_order_of_their_keys_and_grouped_by_any_column() -> None:
    records = [*many(3, k=3.0), *many(3, k=1.0)]
    rows = Measures.of(records[::-1], CONTEXT)
    assert [row.key for row in rows] == sorted(one.key for one in records)
    assert list(rows.arms) == [Arm("anchored", 1.0), Arm("anchored", 3.0)]
    assert {label: len(part) for label, part in rows.by("label").items()} == {
        "prompt": 4,
        "story": 2,
    }
    assert [len(part) for part in rows.by("prompt").values()] == [2, 2, 2]
    assert rows.column("length") == [5] * 6


def test_a_baseline_is_measured_by_the_banking_ledger_whatever_is_audited() -> None:
    context = RunContext(None, references=CONTEXT.references)
    rows = Measures.of([*many(2, k=0.0), *many(2)], context)
    assert isinstance(rows.of_arm(Arm("anchored", 0.0)).context.ledger, Banking)
    assert rows.of_arm(Arm("anchored", 1.0)).context.ledger is None
    # Prepared references are held once.
    assert rows.of_arm(Arm("anchored", 0.0)).context.prepared is context.prepared


def test_an_arm_whose_outputs_were_all_lost_has_no_rows_but_a_verdict() -> None:
    lost = Fault("raised", "x", Key("p0", "anchored", 9.0, 0), lost=True)
    context = RunContext(Banking(), faults=[lost])
    rows = Measures.of(many(2), context)
    assert len(rows.of_arm(Arm("anchored", 9.0))) == 0
    assert rows.lost == {lost.key}
    assert [arm.trajectories for arm in judge(many(2), context)] == [2, 0]


def test_the_table_has_a_column_for_every_number() -> None:
    silent = trajectory(Key("q", "anchored", 1.0, 0), [], debt=math.nan, logged=Logged(spend=2.0))
    rows = Measures.of([*many(3), silent], CONTEXT)
    table = rows.to_arrow()
    assert table.num_rows == 4
    nested = {"key", "broken_identities", "compared", "recorded", "absent", "overlap", "place"}
    renamed = {"label": "class", "served_logp": "log_p_served", "digest": "tokens_digest"}
    names = {renamed.get(one.name, one.name) for one in fields(Measure)} - nested
    metrics = {"recall" if name == "near_verbatim_recall" else name for name in METRICS}
    added = {"use", "gain", "gaps", "verdict", "part", "row"}
    assert {*names, *Key._fields, *metrics, *added} == set(table.column_names)
    assert table.column("prompt").to_pylist() == ["p0", "p1", "p2", "q"]
    assert table.column("spend").to_pylist() == [2.5, 2.5, 2.5, 2.0]
    # What is not known is null, not a number.
    assert table.column("use").to_pylist() == [0.5, 0.5, 0.5, None]
    assert table.column("burst").to_pylist()[3] is None
    assert table.column("verdict").to_pylist() == ["WITHIN"] * 3 + ["INCONCLUSIVE"]
    assert {one.name: one.metadata[b"unit"] for one in table.schema}["spend"] == b"nats"
    assert Measures.of([], CONTEXT).to_arrow().schema == table.schema


def test_the_verdict_of_a_row() -> None:
    over = trajectory(Key("o", "anchored", 1.0, 0), [9.0])
    rows = Measures.of([*many(1), *many(1, k=0.0), over], CONTEXT)
    refuted = replace(
        rows,
        rows=tuple(replace(row, spend=math.nan) if row.key.k else row for row in rows),
        context=replace(CONTEXT, failed=[{}]),
    )
    for measures, word in ((rows, "WITHIN"), (refuted, "REFUTED")):
        found = dict(
            zip(("o", "p0", "p0 at 1"), measures.to_arrow()["verdict"].to_pylist(), strict=True)
        )
        assert found == {"o": "VIOLATED", "p0": None, "p0 at 1": word}


def test_the_pages_list_the_columns_of_both_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    for name, type_, unit, text in (*MEASURE_COLUMNS, *STEP_ADDITIONS):
        assert f"| `{name}` | {type_} | {unit} | {text} |\n" in page


def test_steps_are_sorted_and_have_class_text_and_regime(tmp_path: Path) -> None:
    """Over parts that are not in the order of their keys; an own slow twin of the regime."""
    later = trajectory(Key("p0", "m", 2.0, 0), [0.5, 0.25, 0.0], theta=[1.0, 0.5, 0.0],
                       token=[0, 1, 7])  # fmt: skip
    earlier = trajectory(Key("p0", "m", 1.0, 3), [0.5, math.inf], theta=[math.nan, 1.0],
                         token=[1, -1], safe=[-1.0, -1.0])  # fmt: skip
    nothing = trajectory(Key("p0", "m", 1.0, 4), [])
    prompts = [TokenizedPrompt(Prompt("p0", "text", "poem"), (0,))]
    identity = Identity({"safe": "a"}, "m", "banking", Decoding(), "hash", 256, 0)
    design = Design(identity, Extent((1.0, 2.0), 2, ("p0",)))
    words = {"pieces": ["The", "\u00c3"], "stops": [9]}
    with open_for_writing(tmp_path, design, prompts, words) as writer:
        writer.append([later])
        writer.append([nothing, earlier])
    table = steps_table(Run(tmp_path))
    rows = table.to_pylist()
    assert [(row["k"], row["trajectory"], row["step"]) for row in rows] == [
        *((1.0, 3, 0), (1.0, 3, 1), (1.0, 4, None), (2.0, 0, 0), (2.0, 0, 1), (2.0, 0, 2))
    ]
    assert {row["class"] for row in rows} == {"poem"}
    assert [row["text"] for row in rows] == ["\ufffd", None, None, "The", "\ufffd", None]
    assert [row["regime"] for row in rows] == [
        *("unknown", "free", None, "free", "active", "forced")
    ]
    assert rows[1]["charge"] == math.inf
    assert all(one.metadata[b"unit"] for one in table.schema)


def test_nothing_is_compared_without_references() -> None:
    (one,) = many(1)
    assert not measure(one, RunContext(Banking())).overlap.scored
    assert measure(many(2)[1], CONTEXT).overlap.scored


def test_the_largest_is_the_first_of_equals_and_never_unknown() -> None:
    rows = Measures.of(many(3), CONTEXT)
    assert largest_with_witness(rows, "spend", "end")[1] is not None
    value, where = largest_with_witness(rows, "spend", "end")
    assert value == 2.5 and where is not None and where.key.prompt == "p0"
    largest, where = largest_with_witness(rows, "recall", "end")
    assert math.isnan(largest) and where is None
