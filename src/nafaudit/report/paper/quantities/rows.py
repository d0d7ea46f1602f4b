"""Rows of the second stage by what makes them interesting, for the quantities about them."""

from __future__ import annotations

from nafaudit.report.paper.formulas import deterministic, possible_reach, rho
from nafaudit.report.paper.interval import Interval
from nafaudit.report.paper.source import Paper, Row


def valid(paper: Paper, pool: str, k: int) -> list[tuple[Row, Interval]]:
    """Rows of a pool that have a ratio, each with it."""
    pairs = [(row, rho(row)) for row in paper.rows("stage2", pool=pool, k=k)]
    return [(row, ratio) for row, ratio in pairs if ratio is not None]


def flagged(paper: Paper, k: int = 3) -> list[Row]:
    """The held-out rows with a ratio above 1 at k = 3, at either budget."""
    ids = [row["id"] for row, ratio in valid(paper, "heldout", 3) if ratio.low > 1]
    return [paper.row("stage2", pool="heldout", k=k, id=name) for name in ids]


def reach_of(paper: Paper, row: Row) -> Interval:
    """The range that the text quotes for a flagged prompt, else what its row allows."""
    quoted = paper.rows("blowup", id=row["id"])
    if quoted:
        return quoted[0].number("range")
    return possible_reach(row, paper.setting("delta_stage2"))


def ratios_of(paper: Paper, pool: str, k: int, n: int | None = None) -> list[Interval]:
    """The ratios of a pool, those at one N only if that is given."""
    return [ratio for row, ratio in valid(paper, pool, k) if n in (None, row.count("N"))]


def terms(paper: Paper, n: int) -> list[Interval]:
    """The deterministic term of each flagged prompt at some N."""
    delta = paper.setting("delta_stage2")
    return [deterministic(reach_of(paper, row), n, delta) for row in flagged(paper)]


def changes_of(paper: Paper, rows: list[Row]) -> list[Interval]:
    """Relative changes of mean spend of some held-out prompts from k = 3 to 5."""
    other = [paper.row("stage2", pool="heldout", k=5, id=row["id"]) for row in rows]
    return [b.number("mean") / a.number("mean") - 1 for a, b in zip(rows, other, strict=True)]
