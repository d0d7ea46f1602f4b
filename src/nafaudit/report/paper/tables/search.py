"""Tables h2-search-k3 and -k5: a funnel whose every stage limits the next."""

from __future__ import annotations

from nafaudit.report.paper.claim import Claim
from nafaudit.report.paper.interval import Interval, interval
from nafaudit.report.paper.source import Paper, Row

_COLUMNS = {
    "raw": "Raw",
    "dedup": "Dedup",
    "length_ok": "Len. OK",
    "screened": "Screen",
    "medium": "Med.",
    "under_09": "< 0.9",
    "topped_up": "Top-up",
}


def claims(paper: Paper) -> list[Claim]:
    """Counts against the caps and the stage before, and against the released log."""
    found: list[Claim] = []
    for row in paper.rows("search"):
        found += _funnel(paper, row) + _released(paper, row)
    return found


def _where(row: Row, column: str) -> str:
    return f"Table h2-search-k{row['k']}, generation {row['generation']}, {column}"


def _funnel(paper: Paper, row: Row) -> list[Claim]:
    calls = paper.setting("calls") * paper.setting("per_call")
    raw = calls + paper.setting("crossover_calls") * paper.setting("per_crossover")
    stages = {
        "raw": ("candidates asked for", Interval(raw, raw)),
        "dedup": ("at most Raw", Interval(0, row.count("raw"))),
        "length_ok": ("at most Dedup", Interval(0, row.count("dedup"))),
        "screened": ("the cap or what is left", _kept(paper, row, "length_ok", "screened")),
        "medium": ("the cap or what is left", _kept(paper, row, "screened", "medium")),
        "under_09": ("at most Med.", Interval(0, row.count("medium"))),
        "topped_up": (
            "at most the cap or what is left",
            Interval(0, _kept(paper, row, "under_09", "topped_up").high),
        ),
    }
    return [
        Claim("search funnel", _where(row, _COLUMNS[column]), row[column], says,
              interval(row.count(column)), computed)
        for column, (says, computed) in stages.items()
    ]  # fmt: skip


def _kept(paper: Paper, row: Row, before: str, after: str) -> Interval:
    return interval(min(row.count(before), paper.setting(f"keep_{after}")))


def _released(paper: Paper, row: Row) -> list[Claim]:
    other = paper.row("released_generations", k=row["k"], generation=row["generation"])
    found = [
        Claim("search log", _where(row, name), row[column], "the released count",
              interval(row.count(column)), interval(other.count(column)), released=True)
        for column, name in _COLUMNS.items()
    ]  # fmt: skip
    best = interval(float(other["best_rho"]))
    where, says = _where(row, "Best rho"), "the released value"
    found.append(
        Claim(
            "search log", where, row["best_rho"], says, row.number("best_rho"), best, released=True
        )
    )
    return found
