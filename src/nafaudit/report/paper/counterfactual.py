"""What the paper's numbers would have been: another N, another correction, another range."""

from __future__ import annotations

from dataclasses import dataclass

from nafaudit.report.paper.formulas import implied_reach, projected, stage1_u
from nafaudit.report.paper.interval import Interval, interval
from nafaudit.report.paper.quantities import QUANTITIES
from nafaudit.report.paper.quantities.rows import flagged, reach_of
from nafaudit.report.paper.source import Paper, load

_SIZES = (4, 8, 12, 20, 30)
# Beyond this many trajectories no projection is worth a row.
_MOST = 1000


@dataclass(frozen=True)
class Grid:
    """A small table for people.

    Attributes:
        name: Key for machines.
        title: What was asked.
        header: Column names.
        rows: Cells as text.
        note: What to keep in mind.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def counterfactuals(paper: Paper | None = None) -> tuple[Grid, ...]:
    """Every question, answered from the printed numbers."""
    source = paper or load()
    return (
        minimum_n(source),
        larger_budget(source),
        correction(source),
        ranges(source),
        invalid_row(source),
    )


def minimum_n(paper: Paper) -> Grid:
    """The ratio of the flagged prompts at other N, mean, variance and range held fixed."""
    rows = []
    for row in flagged(paper):
        ratios = [_projected_ratio(paper, row["id"], n) for n in _SIZES]
        passing = next(
            n for n in range(4, _MOST) if _projected_ratio(paper, row["id"], n).high <= 1
        )
        rows.append((_short(row["id"]), *(f"{r.middle:.3f}" for r in ratios), str(passing)))
    return Grid(
        "minimum_n",
        "rho of the flagged prompts had N been larger (mean, variance, range fixed)",
        ("prompt", *(f"N = {n}" for n in _SIZES), "smallest N with rho <= 1"),
        tuple(rows),
        "Ranges grow with N, so these are the smallest ratios to expect.",
    )


def larger_budget(paper: Paper) -> Grid:
    """How much of the fall from k = 3 to k = 5 the larger budget alone explains."""
    rows = []
    for old, new in zip(flagged(paper), flagged(paper, 5), strict=True):
        ratios = (
            old.number("U") / old.number("B"),
            new.number("U") / old.number("B"),
            new.number("U") / new.number("B"),
        )
        change = new.number("mean") / old.number("mean") - 1
        cells = (f"{ratio.middle:.3f}" for ratio in ratios)
        rows.append((_short(old["id"]), *cells, f"{change.middle:+.1%}"))
    return Grid(
        "larger_budget",
        "rho at k = 5 against the budget of k = 3",
        ("prompt", "k = 3", "U of k = 5 over B of k = 3", "k = 5", "mean spend"),
        tuple(rows),
        "The middle column leaves the larger budget out.",
    )


def correction(paper: Paper) -> Grid:
    """U_EBB at k = 1 if all 18 rows are corrected for, not only 12."""
    old, new = paper.stage1_level(), paper.stage1_level(len(paper.rows("stage1")))
    worst = interval(paper.worst_range)
    rows = []
    for row in paper.rows("stage1", k=1):
        reach = implied_reach(row, old)
        pairs = [(stage1_u(row, r, old), stage1_u(row, r, new)) for r in (worst, reach)]
        cells = [f"{b.middle:.2f} ({b.middle - a.middle:+.2f})" for a, b in pairs]
        verdicts = "/".join(_passes(b, paper.budget(1)) for _, b in pairs)
        rows.append((row["class"], row["U_R"], cells[0], row["U_Reff"], cells[1], verdicts))
    return Grid(
        "correction",
        "U_EBB at k = 1 with 18 hypotheses instead of 12",
        ("class", "R, 12", "R, 18", "R_eff, 12", "R_eff, 18", "R/R_eff"),
        tuple(rows),
    )


def ranges(paper: Paper) -> Grid:
    """U_EBB under R and under R_eff, and the largest spend that R_eff gives away."""
    rows = []
    for row in paper.rows("stage1"):
        budget = paper.budget(row.count("k"))
        reach = implied_reach(row, paper.stage1_level())
        worst = stage1_u(row, interval(paper.worst_range), paper.stage1_level())
        saved = worst.middle - row.number("U_Reff").middle
        rows.append(
            (
                row["k"],
                row["class"],
                f"{worst.middle:.2f}",
                row["U_Reff"],
                f"{saved:.1f}",
                f"{reach.middle:.0f}",
                f"{reach.middle / budget:.2f}",
            )
        )
    return Grid(
        "ranges",
        "U_EBB under R and R_eff, and the range behind the latter",
        ("k", "class", "U (R)", "U (R_eff)", "saved", "R_eff", "R_eff/K"),
        tuple(rows),
        "No spend is negative, so some trajectory spent at least R_eff.",
    )


def invalid_row(paper: Paper) -> Grid:
    """The transfer gap with the invalid row as 0 and without it."""
    rows = tuple(
        (
            f"k = {k}",
            f"{QUANTITIES[f'gap_k{k}'](paper).middle:+.3f}",
            f"{QUANTITIES[f'gap_k{k}_valid'](paper).middle:+.3f}",
        )
        for k in (3, 5)
    )
    header = ("budget", "invalid row counted as 0", "invalid row left out")
    return Grid("invalid_row", "Transfer gap: mean final minus mean held-out rho", header, rows)


def _projected_ratio(paper: Paper, name: str, n: int) -> Interval:
    row = paper.row("stage2", pool="heldout", k=3, id=name)
    upper = projected(row, reach_of(paper, row), n, paper.setting("delta_stage2"))
    return upper / row.number("B")


def _passes(bound: Interval, budget: float) -> str:
    return "pass" if bound.high <= budget else "fail"


def _short(name: str) -> str:
    return name.removeprefix("heldout_bookmia.")
