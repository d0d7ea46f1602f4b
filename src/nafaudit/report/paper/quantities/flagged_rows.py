"""What the text quotes of the three prompts with a ratio above 1."""

from __future__ import annotations

from nafaudit.report.paper.formulas import largest_spend, rho
from nafaudit.report.paper.interval import Interval, average, interval, largest, magnitude, smallest
from nafaudit.report.paper.quantities.registry import quantity
from nafaudit.report.paper.quantities.rows import changes_of, flagged, reach_of, valid
from nafaudit.report.paper.source import Paper


def _flagged_ratios_k5(paper: Paper) -> list[Interval]:
    # A prompt that is flagged at one budget may be invalid at the other.
    return [ratio for row in flagged(paper, 5) if (ratio := rho(row)) is not None]


@quantity
def least_flagged_k5(paper: Paper) -> Interval:
    """The smallest ratio of the three flagged prompts at k = 5."""
    return smallest(_flagged_ratios_k5(paper))


@quantity
def largest_flagged_k5(paper: Paper) -> Interval:
    """The largest ratio of the three flagged prompts at k = 5."""
    return largest(_flagged_ratios_k5(paper))


def _same_budget(paper: Paper) -> list[Interval]:
    """U_EBB at k = 5 over B_eff at k = 3: another allocation, the same budget."""
    pairs = zip(flagged(paper, 5), flagged(paper), strict=True)
    return [new.number("U") / old.number("B") for new, old in pairs]


@quantity
def least_flagged_same_budget(paper: Paper) -> Interval:
    """The smallest U_EBB at k = 5 over B_eff at k = 3 of a flagged prompt."""
    return smallest(_same_budget(paper))


@quantity
def largest_flagged_same_budget(paper: Paper) -> Interval:
    """The largest U_EBB at k = 5 over B_eff at k = 3 of a flagged prompt."""
    return largest(_same_budget(paper))


@quantity
def largest_change_flagged(paper: Paper) -> Interval:
    """The largest relative change of mean spend of a flagged prompt from k = 3 to 5."""
    return largest(magnitude(change) for change in changes_of(paper, flagged(paper)))


@quantity
def least_flagged_mean(paper: Paper) -> Interval:
    """The smallest mean spend of a flagged row."""
    return smallest(row.number("mean") for row in flagged(paper))


@quantity
def largest_flagged_mean(paper: Paper) -> Interval:
    """The largest mean spend of a flagged row."""
    return largest(row.number("mean") for row in flagged(paper))


@quantity
def average_flagged_mean(paper: Paper) -> Interval:
    """The average mean spend of the flagged rows."""
    return average(row.number("mean") for row in flagged(paper))


@quantity
def unflagged_mean(paper: Paper) -> Interval:
    """The largest average mean spend of three unflagged prompts with N = 20."""
    rows = [row for row, ratio in valid(paper, "heldout", 3) if ratio.high < 1]
    means = [row.number("mean") for row in rows if row.count("N") == 20]
    return average(sorted(means, key=lambda mean: mean.middle)[-3:])


@quantity
def average_flagged_budget(paper: Paper) -> Interval:
    """The average B_eff of the flagged rows."""
    return average(row.number("B") for row in flagged(paper))


@quantity
def average_flagged_budget_k5(paper: Paper) -> Interval:
    """The average B_eff of the flagged prompts at k = 5."""
    return average(row.number("B") for row in flagged(paper, 5))


@quantity
def least_flagged_use(paper: Paper) -> Interval:
    """The smallest mean spend over B_eff of a flagged row."""
    return smallest(row.number("mean") / row.number("B") for row in flagged(paper))


@quantity
def largest_flagged_use(paper: Paper) -> Interval:
    """The largest mean spend over B_eff of a flagged row."""
    return largest(row.number("mean") / row.number("B") for row in flagged(paper))


@quantity
def largest_flagged_spend_share(paper: Paper) -> Interval:
    """The largest spend over K that mean and range of the flagged rows allow."""
    spends = [largest_spend(row, reach_of(paper, row)).high for row in flagged(paper)]
    return interval(max(spends) / paper.budget(3))


@quantity
def least_flagged_ratio(paper: Paper) -> Interval:
    """The smallest ratio of a flagged row."""
    return smallest(row.number("U") / row.number("B") for row in flagged(paper))
