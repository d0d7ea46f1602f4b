"""The table says what was found, fits a terminal, and fails where it must."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nafaudit.core.text import plain
from nafaudit.selftest.careful import CAREFUL
from nafaudit.selftest.faults import CATALOGUE, FaultCase
from nafaudit.selftest.power import (
    LAB,
    SIZES,
    TINY,
    Power,
    SoundAudits,
    SoundKind,
    bound_misses,
    is_sound,
)
from nafaudit.selftest.run import (
    FULL,
    FaultRow,
    SelftestResult,
    quick_cases,
    selftest_result,
)
from nafaudit.selftest.worlds import Overspend
from nafaudit.stats.coverage import Miss
from nafaudit.views.selftest import selftest_document, selftest_page
from nafaudit.views.terminal import terminal
from tests.commands import call


def _power(audits: int, caught: int, *by: str, noted: int = 0) -> Power:
    counts = dict.fromkeys(SIZES, caught)
    remarks = {"bookkeeping: charge": noted} if noted else {}
    return Power(audits, counts, counts, dict.fromkeys(by, caught), remarks, 30.0)


def _row(case: FaultCase, caught: int = 24, noted: int = 0) -> FaultRow:
    by = ("invariant",) if caught else ()
    silent = _power(24, caught if case.exceeds else 0)
    return FaultRow.of(case, _power(24, caught, *by, noted=noted), silent, Overspend(24, 12, 1.25))


def _rows() -> list[FaultRow]:
    return [
        _row(case, 0, 24) if case.breaks in ("bookkeeping", "conformity") else _row(case)
        for case in CATALOGUE
    ]


def _sound(accused: int) -> SoundKind:
    by = {"arithmetic, open: invariant": accused} if accused else {}
    return SoundKind("60 outputs of a budget", 1000, accused, 44, 45, by)


def found_of(rows: list[FaultRow] | None = None, alarms: int = 0) -> SelftestResult:
    sound = [_sound(alarms)]
    bounds = [Miss("betting", "uniform", 20, 0.05, 10_000, 94)]
    return selftest_result(rows or _rows(), sound, bounds, FULL, seed=0, full=True)


def test_a_good_result_passes_and_says_so() -> None:
    found = found_of()
    assert found.passed and not found.missed
    text = terminal(selftest_document(found))
    assert max(map(len, text.splitlines())) <= 80
    assert "PASSED" in text and "true rate below 0.30%" in text
    one = terminal(selftest_document(found_of([replace(row, audits=1) for row in _rows()])))
    words = " ".join(one.split())
    assert "power is of 1 audit of a fault" in words and "1.00 is at least 0.03, and 0.00" in words
    told = json.loads(json.dumps(plain(found)))
    assert told["sound"] == told["sound"] | {"audits": 1000, "alarms": 0}
    named = {"name", "description", "breaks", "law", "caught_by", "power", "silent", "needed"}
    assert named <= set(told["faults"][0])
    assert set(told["faults"][0]["power"]) == {"4", "20", "60", "200"}
    assert told["bounds"][0]["miss_rate"] == 0.0094


@pytest.mark.parametrize(("caught", "fine"), [(23, True), (22, False)])
def test_a_fault_must_be_caught_nineteen_times_of_twenty(caught: int, fine: bool) -> None:
    found = found_of([_row(CATALOGUE[0], caught), *_rows()[1:]])
    assert found.passed == fine
    assert found.overall.exit_status == (0 if fine else 1)
    text = " ".join(terminal(selftest_document(found)).split())
    assert ("not as expected: sample-risky" in text) != fine


def test_what_keeps_its_budget_may_not_be_accused() -> None:
    case = next(case for case in CATALOGUE if case.breaks == "conformity")
    assert _row(case, 0).as_expected and not _row(case, 1).as_expected
    silent = next(case for case in CATALOGUE if case.breaks == "bookkeeping")
    row = _row(silent, 0, 24)
    assert row.as_expected
    assert not replace(row, silent=dict.fromkeys(SIZES, 1 / 24)).as_expected


def test_a_listed_law_needs_at_most_three_times_what_the_best_test_needs() -> None:
    case = next(case for case in CATALOGUE if case.law and case.exceeds)
    row = replace(_row(case), silent=dict.fromkeys(SIZES, 0.5))
    assert not row.as_expected
    # The best test itself needs so many that 200 outputs need not show it.
    assert replace(row, needed=70.0).as_expected


def test_bookkeeping_is_noted_where_it_is_wrong() -> None:
    case = next(case for case in CATALOGUE if case.breaks == "bookkeeping")
    assert _row(case, 0, 24).as_expected and not _row(case, 0, 20).as_expected


def test_false_alarms_are_accepted_inside_and_refused_just_outside() -> None:
    # At the nominal 1e-3, 1,000 audits have 11 alarms or more with chance 1e-8, 9 with 1e-6.
    none, some, many = (SoundAudits.of([_sound(alarms)]) for alarms in (0, 8, 11))
    assert none.consistent and some.consistent and not many.consistent
    assert not found_of(alarms=11).passed
    assert none.upper_limit == pytest.approx(0.00299, rel=0.01)


def test_the_page_has_every_fault_and_every_exception() -> None:
    page = selftest_page(found_of(), "9.9")
    for case in CATALOGUE:
        assert f"| {case.name}" in page
        assert (case.escapes or case.harmless or case.about.replace("|", "\\|")) in page
    assert "`nafaudit selftest --full`" in page and "nafaudit 9.9" in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows[: len(CATALOGUE)]}) == 1


def test_bounds_keep_their_word_and_the_proxy_does_not() -> None:
    # 1,000 samples and a rule that errs with chance 1e-6 for each of 13 bounds; fixed seed.
    found = {miss.bound: miss for miss in bound_misses(samples=1000)}
    assert all(map(is_sound, found.values()))
    assert not found["ebb-reff"].sound
    assert all(miss.sound for name, miss in found.items() if name != "ebb-reff")


def test_the_published_effort_is_what_is_promised() -> None:
    """At least 10,000 sound audits in exact worlds, and 500 on the lab pair; open and silent."""
    each = 2 * len(CAREFUL)
    assert sum(each * n for name, n in FULL.sound.items() if name in TINY) >= 10_000
    assert sum(each * n for name, n in FULL.sound.items() if name in LAB) >= 500
    assert len(FULL.setup.budgets) > 1 and FULL.setup.sizes == (4, 20, 60, 200)
    names = {case.name for case in quick_cases()}
    assert {"sample-risky", "no-debt", "debt-doubled", "theta-plus-small"} <= names


def test_a_bad_destination_is_said_at_once(tmp_path: Path) -> None:
    for out in ("table.txt", "missing/table.md"):
        found = call("selftest", "--out", out, cwd=tmp_path)
        assert found.returncode == 2 and "--out" in found.stderr


@pytest.mark.full
def test_the_command_passes(tmp_path: Path) -> None:
    found = call("selftest", "--json", "--out", "page.md", cwd=tmp_path)
    assert found.returncode == 0, found.stdout
    told = json.loads(found.stdout)
    assert told["passed"] and len(told["faults"]) == len(quick_cases())
    assert "What the auditor catches" in (tmp_path / "page.md").read_text()
