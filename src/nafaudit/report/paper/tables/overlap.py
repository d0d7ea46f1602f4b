"""Tables h1-overlap and prefix-debt, as far as anything printed or released can test them."""

from __future__ import annotations

from nafaudit.report.paper.claim import Claim
from nafaudit.report.paper.interval import interval
from nafaudit.report.paper.source import Paper, Row


def claims(paper: Paper) -> list[Claim]:
    """Cells with a released counterpart, and M."""
    found = [claim for row in paper.rows("overlap") for claim in _means(paper, row)]
    for row in paper.rows("debt"):
        expected = paper.executions(row["class"])
        where = f"Table prefix-debt, {row['class']}, M"
        says = "class cap times trajectories per prompt"
        counted = (interval(row.count("M")), interval(expected))
        found.append(Claim("trajectories per prompt", where, row["M"], says, *counted))
    return found


def released_cells(paper: Paper, row: Row) -> dict[str, float]:
    """The columns of an overlap row that the released files repeat."""
    found: dict[str, float] = {}
    for other in paper.rows("released_regime", **{"k": row["k"], "class": row["class"]}):
        found["rouge_mean"] = float(other["rouge_mean"])
    if row["k"] == "3":
        other = paper.row("released_overlap", **{"class": row["class"]})
        found |= {column: float(other[column]) for column in ("rouge_mean", "jaccard_mean")}
    return found


def _means(paper: Paper, row: Row) -> list[Claim]:
    names = {"rouge_mean": "ROUGE-L mean", "jaccard_mean": "5-gram mean"}
    return [
        Claim(
            "overlap as released",
            f"Table h1-overlap, k = {row['k']}, {row['class']}, {names[column]}",
            row[column],
            "the released value",
            row.number(column),
            interval(value),
            released=True,
        )
        for column, value in released_cells(paper, row).items()
    ]
