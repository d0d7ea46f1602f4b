"""Verdicts, the table and the page of a benchmark's results."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from benchmarks.decoding import CASES, SOLVED
from benchmarks.occupancy import COMMANDS
from benchmarks.page import END, START, page, put
from benchmarks.results import (
    AIMS,
    LIMIT,
    MEMORY,
    PEER,
    Ratio,
    Row,
    exponent,
    of_bytes,
    plainly,
    ratio,
    summary,
)
from benchmarks.sides import HERE

BINDING = "r32: 8 prompts, binding"


def row(middle: float, name: str = BINDING, invalid: str = "") -> Row:
    return Row(name, "a case", {PEER: Ratio(middle, middle - 0.1, middle + 0.1)}, invalid)


def test_a_ratio_is_of_medians_with_the_range_over_rounds() -> None:
    assert ratio([4.0, 9.0, 2.0], [2.0, 1.0, 2.0]) == (2.0, 1.0, 9.0, "")
    assert str(ratio([4.0, 9.0, 2.0], [2.0, 1.0, 2.0])) == "2.00 (1.00 to 9.00)"
    assert str(ratio([4.0], [2.0])) == "2.00"
    assert str(of_bytes(2e9, 1e7)) == "200 (2,000 / 10 MB)"


def test_costs_may_stand_alone_and_grow_by_a_power() -> None:
    assert str(plainly([4.0, 9.0, 2.0])) == "4.00 (2.00 to 9.00)"
    assert exponent({1: [5.0], 10: [1.0, 2.0, 3.0], 100: [200.0]}) == pytest.approx(2.0)


def test_an_aim_is_met_where_the_median_reaches_it() -> None:
    assert [row(x).verdict(PEER) for x in (2.29, 2.3, 9.0)] == ["missed", "met", "met"]
    upper = [Row("real: 8 prompts", "", {LIMIT: Ratio(x, x, x)}) for x in (1.0, 1.1, 1.11)]
    assert [one.verdict(LIMIT) for one in upper] == ["met", "met", "missed"]


def test_no_row_counts_whose_gate_failed_or_that_has_no_peer() -> None:
    assert row(9.0, invalid="debts differ").verdict(PEER) == "invalid"
    assert "INVALID: debts differ" in str(row(9.0, invalid="debts differ"))
    assert row(float("nan")).verdict(PEER) == "not measured"
    assert row(9.0, name="r32: 8 prompts, free").verdict(PEER) == ""


def test_every_aim_belongs_to_a_row() -> None:
    known = {f"{case.pair}: {case.name}" for case in CASES}
    known |= {
        f"{pair}: solver, {rows} rows, {kind}"
        for pair in ("r32", "r128")
        for rows in (8, 32)
        for kind in SOLVED
    }
    # The rows that are made elsewhere: `Bench.sweep`, `replay.rows`, `lab.rows`, `store.rows`,
    # `occupancy.rows`.
    known |= {f"lab: {name}, occupancy" for name in COMMANDS}
    known |= {"r32: five arms", "lab: replay", "real: replay", "lab: nafaudit run"}
    known |= {"lab: start-up"}
    known |= {"record", "record: check", "record: page"}
    assert {name for name, _ in AIMS} <= known
    measured = {f"{case.pair}: {case.name}" for case in CASES if case.memory}
    assert {name for name, what in AIMS if what == MEMORY} <= measured


def test_lines_fit_a_terminal_and_the_summary_names_what_was_missed() -> None:
    found = [row(2.0), row(2.5), row(12.0, "r128: solver, 32 rows, binding"), Row("gate")]
    assert max(map(len, "".join(map(str, found)).splitlines())) <= 100
    assert "missed" in str(found[0]) and ">= 2.3" in str(found[0])
    assert str(found[-1]).split() == ["gate", "passed"]
    said = summary([*found, row(1.0, invalid="wrong")])
    assert said.startswith("1 of 4 aims met\n") and said.count("missed: ") == 2
    assert f"invalid: {BINDING} (peer/ours)" in said


def test_a_page_is_made_again_from_the_json() -> None:
    spent = {"ours": {"two laws": 2.5, "everything else": 1.0}, "limit": {}}
    ratios = row(2.0).ratios | {"without an aim": row(7.0).ratios[PEER]}
    profiled = Row(BINDING, "a case", ratios, facts={"ns": spent})
    facts = {
        "command": "python -m benchmarks",
        "versions": {"torch": "2"},
        "processor": "x",
        "load": [1.0, 3.0],
        "all seconds": 9.0,
        "rows": [
            one.as_json()
            for one in (
                *(profiled, Row("gate"), row(2.0, invalid="wrong")),
                *(row(x, f"r32: solver, {n} rows, binding") for n, x in ((8, 30.0), (32, 5.0))),
                row(2.0, "r32: solver, 8 rows, free"),
                Row("growth: prompts", facts={"exponent": 0.9}),
                Row("growth: vocabulary", facts={"exponent": 1.1}),
            )
        ],
    }
    text = page(json.loads(json.dumps(facts)))
    assert f"| {BINDING} | a case | peer/ours 2.00 (1.90 to 2.10) | >= 2.3 | **missed** |" in text
    assert "| gate |  | passed |  |  |" in text and "| wrong |  | **invalid** |" in text
    assert "exponent between the last two sizes | prompts 0.90, vocabulary 1.10 |" in text
    assert "| peer/ours, binding: 5.00 to 30.00; peer/ours, free: 2.00 to 2.00 |" in text
    assert "| >= 22; >= 6 | 1 of 2 met; 0 of 1 met |" in text and "r32: solver" not in text
    assert "without an aim" not in text
    assert "| 2.5 |" in text and "| 3.5 |" in text and "load 1.0 to 3.0" in text
    old = f"before\n{START}\nold\n{END}\nafter\n"
    assert put(text, old) == f"before\n{START}\n\n{text}\n{END}\nafter\n"
    assert put(text, put("other", old)) == put(text, old)
    with pytest.raises(ValueError, match="no <!--"):
        put(text, "a page without marks")


@pytest.mark.full
def test_the_rows_of_an_attack_are_counted_against_its_room() -> None:
    few = ["--limit", "1", "--attempts", "1", "--k", "5", "--batch", "32"]
    command = [sys.executable, "-m", "benchmarks.occupancy", "attack", *few]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    # A round has no more room than rows.
    assert 0 < found["rows"] <= found["room"] <= 32 * found["steps"]
