"""Equation bernstein-blowup and Tables bernstein-vs-N and minN-projection."""

from __future__ import annotations

from nafaudit.report.paper.claim import PASS_MARKS, Claim
from nafaudit.report.paper.formulas import (
    deterministic,
    implied_variance,
    possible_variance,
    projected,
)
from nafaudit.report.paper.interval import corners, interval
from nafaudit.report.paper.source import Paper, Row


def claims(paper: Paper) -> list[Claim]:
    """The deterministic term wherever it is printed, and what a larger N would have given."""
    found = [claim for row in paper.rows("blowup") for claim in _blow_up(paper, row)]
    found += [claim for row in paper.rows("bernstein") for claim in _against_n(paper, row)]
    found += [claim for row in paper.rows("projection") for claim in _projection(paper, row)]
    return found


def _observed(paper: Paper, row: Row) -> Row:
    return paper.row("stage2", pool="heldout", k=3, id=row["id"])


def _blow_up(paper: Paper, row: Row) -> list[Claim]:
    delta, observed = paper.setting("delta_stage2"), _observed(paper, row)
    n, reach = observed.count("N"), row.number("range")

    def variance(upper: float, mean: float, r: float) -> float:
        return implied_variance(upper, mean, r, n, delta)

    implied = corners(
        variance, (observed.number("U"), 1), (observed.number("mean"), -1), (reach, -1)
    )
    return [
        Claim(
            "blow-up equation",
            f"Equation bernstein-blowup, {row['id']}",
            row["term"],
            "3 R_eff ln(2/delta) / N",
            row.number("term"),
            deterministic(reach, n, delta),
        ),
        Claim(
            "ranges of the flagged prompts",
            f"Proxy artifacts (2), range of {row['id']}",
            row["range"],
            f"the variance implied with U_EBB (possible: {possible_variance(reach, n)})",
            possible_variance(reach, n),
            implied,
        ),
    ]


def _against_n(paper: Paper, row: Row) -> list[Claim]:
    n, delta = row.count("N"), paper.setting("delta_stage2")
    return [
        Claim(
            "Table bernstein-vs-N",
            f"Table bernstein-vs-N, N = {n}, R_eff = {reach}",
            row[reach],
            "3 R_eff ln(2/delta) / N",
            row.number(reach),
            deterministic(interval(float(reach)), n, delta),
        )
        for reach in row.cells
        if reach != "N"
    ]


def _projection(paper: Paper, row: Row) -> list[Claim]:
    observed, delta = _observed(paper, row), paper.setting("delta_stage2")
    reach = paper.row("blowup", id=row["id"]).number("range")
    n = int(paper.setting("heldout_trajectories"))
    upper = projected(observed, reach, n, delta)
    ratio = upper / observed.number("B")
    before = observed.number("U") / observed.number("B")
    cells = (
        ("U_4", "U_EBB in Table h2-heldout-k3", row.number("U_4"), observed.number("U")),
        ("rho_4", "U_EBB / B_eff of Table h2-heldout-k3", row.number("rho_4"), before),
        ("status_4", "U_EBB / B_eff of Table h2-heldout-k3", PASS_MARKS[row["status_4"]], before),
        ("U_20", "U_EBB with mean, variance and range of N = 4", row.number("U_20"), upper),
        ("rho_20", "projected U_EBB / B_eff", row.number("rho_20"), ratio),
        ("status_20", "projected U_EBB / B_eff", PASS_MARKS[row["status_20"]], ratio),
    )
    return [
        Claim(
            "minimum-N projection",
            f"Table minN-projection, {row['id']}, {column.replace('_', ' at N = ')}",
            row[column],
            says,
            allowed,
            computed,
        )
        for column, says, allowed, computed in cells
    ]
