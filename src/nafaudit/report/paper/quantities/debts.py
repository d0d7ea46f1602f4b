"""What the text quotes of the held-out prompts' debts."""

from __future__ import annotations

from nafaudit.report.paper.formulas import debt
from nafaudit.report.paper.interval import Interval, largest, smallest
from nafaudit.report.paper.quantities.registry import quantity
from nafaudit.report.paper.quantities.rows import flagged, valid
from nafaudit.report.paper.source import Paper


def _debts(paper: Paper) -> list[Interval]:
    return [debt(paper, row) for row, _ in valid(paper, "heldout", 3)]


@quantity
def least_heldout_debt(paper: Paper) -> Interval:
    """The smallest K - B_eff of a held-out row."""
    return smallest(_debts(paper))


@quantity
def least_flagged_debt(paper: Paper) -> Interval:
    """The smallest K - B_eff of a flagged row."""
    return smallest(debt(paper, row) for row in flagged(paper))


@quantity
def middle_flagged_debt(paper: Paper) -> Interval:
    """The middle K - B_eff of the flagged rows."""
    found = sorted((debt(paper, row) for row in flagged(paper)), key=lambda d: d.middle)
    return found[len(found) // 2]


@quantity
def largest_flagged_debt(paper: Paper) -> Interval:
    """The largest K - B_eff of a flagged row."""
    return largest(debt(paper, row) for row in flagged(paper))


def _position(paper: Paper, value: Interval) -> Interval:
    """Where a debt lies in the quoted held-out range: 0 at its start, 1 at its end."""
    low, high = (
        paper.row("settings", name=f"debt_{end}").number("printed") for end in ("low", "high")
    )
    return (value - low) / (high - low)


@quantity
def position_least_debt(paper: Paper) -> Interval:
    """The place of the smallest flagged debt in the quoted range, 0 its start and 1 its end."""
    return _position(paper, least_flagged_debt(paper))


@quantity
def position_middle_debt(paper: Paper) -> Interval:
    """The place of the middle flagged debt in the quoted range, 0 its start and 1 its end."""
    return _position(paper, middle_flagged_debt(paper))


@quantity
def position_largest_debt(paper: Paper) -> Interval:
    """The place of the largest flagged debt in the quoted range, 0 its start and 1 its end."""
    return _position(paper, largest_flagged_debt(paper))
