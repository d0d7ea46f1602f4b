"""What the text quotes of the deterministic term, and of projections to a larger N."""

from __future__ import annotations

from nafaudit.report.paper.formulas import deterministic, projected
from nafaudit.report.paper.interval import Interval, average, interval, largest, magnitude, smallest
from nafaudit.report.paper.quantities.registry import quantity
from nafaudit.report.paper.quantities.rows import flagged, reach_of, terms
from nafaudit.report.paper.source import Paper, Row


@quantity
def least_term(paper: Paper) -> Interval:
    """The smallest deterministic term of a flagged prompt at N = 4."""
    return smallest(terms(paper, 4))


@quantity
def largest_term(paper: Paper) -> Interval:
    """The largest deterministic term of a flagged prompt at N = 4."""
    return largest(terms(paper, 4))


@quantity
def average_term(paper: Paper) -> Interval:
    """The average deterministic term of the flagged prompts at N = 4."""
    return average(terms(paper, 4))


@quantity
def average_term_at_twenty(paper: Paper) -> Interval:
    """The average deterministic term of the flagged prompts at N = 20."""
    return average(terms(paper, 20))


def _term_shares(paper: Paper) -> list[Interval]:
    budgets = [row.number("B") for row in flagged(paper)]
    return [term / b * 100 for term, b in zip(terms(paper, 4), budgets, strict=True)]


@quantity
def least_term_share(paper: Paper) -> Interval:
    """The smallest deterministic term at N = 4 in percent of B_eff."""
    return smallest(_term_shares(paper))


@quantity
def largest_term_share(paper: Paper) -> Interval:
    """The largest deterministic term at N = 4 in percent of B_eff."""
    return largest(_term_shares(paper))


@quantity
def term_for_sixty(paper: Paper) -> Interval:
    """The deterministic term at N = 4 for R_eff = 60."""
    return deterministic(interval(60), 4, paper.setting("delta_stage2"))


@quantity
def term_for_two_hundred(paper: Paper) -> Interval:
    """The deterministic term at N = 4 for R_eff = 200."""
    return deterministic(interval(200), 4, paper.setting("delta_stage2"))


@quantity
def term_at_twenty_for_two_hundred(paper: Paper) -> Interval:
    """The deterministic term at N = 20 for R_eff = 200."""
    return deterministic(interval(200), 20, paper.setting("delta_stage2"))


@quantity
def least_flagged_range(paper: Paper) -> Interval:
    """The smallest quoted range of a flagged prompt."""
    return smallest(reach_of(paper, row) for row in flagged(paper))


@quantity
def largest_flagged_range(paper: Paper) -> Interval:
    """The largest quoted range of a flagged prompt."""
    return largest(reach_of(paper, row) for row in flagged(paper))


@quantity
def largest_projected_ratio(paper: Paper) -> Interval:
    """The largest projected ratio of the flagged prompts at N = 20."""
    delta = paper.setting("delta_stage2")
    rows = flagged(paper)
    return largest(projected(r, reach_of(paper, r), 20, delta) / r.number("B") for r in rows)


def _attained(paper: Paper) -> list[tuple[Row, Row]]:
    """Projected rows, each beside the same prompt at k = 5."""
    rows = paper.rows("projection")
    return [(row, paper.row("stage2", pool="heldout", k=5, id=row["id"])) for row in rows]


@quantity
def projection_distance(paper: Paper) -> Interval:
    """The largest relative distance of a projected ratio from the one attained at k = 5."""
    pairs = _attained(paper)
    ratios = ((a.number("rho_20"), b.number("U") / b.number("B")) for a, b in pairs)
    return largest(magnitude(projection / attained - 1) for projection, attained in ratios)


@quantity
def projection_distance_of_bound(paper: Paper) -> Interval:
    """The largest relative distance of a projected U_EBB from the one attained at k = 5."""
    pairs = _attained(paper)
    return largest(magnitude(a.number("U_20") / b.number("U") - 1) for a, b in pairs)


def _share_of_reduction(paper: Paper, row: Row) -> Interval:
    """How much of a projected fall of U_EBB from N = 4 to 20 the deterministic term makes up."""
    delta, reach = paper.setting("delta_stage2"), reach_of(paper, row)
    fall = row.number("U") - projected(row, reach, 20, delta)
    return (deterministic(reach, 4, delta) - deterministic(reach, 20, delta)) / fall


@quantity
def least_share_of_reduction(paper: Paper) -> Interval:
    """The smallest share of the deterministic term in a projected fall of U_EBB."""
    return smallest(_share_of_reduction(paper, row) for row in flagged(paper))
