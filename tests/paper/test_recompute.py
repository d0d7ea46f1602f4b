"""The recomputation: golden values, tampering is seen, and what must be listed is listed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.paper.claims import (
    ClaimVerdict,
    allowed,
    possible_range,
    possible_variance,
    projected,
    range_behind,
    rho,
    stage1_u,
)
from nafaudit.paper.printed import Paper, exact, load, rounded
from nafaudit.paper.quantities import QUANTITIES, compute, flagged, range_of
from nafaudit.paper.recompute import Recomputation, counterfactuals, recompute
from nafaudit.stats import Moments, ebb
from tests.conftest import golden


def tampered(paper: Paper, table: str, line: int, column: str, printed: str) -> Paper:
    """A copy with one printed cell changed."""
    rows = list(paper.tables[table])
    rows[line] = replace(rows[line], cells={**rows[line].cells, column: printed})
    return Paper({**paper.tables, table: tuple(rows)})


@pytest.fixture(scope="module")
def result() -> Recomputation:
    return recompute()


def test_every_bound_of_the_first_stage_within_a_hundredth(result: Recomputation) -> None:
    claims = [claim for claim in result.agree if claim.point == "U_EBB (R)"]
    reference = {(r["table"][-1], r["class"]): r for r in golden("check_h1_recomputed")}
    assert len(claims) == len(reference) == 18
    for claim, row in zip(claims, load().rows("stage1"), strict=True):
        assert abs(claim.computed.middle - float(claim.printed)) <= 0.01
        expected = reference[row["k"], row["class"]]
        assert claim.computed.middle == pytest.approx(float(expected["recomputed_U_R"]), abs=1e-4)
        implied = range_behind(row, load().delta())
        assert float(expected["implied_R_eff_from_U_Reff"]) in implied


def test_every_ratio_of_the_second_stage(result: Recomputation) -> None:
    claims = [claim for claim in result.agree if claim.point == "rho"]
    assert len(claims) == 33
    assert all(abs(c.computed.middle - float(c.printed)) <= 5e-4 + 1e-9 for c in claims)
    expected = [r["recomputed_rho"] for r in golden("check_h2_recomputed") if r["recomputed_rho"]]
    found = sorted(c.computed.middle for c in claims)
    assert found == pytest.approx(sorted(map(float, expected)), abs=1e-5)


def test_the_odd_count_at_k_1_is_the_one_its_own_bound_has(result: Recomputation) -> None:
    where = "Table h1-k1, attack_train, M"
    claim = next(c for c in result.agree if c.where == where)
    assert claim.printed == "999" and 999 in claim.computed
    assert 998 not in claim.computed and 1000 not in claim.computed


@pytest.mark.parametrize(
    ("point", "cells"),
    [
        ("trajectories per prompt", 24),
        ("blow-up equation", 3),
        ("minimum-N projection", 18),
        ("transfer gap as released", 2),
        ("validity rate", 2),
        ("saving by R_eff", 8),
        ("one debt per prompt", 13),
    ],
)
def test_what_must_agree_agrees(result: Recomputation, point: str, cells: int) -> None:
    assert sum(claim.point == point for claim in result.agree) == cells
    assert not any(claim.point == point for claim in result.disagree)


def test_the_table_of_the_deterministic_term_is_misprinted(result: Recomputation) -> None:
    wrong = {c.where: c for c in result.disagree if c.point == "Table bernstein-vs-N"}
    right = [c for c in result.agree if c.point == "Table bernstein-vs-N"]
    assert (len(wrong), len(right)) == (24, 1)
    for row in golden("bernstein_vs_N"):
        claim = wrong.get(f"Table bernstein-vs-N, N = {row['N']}, R_eff = {row['R_eff']}")
        if claim is not None:
            term = float(row["recomputed_delta_0.0033"])
            assert claim.computed.middle == pytest.approx(term, abs=1e-4)


# What docs/paper.md says, point by point.
DISAGREE = {
    "misprint": {
        "Table bernstein-vs-N",
        "number of executions",
        "range of the three prompts at k = 5",
        "factor of the budget",
        "Figure bernstein",
        "Figure spend",
        "growth of U_EBB with 18 hypotheses",
        "transfer gap",
    },
    "contradicted": {
        "prompts topped up",
        "definition of B_j",
        "checklist 5 passed",
    },
    "depends": {
        "evaluated candidates",
        "repeated rows of the stress pool",
        "budget exhausted in regime A",
        "checklist 2 passed",
    },
}


def test_the_points_that_disagree_are_these_and_each_is_explained(result: Recomputation) -> None:
    found: dict[str, set[str]] = {}
    both = {**result.points, **result.readings}
    assert len(both) == len(result.points) + len(result.readings)
    for point in both.values():
        found.setdefault(point.group, set()).add(point.name)
        assert len(point.sentence) > 20 and len(point.change) > 40
    assert found == DISAGREE
    # Nothing is explained that does not disagree.
    assert {row["point"] for row in load().rows("points")} == set(both)


def test_what_depends_on_the_reading_is_no_disagreement(result: Recomputation) -> None:
    """The reading that makes it right is tested too, where a number can."""
    assert not set(result.readings) & set(result.points)
    assert {claim.verdict for claim in result.depends} == {ClaimVerdict.DEPENDS}
    right = {(claim.point, claim.where) for claim in result.agree}
    assert ("proposed candidates", "Introduction") in right
    assert ("checklist 2 passed", "Checklist, U_EBB (R_eff) within K") in right
    # Regime A, said of memorization-relevant continuations, is not held against all outputs.
    unchecked = next(c for c in result.not_checkable if c.printed.startswith("regime A"))
    assert "memorization-relevant" in unchecked.printed
    regime = load().row("released_regime", **{"k": 3, "class": "test"})
    said = result.readings["budget exhausted in regime A"].change
    assert f"{regime['active_outputs']} of the class's {regime['M']} outputs" in said


def test_numbers_behind_the_points(result: Recomputation) -> None:
    claims = (*result.disagree, *result.depends)
    by_where = {(c.point, c.where): c.computed.middle for c in claims}
    assert by_where["checklist 2 passed", "Checklist, M at least"] == 1000
    assert by_where["evaluated candidates", "Introduction, left by the filters"] == 247
    assert by_where["transfer gap", "Discussion, k = 3"] == pytest.approx(-0.107, abs=1e-3)
    assert by_where["transfer gap", "Discussion, k = 5"] == pytest.approx(0.370, abs=1e-3)
    assert by_where["prompts topped up", "Reproducibility, k = 5"] == 6
    # One number each: the places where a fair reading holds are not counted.
    for point in ("range of the three prompts at k = 5", "growth of U_EBB with 18 hypotheses"):
        assert len(result.points[point].claims) == 1


def test_rounding_is_no_disagreement(result: Recomputation) -> None:
    """0.201 is no contradiction of "at most 0.20", nor 5.5 of "roughly 3x slack"; nor are words."""
    agreeing = {claim.point for claim in result.agree} - set(result.points)
    assert {"largest overlap", "mean overlap", "largest debt", "slack"} <= agreeing
    assert {"change of the mean spend", "rise by the optimizer"} <= agreeing


def test_the_term_table_has_a_level_of_its_own(result: Recomputation) -> None:
    """All 25 cells follow from delta = 0.003345, which the equation's terms exclude."""
    paper, level = load(), math.log(2 / 0.00334534)
    for row in paper.rows("bernstein"):
        for size in (c for c in row.cells if c != "N"):
            term = 3 * float(size) * level / row.count("N")
            assert term == pytest.approx(float(row[size]), abs=0.0501)
    for row in paper.rows("blowup"):
        assert (row.number("range") * (3 * level / 4)).high < row.number("term").low


def test_counts_add_up_and_nothing_is_silent(result: Recomputation) -> None:
    parts = (result.agree, result.disagree, result.depends, result.not_checkable)
    assert sum(len(part) for part in parts) == len(result.cells) > 700
    assert all(cell.why for cell in result.not_checkable)
    places = [(c.where, c.printed) for c in result.not_checkable]
    assert len(set(places)) == len(places)


def test_every_quantity_is_quoted_and_described() -> None:
    quoted = {row["quantity"] for row in load().rows("quotes")}
    # The checklist of the paper asks for one more.
    assert quoted | {"unsafe training rows"} == set(QUANTITIES)
    assert all(len(quantity.says) > 5 for quantity in QUANTITIES.values())


STAGE1 = {"M": "M", "mean": "mean_spend", "var": "var", "U_R": "U_EBB_R", "U_Reff": "U_EBB_Reff"}
STAGE2 = {"N": "N", "mean": "mean_spend", "U": "U_EBB", "B": "B_eff"}
# Table, what selects its lines, the reference's file, and every column of numbers in both.
COPIES: list[tuple[str, Mapping[str, object], str, dict[str, str]]] = [
    *(("stage1", {"k": k}, f"h1_k{k}", STAGE1) for k in (1, 3, 5)),
    *(
        ("stage2", {"pool": pool, "k": k}, f"h2_{pool}_k{k}", STAGE2)
        for pool in ("heldout", "final")
        for k in (3, 5)
    ),
    ("stage2", {"pool": "stress"}, "h2_stress", {"k": "k", "rho": "rho", **STAGE2}),
    (
        "overlap",
        {},
        "h1_overlap",
        {
            "k": "k",
            "rouge_mean": "rougeL_mean",
            "rouge_max": "rougeL_max",
            "jaccard_mean": "jaccard5_mean",
            "jaccard_max": "jaccard5_max",
        },
    ),
    (
        "debt",
        {},
        "prefix_debt",
        {"M": "M"} | {c: f"delta_init_{c}" for c in ("mean", "median", "max")},
    ),
    (
        "projection",
        {},
        "minN_projection",
        {"U_4": "U_obs_N4", "rho_4": "rho_obs", "U_20": "U_proj_N20", "rho_20": "rho_proj"},
    ),
    ("blowup", {}, "bernstein_blowup_eq", {"range": "range", "term": "printed_term"}),
]


@pytest.mark.parametrize(("table", "wanted", "reference", "columns"), COPIES)
def test_the_tables_are_those_of_the_reference(
    table: str, wanted: Mapping[str, object], reference: str, columns: dict[str, str]
) -> None:
    """Copies in the package against copies in the tests, number by number."""
    for ours, theirs in zip(load().rows(table, **wanted), golden(reference), strict=True):
        name = "class" if "class" in theirs else "id"
        assert ours[name] == theirs[name]
        assert all(float(ours[a]) == float(theirs[b]) for a, b in columns.items())
        if table == "stage2":
            assert (rho(ours) is None) == (theirs["status"] == "invalid") == (not theirs["rho"])
            assert ours["rho"] == "invalid" or float(ours["rho"]) == float(theirs["rho"])


def test_search_and_term_tables_are_those_of_the_reference() -> None:
    paper = load()
    for k in (3, 5):
        for ours, theirs in zip(paper.rows("search", k=k), golden(f"h2_search_k{k}"), strict=True):
            assert [float(x) for x in ours.cells.values()] == [float(x) for x in theirs.values()]
    terms = {(r["N"], r["R_eff"]): float(r["printed"]) for r in golden("bernstein_vs_N")}
    rows = paper.rows("bernstein")
    assert terms == {(r["N"], c): float(r[c]) for r in rows for c in r.cells if c != "N"}


TAMPERED = [
    ("stage1", 0, "U_R", "146.71", "U_EBB (R)"),
    ("stage1", 9, "mean", "176.88", "U_EBB (R)"),
    ("stage1", 3, "pass_R", "pass", "pass marks at k = 1"),
    ("stage1", 3, "M", "1000", "trajectories per prompt"),
    ("stage2", 0, "rho", "0.588", "rho"),
    ("stage2", 2, "B", "593.59", "one debt per prompt"),
    ("search", 0, "topped_up", "8", "search funnel"),
    ("search", 0, "topped_up", "6", "validity rate"),
    ("projection", 0, "U_20", "315.68", "minimum-N projection"),
    ("blowup", 0, "term", "421.0", "blow-up equation"),
    ("blowup", 0, "range", "120.0", "ranges of the flagged prompts"),
    ("overlap", 0, "rouge_mean", "0.0990", "overlap as released"),
    ("settings", 0, "printed", "100", "budgets"),
]


@pytest.mark.parametrize(("table", "line", "column", "printed", "point"), TAMPERED)
def test_a_tampered_cell_is_seen(
    result: Recomputation, table: str, line: int, column: str, printed: str, point: str
) -> None:
    def count(found: Recomputation) -> int:
        return sum(claim.point == point for claim in found.disagree)

    assert count(recompute(tampered(load(), table, line, column, printed))) > count(result)


def test_every_number_can_fail(result: Recomputation) -> None:
    """A check that agrees with any number would be no check."""
    numeric = [c for c in result.agree if _is_number(c.printed) and c.allowed.radius < 1e300]
    assert len(numeric) > 250
    for claim in numeric:
        shift = claim.allowed.radius * 2 + claim.computed.radius * 2 + abs(float(claim.printed)) + 1
        moved = replace(claim, allowed=claim.allowed + shift)
        assert moved.verdict == ClaimVerdict.DISAGREE, claim.where


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_a_quote_that_names_nothing_is_refused() -> None:
    paper = tampered(load(), "quotes", 0, "quantity", "executoins")
    with pytest.raises(InputError, match="did you mean 'executions'"):
        recompute(paper)
    with pytest.raises(InputError, match="quantity 'means' has several values"):
        compute(load(), "means", 3)
    with pytest.raises(InputError, match=r"unknown rule 'roundd'.*'rounded'"):
        allowed("1", "roundd")


@given(st.lists(st.floats(0, 500), min_size=2, max_size=30), st.floats(1e-4, 0.2))
def test_what_a_table_leaves_open_holds_the_truth(values: list[float], delta: float) -> None:
    """Range and variance bounds from printed mean, U and N always hold the real ones."""
    moments = Moments.of(values)
    reach = max(moments.spread, 1.0)
    upper = ebb(moments, reach, delta).value
    row = load().rows("stage2")[0]
    cells = {"mean": f"{moments.mean:.6f}", "U": f"{upper:.6f}", "N": str(moments.n)}
    printed = replace(row, cells={**row.cells, **cells})
    if moments.spread >= 1:
        found = possible_range(printed, delta)
        assert found.low - 1e-4 <= moments.spread <= found.high + 1e-4
        variance = possible_variance(exact(moments.spread), moments.n)
        assert variance.low * (1 - 1e-9) <= moments.variance <= variance.high * (1 + 1e-9)


def test_counterfactuals_say_what_the_reference_says() -> None:
    grids = {grid.name: grid for grid in counterfactuals()}
    twenty = [row[4] for row in grids["minimum_n"].rows]
    assert twenty == ["0.530", "0.585", "0.561"]
    assert [row[1] for row in grids["minimum_n"].rows] == ["1.164", "1.466", "1.311"]
    # U of k = 5 over B of k = 3, and a change that rounds to none has no sign.
    assert [row[2] for row in grids["larger_budget"].rows] == ["0.529", "0.581", "0.435"]
    assert [row[4] for row in grids["larger_budget"].rows] == ["0.0%", "-5.1%", "-17.4%"]
    assert [row[1:] for row in grids["invalid_row"].rows] == [
        ("+0.003", "-0.107"),
        ("+0.411", "+0.370"),
    ]
    attack = next(row for row in grids["correction"].rows if row[0] == "attack_train")
    assert "+2.96" in attack[2]
    assert attack[-1] == "fail/pass"
    for row, reference in zip(
        grids["ranges"].rows[6:], golden("check_h1_recomputed")[:12], strict=True
    ):
        assert rounded(row[5]).meets(exact(float(reference["implied_R_eff_from_U_Reff"])))


@given(st.data())
def test_interval_bounds_hold_every_value_that_rounds_to_the_table(data: st.DataObject) -> None:
    """Any mean and variance behind the printed ones gives a U_EBB in the computed interval."""
    paper = load()
    row = data.draw(st.sampled_from(paper.rows("stage1")))
    found = stage1_u(row, exact(paper.range_R), paper.delta())
    mean, variance = (
        data.draw(st.floats(row.number(column).low, row.number(column).high))
        for column in ("mean", "var")
    )
    moments = Moments(mean, variance, row.count("M"))
    assert ebb(moments, paper.range_R, paper.delta()).value in found


def test_projecting_to_the_same_n_changes_nothing() -> None:
    paper = load()
    for row in flagged(paper):
        same = projected(row, range_of(paper, row), row.count("N"), paper.delta_stage2)
        assert same.meets(row.number("U"))
        assert same.radius < 0.02


# Columns that nothing printed or released can test, so that a change may pass unseen.
QUIET = {
    ("stage2", "mean"),
    ("overlap", "jaccard_max"),
    ("overlap", "rouge_max"),
    ("overlap", "jaccard_mean"),
    ("debt", "mean"),
    ("debt", "median"),
    ("debt", "max"),
    ("stage1", "U_Reff"),
}


@pytest.mark.full
def test_any_tampered_cell_is_judged_and_most_are_seen(result: Recomputation) -> None:
    """Every third number of every table, a quarter larger: no crash, and what can be seen is."""
    paper, number, known = load(), 0, _contradicted(result)
    for table in ("stage1", "stage2", "search", "overlap", "debt", "blowup", "projection"):
        for line, row in enumerate(paper.rows(table)):
            for column, printed in row.cells.items():
                if column in ("k", "id", "class", "generation") or not _is_number(printed):
                    continue
                number += 1
                if number % 3:
                    continue
                places = len(printed.partition(".")[2])
                larger = f"{float(printed) * 1.25 + 1.0:.{places}f}"
                found = recompute(tampered(paper, table, line, column, larger))
                # The U_EBB of an invalid row is divided by nothing.
                alone = column == "U" and row["rho"] == "invalid"
                if (table, column) not in QUIET and not alone:
                    assert _contradicted(found) - known, (table, line, column)


def _contradicted(found: Recomputation) -> set[tuple[str, str]]:
    """A change may also mend what was wrong, so places count and not their number."""
    return {(claim.point, claim.where) for claim in found.disagree}
