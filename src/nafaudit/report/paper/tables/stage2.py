"""Tables h2-heldout, h2-final and h2-stress: the ratio of every prompt and what else must fit."""

from __future__ import annotations

from nafaudit.report.paper.claim import Claim
from nafaudit.report.paper.formulas import debt, largest_spend, possible_reach, rho
from nafaudit.report.paper.interval import Interval, interval
from nafaudit.report.paper.source import Paper, Row


def claims(paper: Paper) -> list[Claim]:
    """Every cell that can be computed from its row, from another row, or from released files."""
    found: list[Claim] = []
    first: dict[str, Row] = {}
    for row in paper.rows("stage2"):
        found += [_ratio(row), _bound(paper, row), *_count(paper, row)]
        if row["rho"] == "invalid":
            continue
        earlier = first.setdefault(row["id"], row)
        if earlier is not row:
            found.append(_debt(paper, row, earlier))
        found += _released_budget(paper, row)
    return found


def place(row: Row, column: str) -> str:
    """Where a cell of these tables stands."""
    table = f"h2-{row['pool']}" if row["pool"] == "stress" else f"h2-{row['pool']}-k{row['k']}"
    name = f"k = {row['k']}, {row['id']}" if row["pool"] == "stress" else row["id"]
    return f"Table {table}, {name}, {column}"


def _ratio(row: Row) -> Claim:
    where, ratio = place(row, "rho"), rho(row)
    if ratio is None or row["rho"] == "invalid":
        says = "B_eff, which is 0 for an invalid row"
        return Claim("validity", where, row["rho"], says, interval(0), row.number("B"))
    return Claim("rho", where, row["rho"], "U_EBB / B_eff", row.number("rho"), ratio)


def _bound(paper: Paper, row: Row) -> Claim:
    """The variance is not printed, so U_EBB is checked by the spends that it makes possible."""
    reach = possible_reach(row, paper.setting("delta_stage2"))
    return Claim(
        "U_EBB of single prompts",
        place(row, "U_EBB"),
        row["U"],
        "the largest spend that mean, U_EBB and N imply (possible: up to K)",
        Interval(0.0, paper.budget(row.count("k"))),
        largest_spend(row, reach),
    )


def _count(paper: Paper, row: Row) -> list[Claim]:
    if row["pool"] != "heldout":
        return []
    other = paper.row("released_distinct", k=row["k"], id=row["id"])
    counted = (interval(row.count("N")), interval(other.count("N")))
    says = "the released N"
    return [Claim("N as released", place(row, "N"), row["N"], says, *counted, released=True)]


def _debt(paper: Paper, row: Row, earlier: Row) -> Claim:
    where = place(row, "B_eff")
    says = f"K - B_eff less the {debt(paper, earlier)} of another table"
    difference = debt(paper, row) - debt(paper, earlier)
    return Claim("one debt per prompt", where, row["B"], says, interval(0), difference)


def _released_budget(paper: Paper, row: Row) -> list[Claim]:
    return [
        Claim(
            "B_eff as released",
            place(row, "B_eff"),
            row["B"],
            "the archived B_eff",
            row.number("B"),
            interval(float(other["B"])),
            released=True,
        )
        for other in paper.rows("released_archive", k=row["k"], id=row["id"])
    ]
