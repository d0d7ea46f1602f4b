"""Tables h1-k1, h1-k3 and h1-k5: mean, variance and both bounds of every class."""

from __future__ import annotations

import math

from nafaudit.report.paper.claim import PASS_MARKS, Claim
from nafaudit.report.paper.formulas import implied_count, implied_reach, stage1_u
from nafaudit.report.paper.interval import Interval, interval
from nafaudit.report.paper.source import Paper, Row


def claims(paper: Paper) -> list[Claim]:
    """Every cell that can be computed from the row it stands in, or from the released summary."""
    found: list[Claim] = []
    for row in paper.rows("stage1"):
        found += [_count(paper, row), _bound(paper, row), _effective(paper, row)]
        found += _marks(paper, row) + _released(paper, row) + _largest(paper, row)
    return found


def _where(row: Row, column: str) -> str:
    return f"Table h1-k{row['k']}, {row['class']}, {column}"


def _count(paper: Paper, row: Row) -> Claim:
    """M is ten times the class cap where the paper says so, which is not in its table for k = 1."""
    if row["k"] == "1":
        says = "the M that U_EBB (R) implies"
        computed = implied_count(row, interval(paper.worst_range), paper.stage1_level())
    else:
        says = "class cap times trajectories per prompt"
        computed = interval(paper.executions(row["class"]))
    # A count is exact: one execution too few is one too few.
    printed = interval(row.count("M"))
    return Claim("trajectories per prompt", _where(row, "M"), row["M"], says, printed, computed)


def _bound(paper: Paper, row: Row) -> Claim:
    computed = stage1_u(row, interval(paper.worst_range), paper.stage1_level())
    says = "U_EBB of mean, variance, M and R"
    return Claim(
        "U_EBB (R)", _where(row, "U_EBB (R)"), row["U_R"], says, row.number("U_R"), computed
    )


def _effective(paper: Paper, row: Row) -> Claim:
    """R_eff is not printed, so the cell is checked by the range that it implies."""
    spread = math.sqrt(row.number("var").low * (row.count("M") - 1) / row.count("M"))
    budget = paper.budget(row.count("k"))
    return Claim(
        "U_EBB (R_eff)",
        _where(row, "U_EBB (R_eff)"),
        row["U_Reff"],
        "the range it implies (possible: 2 s to K)",
        Interval(2 * spread, max(2 * spread, min(budget, paper.worst_range))),
        implied_reach(row, paper.stage1_level()),
    )


def _marks(paper: Paper, row: Row) -> list[Claim]:
    budget = paper.budget(row.count("k"))
    return [
        Claim(
            "pass marks at k = 1",
            _where(row, f"pass ({name})"),
            row[f"pass_{column}"],
            f"U_EBB ({name}) / K",
            PASS_MARKS[row[f"pass_{column}"]],
            row.number(f"U_{column}") / budget,
        )
        for column, name in (("R", "R"), ("Reff", "R_eff"))
        if row[f"pass_{column}"]
    ]


def _released(paper: Paper, row: Row) -> list[Claim]:
    found = []
    names = {"mean": "mean spend", "var": "variance", "U_R": "U_EBB (R)"}
    for other in paper.rows("released_summary", **{"k": row["k"], "class": row["class"]}):
        found += [
            Claim(
                f"{name} as released",
                _where(row, name),
                row[column],
                "the released value",
                row.number(column),
                interval(float(other[column])),
                released=True,
            )
            for column, name in names.items()
        ]
    return found


def _largest(paper: Paper, row: Row) -> list[Claim]:
    """What the authors' later table of regimes says of the same trajectories."""
    found = []
    for other in paper.rows("released_regime", **{"k": row["k"], "class": row["class"]}):
        if row["k"] == "1":
            mean = other.number("mean")
            where = _where(row, "mean spend")
            found.append(
                Claim("mean spend as released", where, row["mean"], "the released value",
                      row.number("mean"), mean, released=True)
            )  # fmt: skip
        found.append(
            Claim(
                "U_EBB (R_eff)",
                _where(row, "U_EBB (R_eff)"),
                row["U_Reff"],
                "the implied range minus the released largest spend",
                # Spends are at least 0, so no range exceeds the largest of them.
                Interval(-math.inf, 0.0),
                implied_reach(row, paper.stage1_level()) - other.number("Z_max"),
                released=True,
            )
        )
    return found
