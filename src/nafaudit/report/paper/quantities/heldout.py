"""What the text quotes of the held-out pool."""

from __future__ import annotations

from nafaudit.report.paper.formulas import largest_spend, possible_reach
from nafaudit.report.paper.interval import Interval, interval, largest, smallest
from nafaudit.report.paper.quantities.registry import quantity, released
from nafaudit.report.paper.quantities.rows import changes_of, flagged, ratios_of, valid
from nafaudit.report.paper.source import Paper


@quantity
def heldout_prompts(paper: Paper) -> float:
    """The number of held-out rows."""
    return len(paper.rows("stage2", pool="heldout", k=3))


@quantity
def heldout_above_one(paper: Paper) -> float:
    """The number of held-out rows with U_EBB / B_eff above 1 at k = 3."""
    return len(flagged(paper))


@quantity
def heldout_above_one_beyond_floor(paper: Paper) -> float:
    """The number of held-out rows above 1 whose N is not 4."""
    return sum(row.count("N") != paper.setting("floor") for row in flagged(paper))


@quantity
def heldout_at_twenty_k5(paper: Paper) -> float:
    """The number of held-out rows with N = 20 at k = 5."""
    return sum(row.count("N") == 20 for row in paper.rows("stage2", pool="heldout", k=5))


@quantity
def heldout_at_twenty_k3(paper: Paper) -> float:
    """The number of held-out rows with N = 20 at k = 3."""
    return sum(row.count("N") == 20 for row in paper.rows("stage2", pool="heldout", k=3))


@quantity
def heldout_share_at_twenty_k5(paper: Paper) -> float:
    """The share of held-out rows with N = 20 at k = 5."""
    return heldout_at_twenty_k5(paper) / heldout_prompts(paper)


@quantity
def heldout_with_ratio_k5(paper: Paper) -> float:
    """The number of held-out rows that have a ratio at k = 5."""
    return len(valid(paper, "heldout", 5))


@quantity
def least_heldout_k5(paper: Paper) -> Interval:
    """The smallest held-out ratio at k = 5."""
    return smallest(ratios_of(paper, "heldout", 5))


@quantity
def largest_heldout_k5(paper: Paper) -> Interval:
    """The largest held-out ratio at k = 5."""
    return largest(ratios_of(paper, "heldout", 5))


@quantity
def largest_heldout_k5_at_twenty(paper: Paper) -> Interval:
    """The largest held-out ratio at k = 5 with N = 20."""
    return largest(ratios_of(paper, "heldout", 5, 20))


@quantity
def least_heldout_k5_at_twenty(paper: Paper) -> Interval:
    """The smallest held-out ratio at k = 5 with N = 20."""
    return smallest(ratios_of(paper, "heldout", 5, 20))


def _regime_gap(paper: Paper, k: int) -> Interval:
    """Smallest ratio of the other pools minus the largest held-out one at N = 20."""
    others = ratios_of(paper, "final", k) + ratios_of(paper, "stress", k)
    return smallest(others) - largest(ratios_of(paper, "heldout", k, 20))


@quantity
def regime_gap_k3(paper: Paper) -> Interval:
    """The smallest ratio of the other pools minus the largest held-out one at N = 20, k = 3."""
    return _regime_gap(paper, 3)


@quantity
def regime_gap_k5(paper: Paper) -> Interval:
    """The smallest ratio of the other pools minus the largest held-out one at N = 20, k = 5."""
    return _regime_gap(paper, 5)


@quantity
def least_change_heldout(paper: Paper) -> Interval:
    """The most negative relative change of mean spend of a held-out prompt from k = 3 to 5."""
    return smallest(changes_of(paper, paper.rows("stage2", pool="heldout", k=3)))


@quantity
def largest_change_heldout(paper: Paper) -> Interval:
    """The most positive relative change of mean spend of a held-out prompt from k = 3 to 5."""
    return largest(changes_of(paper, paper.rows("stage2", pool="heldout", k=3)))


@quantity
def factor_of_K(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """K at k = 5 over K at k = 3."""
    return paper.budget(5) / paper.budget(3)


@quantity
def factor_of_budget_heldout(paper: Paper) -> Interval:
    """B_eff at k = 5 over B_eff at k = 3, the largest of the held-out rows."""
    before = {row["id"]: row.number("B") for row, _ in valid(paper, "heldout", 3)}
    after = {row["id"]: row.number("B") for row, _ in valid(paper, "heldout", 5)}
    return largest(after[name] / before[name] for name in after if name in before)


@quantity
def largest_heldout_mean(paper: Paper) -> Interval:
    """The largest mean spend of a held-out row at k = 3."""
    return largest(row.number("mean") for row in paper.rows("stage2", pool="heldout", k=3))


@quantity
def largest_heldout_spend_share(paper: Paper) -> Interval:
    """The largest spend over K that the held-out rows at k = 3 allow."""
    delta = paper.setting("delta_stage2")
    rows = [row for row, _ in valid(paper, "heldout", 3)]
    spends = [largest_spend(row, possible_reach(row, delta)).high for row in rows]
    return interval(max(spends) / paper.budget(3))


def _survivors_at_floor(paper: Paper, k: int) -> int:
    slack, floor = paper.setting("survivor_slack"), paper.setting("floor")
    pairs = valid(paper, "heldout", k)
    return sum(row.count("N") == floor and ratio.high <= slack for row, ratio in pairs)


@quantity
def survivors_at_floor_k5(paper: Paper) -> float:
    """The number of held-out rows left at N = 4 at k = 5 that pass the survivor test."""
    return _survivors_at_floor(paper, 5)


@quantity
def survivors_at_floor_k3(paper: Paper) -> float:
    """The number of valid held-out rows left at N = 4 at k = 3 that pass the survivor test."""
    return _survivors_at_floor(paper, 3)


@quantity
def heldout_sources(paper: Paper) -> float:
    """The number of books in the held-out identifiers."""
    rows = paper.rows("stage2", pool="heldout", k=3)
    return len({row["id"].split(".")[1] for row in rows})


@released
def fewest_distinct(paper: Paper) -> float:
    """The fewest distinct spends among the 20 of a held-out row."""
    return min(row.count("distinct") for row in paper.rows("released_distinct", N=20))


@quantity
def largest_N(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """The largest N of a held-out row."""
    return max(row.count("N") for row in paper.rows("stage2", pool="heldout"))
