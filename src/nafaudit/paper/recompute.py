"""Judges the whole paper by one rule, and computes its numbers under other choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nafaudit.paper.claims import (
    Cell,
    Claim,
    ClaimVerdict,
    Unchecked,
    allowed,
    projected,
    range_behind,
    stage1_u,
)
from nafaudit.paper.printed import Paper, PrintedRow, Rounded, exact, load
from nafaudit.paper.quantities import compute, flagged, gap, range_of
from nafaudit.paper.tables import TABLES

# Group of points that one fair reading makes right: they are shown, and not counted.
DEPENDS = "depends"
# Printed numbers that are limits, and not rounded values.
_LIMITS = ("about", "at most", "at least", "below")
_SIZES = (4, 8, 12, 20, 30)
# Largest number of trajectories of a projection.
_MOST = 1000


@dataclass(frozen=True)
class Disagreement:
    """Claims about one thing that the paper's own numbers contradict, at least by one reading.

    Attributes:
        name: Subject.
        claims: Claims that disagree.
        group: `misprint`, `contradicted` for a claim that the tables do not support, or `depends`.
        sentence: Sentence of the paper, in context.
        change: Consequence of a correction.
    """

    name: str
    claims: tuple[Claim, ...]
    group: str = "contradicted"
    sentence: str = ""
    change: str = ""


@dataclass(frozen=True)
class Recomputation:
    """Result of the recomputation.

    Attributes:
        cells: Every cell and claim, in the order of the paper's tables, then of its text.
        words: Lines of `data/points.csv`, by point.
    """

    cells: tuple[Cell, ...]
    words: dict[str, PrintedRow]

    @cached_property
    def agree(self) -> list[Claim]:
        """Claims that the paper's own numbers support."""
        return self._judged(ClaimVerdict.AGREE)

    @cached_property
    def disagree(self) -> list[Claim]:
        """Claims that the paper's own numbers contradict."""
        return self._judged(ClaimVerdict.DISAGREE)

    @cached_property
    def depends(self) -> list[Claim]:
        """Claims that hold by one fair reading of the paper's words, and not by another."""
        return self._judged(ClaimVerdict.DEPENDS)

    @cached_property
    def not_checkable(self) -> list[Unchecked]:
        """Cells that no printed or released number can test."""
        return [cell for cell in self.cells if isinstance(cell, Unchecked)]

    @cached_property
    def points(self) -> dict[str, Disagreement]:
        """Disagreements by subject: misprints, then claims; unforeseen ones last."""
        return self._by_subject(self.disagree)

    @cached_property
    def readings(self) -> dict[str, Disagreement]:
        """What depends on the reading, by subject."""
        return self._by_subject(self.depends)

    def _by_subject(self, chosen: list[Claim]) -> dict[str, Disagreement]:
        claims: dict[str, list[Claim]] = {}
        for claim in chosen:
            claims.setdefault(claim.point, []).append(claim)
        found: dict[str, Disagreement] = {}
        for name in [*(n for n in self.words if n in claims), *claims]:
            row = self.words.get(name)
            words = (row["group"], row["sentence"], row["change"]) if row is not None else ()
            found.setdefault(name, Disagreement(name, tuple(claims[name]), *words))
        return found

    def _judged(self, verdict: ClaimVerdict) -> list[Claim]:
        return [c for c in self.cells if isinstance(c, Claim) and c.verdict == verdict]


def recompute(paper: Paper | None = None) -> Recomputation:
    """Judges the whole paper.

    Args:
        paper: Its printed numbers; those that come with the package if left out.
    """
    source = paper or load()
    words = {row["point"]: row for row in source.rows("points")}
    open_points = {name for name, row in words.items() if row["group"] == DEPENDS}
    cells = [cell for table in TABLES for cell in table(source)]
    for row in source.rows("quotes"):
        limits = allowed(row["printed"], row["rule"])
        found = compute(source, row["quantity"], int(row["k"] or 0), row["take"])
        limit = f"{row['rule']} {row['printed']}" if row["rule"] in _LIMITS else ""
        reading = row["reading"] or limit
        printed = (row["point"], row["where"], row["printed"])
        claim = Claim(*printed, found.says, limits, found.value, found.released, reading)
        cells.append(replace(claim, open=row["point"] in open_points))
    cells += [Unchecked(r["where"], r["printed"], r["why"]) for r in source.rows("unchecked")]
    return Recomputation(tuple(cells), words)


def merged(claims: Sequence[Claim]) -> list[tuple[str, Claim]]:
    """Joins equal claims of several places; returns each with all its places."""
    places: dict[str, list[str]] = {}
    first: dict[str, Claim] = {}
    for claim in claims:
        # One number quoted in several sections is one statement; a table's cells are not.
        same = claim.where if claim.where.startswith(("Table ", "Equation ")) else claim.text
        places.setdefault(same, []).append(claim.where)
        first.setdefault(same, claim)
    return [("; ".join(places[same]), claim) for same, claim in first.items()]


@dataclass(frozen=True)
class Grid:
    """A small table of text.

    Attributes:
        name: Key in JSON.
        title: Title.
        header: Column names.
        rows: Cells as text.
        note: Remark below the table.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def counterfactuals(paper: Paper | None = None) -> tuple[Grid, ...]:
    """Returns the numbers under another N, budget, correction, range and average."""
    source = paper or load()
    return (
        _minimum_n(source),
        _larger_budget(source),
        _correction(source),
        _ranges(source),
        _invalid_row(source),
    )


def _minimum_n(paper: Paper) -> Grid:
    rows = []
    for row in flagged(paper):

        def ratio(n: int, row: PrintedRow = row) -> Rounded:
            range_ = range_of(paper, row)
            return projected(row, range_, n, paper.delta_stage2) / row.number("B")

        passing = next(n for n in range(4, _MOST) if ratio(n).high <= 1)
        rows.append((_short(row), *(f"{ratio(n).middle:.3f}" for n in _SIZES), str(passing)))
    return Grid(
        "minimum_n",
        "rho of the flagged prompts had N been larger (mean, variance, range fixed)",
        ("prompt", *(f"N = {n}" for n in _SIZES), "smallest N with rho <= 1"),
        tuple(rows),
        "More trajectories can only widen a range; mean and variance may move either way.",
    )


def _larger_budget(paper: Paper) -> Grid:
    rows = []
    for old, new in zip(flagged(paper), flagged(paper, 5), strict=True):
        pairs = ((old, old), (new, old), (new, new))
        ratios = (upper.number("U") / budget.number("B") for upper, budget in pairs)
        change = new.number("mean") / old.number("mean") - 1
        # No sign of a change that rounds to none.
        moved = f"{change.middle:+.1%}".replace("-0.0%", "0.0%").replace("+0.0%", "0.0%")
        rows.append((_short(old), *(f"{r.middle:.3f}" for r in ratios), moved))
    return Grid(
        "larger_budget",
        "rho at k = 5 against the budget of k = 3",
        ("prompt", "k = 3", "U of k = 5 over B of k = 3", "k = 5", "mean spend"),
        tuple(rows),
        "The middle column leaves the larger budget out.",
    )


def _correction(paper: Paper) -> Grid:
    old, new = paper.delta(), paper.delta(len(paper.rows("stage1")))
    rows = []
    for row in paper.rows("stage1", k=1):
        ranges = (exact(paper.range_R), range_behind(row, old))
        pairs = [(stage1_u(row, r, old), stage1_u(row, r, new)) for r in ranges]
        cells = [f"{b.middle:.2f} ({b.middle - a.middle:+.2f})" for a, b in pairs]
        marks = "/".join("pass" if b.high <= paper.budget(1) else "fail" for _, b in pairs)
        rows.append((row["class"], row["U_R"], cells[0], row["U_Reff"], cells[1], marks))
    return Grid(
        "correction",
        "U_EBB at k = 1 with 18 hypotheses instead of 12",
        ("class", "R, 12", "R, 18", "R_eff, 12", "R_eff, 18", "R/R_eff"),
        tuple(rows),
    )


def _ranges(paper: Paper) -> Grid:
    rows = []
    for row in paper.rows("stage1"):
        range_ = range_behind(row, paper.delta()).middle
        worst = stage1_u(row, exact(paper.range_R), paper.delta()).middle
        saved, share = worst - row.number("U_Reff").middle, range_ / paper.budget(row.count("k"))
        numbers = (f"{worst:.2f}", row["U_Reff"], f"{saved:.1f}", f"{range_:.0f}", f"{share:.2f}")
        rows.append((row["k"], row["class"], *numbers))
    return Grid(
        "ranges",
        "U_EBB under R and R_eff, and the range behind the latter",
        ("k", "class", "U (R)", "U (R_eff)", "saved", "R_eff", "R_eff/K"),
        tuple(rows),
        "No spend is negative, so some trajectory spent at least R_eff.",
    )


def _invalid_row(paper: Paper) -> Grid:
    rows = []
    for k in (3, 5):
        gaps = (gap(paper, k, invalid_as_zero=zero) for zero in (True, False))
        rows.append((f"k = {k}", *(f"{value.middle:+.3f}" for value in gaps)))
    header = ("budget", "invalid row counted as 0", "invalid row left out")
    title = "Transfer gap: mean final minus mean held-out rho"
    return Grid("invalid_row", title, header, tuple(rows))


def _short(row: PrintedRow) -> str:
    return row["id"].removeprefix("heldout_bookmia.")
