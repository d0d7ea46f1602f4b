"""What the text quotes of the fixed workload: counts, spends and bounds by class."""

from __future__ import annotations

from collections.abc import Iterator

from nafaudit.report.paper.formulas import implied_reach, stage1_u
from nafaudit.report.paper.interval import Interval, average, interval, largest, smallest
from nafaudit.report.paper.quantities.registry import quantity
from nafaudit.report.paper.source import Paper, Row


def _budget(paper: Paper, row: Row) -> float:
    return paper.budget(row.count("k"))


def _reported(paper: Paper) -> list[Row]:
    """The rows of the two budgets that the corrected summary covers."""
    return paper.rows("stage1", k=3) + paper.rows("stage1", k=5)


@quantity
def classes(paper: Paper) -> float:
    """The number of classes in the tables."""
    return len(paper.rows("debt"))


@quantity
def executions_one_budget(paper: Paper) -> float:
    """Class caps times trajectories per prompt, at one budget."""
    return sum(paper.executions(row["class"]) for row in paper.rows("debt"))


@quantity
def executions_two_budgets(paper: Paper) -> float:
    """The sum of M over both tables."""
    return sum(row.count("M") for row in _reported(paper))


@quantity
def fewest_per_class(paper: Paper) -> float:
    """The smallest M of any class."""
    return min(row.count("M") for row in _reported(paper))


@quantity
def budget_k1(paper: Paper) -> float:
    """K = k T at k = 1."""
    return paper.budget(1)


@quantity
def budget_k3(paper: Paper) -> float:
    """K = k T at k = 3."""
    return paper.budget(3)


@quantity
def budget_k5(paper: Paper) -> float:
    """K = k T at k = 5."""
    return paper.budget(5)


@quantity
def range_R(paper: Paper) -> float:  # noqa: N802 - the paper's letter
    """R = T ln|V| with |V| = 128,256."""
    return paper.worst_range


@quantity
def hypotheses(paper: Paper) -> float:
    """Classes times budgets."""
    return classes(paper) * paper.setting("stage1_budgets")


@quantity
def hypotheses_with_k1(paper: Paper) -> float:
    """The number of rows with k = 1 included."""
    return len(paper.rows("stage1"))


@quantity
def delta_adjusted(paper: Paper) -> float:
    """The level over the number of hypotheses."""
    return paper.stage1_level()


@quantity
def delta_with_k1(paper: Paper) -> float:
    """The level over the number of rows with k = 1 included."""
    return paper.stage1_level(len(paper.rows("stage1")))


@quantity
def least_mean(paper: Paper) -> Interval:
    """The smallest class mean at k = 3 and 5."""
    return smallest(row.number("mean") for row in _reported(paper))


@quantity
def largest_mean(paper: Paper) -> Interval:
    """The largest class mean at k = 3 and 5."""
    return largest(row.number("mean") for row in _reported(paper))


def _share(paper: Paper, k: int) -> list[Interval]:
    return [row.number("mean") / _budget(paper, row) for row in paper.rows("stage1", k=k)]


@quantity
def largest_share(paper: Paper) -> Interval:
    """The largest class mean over K at k = 3 and 5."""
    return largest(_share(paper, 3) + _share(paper, 5))


@quantity
def largest_share_k3(paper: Paper) -> Interval:
    """The largest class mean over K at k = 3."""
    return largest(_share(paper, 3))


@quantity
def mean_share_k3(paper: Paper) -> Interval:
    """The average class mean over K at k = 3."""
    return average(_share(paper, 3))


@quantity
def mean_share_k5(paper: Paper) -> Interval:
    """The average class mean over K at k = 5."""
    return average(_share(paper, 5))


@quantity
def least_mean_k1(paper: Paper) -> Interval:
    """The smallest class mean at k = 1."""
    return smallest(row.number("mean") for row in paper.rows("stage1", k=1))


@quantity
def largest_mean_k1(paper: Paper) -> Interval:
    """The largest class mean at k = 1."""
    return largest(row.number("mean") for row in paper.rows("stage1", k=1))


@quantity
def least_share_k1(paper: Paper) -> Interval:
    """The smallest class mean over K at k = 1."""
    return smallest(_share(paper, 1))


@quantity
def largest_share_k1(paper: Paper) -> Interval:
    """The largest class mean over K at k = 1."""
    return largest(_share(paper, 1))


@quantity
def largest_proxy_share(paper: Paper) -> Interval:
    """The largest U_EBB / K at k = 3 and 5, under R or R_eff."""
    rows = _reported(paper)
    return largest(r.number(c) / _budget(paper, r) for r in rows for c in ("U_R", "U_Reff"))


@quantity
def largest_proxy_share_k5(paper: Paper) -> Interval:
    """The largest U_EBB / K at k = 5."""
    rows = paper.rows("stage1", k=5)
    return largest(r.number(c) / _budget(paper, r) for r in rows for c in ("U_R", "U_Reff"))


@quantity
def attack_proxy_share_k1(paper: Paper) -> Interval:
    """U_EBB (R) / K of attack_train at k = 1."""
    row = paper.row("stage1", **{"k": 1, "class": "attack_train"})
    return row.number("U_R") / _budget(paper, row)


@quantity
def largest_effective_share_k1(paper: Paper) -> Interval:
    """The largest U_EBB (R_eff) / K at k = 1."""
    rows = paper.rows("stage1", k=1)
    return largest(row.number("U_Reff") / _budget(paper, row) for row in rows)


def _savings(rows: list[Row]) -> Iterator[Interval]:
    return (row.number("U_R") - row.number("U_Reff") for row in rows)


@quantity
def least_saving(paper: Paper) -> Interval:
    """The smallest U_EBB (R) - U_EBB (R_eff) at k = 3 and 5."""
    return smallest(_savings(_reported(paper)))


@quantity
def largest_saving(paper: Paper) -> Interval:
    """The largest U_EBB (R) - U_EBB (R_eff) at k = 3 and 5."""
    return largest(_savings(_reported(paper)))


def _growth(paper: Paper, *, effective: bool) -> list[Interval]:
    """What 18 hypotheses instead of 12 add to each U_EBB at k = 1."""
    old, new = paper.stage1_level(), paper.stage1_level(len(paper.rows("stage1")))
    grown = []
    for row in paper.rows("stage1", k=1):
        # The same row before and after: only the level differs, so rounding nearly cancels.
        reach = implied_reach(row, old) if effective else interval(paper.worst_range)
        low, high = Interval(reach.low, reach.low), Interval(reach.high, reach.high)
        grown.append(
            Interval(
                (stage1_u(row, low, new).low - stage1_u(row, low, old).low),
                (stage1_u(row, high, new).high - stage1_u(row, high, old).high),
            )
        )
    return grown


@quantity
def least_growth_worst_range(paper: Paper) -> Interval:
    """The smallest growth of U_EBB (R) at k = 1."""
    return smallest(_growth(paper, effective=False))


@quantity
def largest_growth_worst_range(paper: Paper) -> Interval:
    """The largest growth of U_EBB (R) at k = 1."""
    return largest(_growth(paper, effective=False))


@quantity
def least_growth_effective(paper: Paper) -> Interval:
    """The smallest growth of U_EBB (R_eff) at k = 1."""
    return smallest(_growth(paper, effective=True))


@quantity
def largest_growth_effective(paper: Paper) -> Interval:
    """The largest growth of U_EBB (R_eff) at k = 1."""
    return largest(_growth(paper, effective=True))


@quantity
def largest_effective_share_18(paper: Paper) -> Interval:
    """The largest U_EBB (R_eff) / K at k = 1 when all 18 rows are corrected for."""
    old, new = paper.stage1_level(), paper.stage1_level(len(paper.rows("stage1")))
    rows = paper.rows("stage1", k=1)
    return largest(stage1_u(r, implied_reach(r, old), new) / _budget(paper, r) for r in rows)


@quantity
def mean_slack_k3(paper: Paper) -> Interval:
    """K over the largest class mean at k = 3."""
    return interval(1) / largest(_share(paper, 3))


@quantity
def mean_slack_k5(paper: Paper) -> Interval:
    """K over the largest class mean at k = 5."""
    return interval(1) / largest(_share(paper, 5))


def _largest_spend_share(paper: Paper, k: int) -> Interval:
    rows = paper.rows("stage1", k=k)
    reach = largest(implied_reach(row, paper.stage1_level()) for row in rows)
    # The largest spend is at least the range, because no spend is negative.
    least = (reach / paper.budget(k)).low
    return Interval(least, max(1.0, least))


@quantity
def largest_spend_share_k1(paper: Paper) -> Interval:
    """The largest spend over K that the printed R_eff column implies, at k = 1."""
    return _largest_spend_share(paper, 1)


@quantity
def largest_spend_share_k3(paper: Paper) -> Interval:
    """The largest spend over K that the printed R_eff column implies, at k = 3."""
    return _largest_spend_share(paper, 3)


@quantity
def trajectory_slack_k3(paper: Paper) -> Interval:
    """K over the largest spend that the printed R_eff column implies, at k = 3."""
    return interval(1) / _largest_spend_share(paper, 3)


@quantity
def largest_rise_of_mean(paper: Paper) -> Interval:
    """The largest relative rise of a class mean from k = 3 to 5."""
    return largest(_rises(paper))


@quantity
def least_rise_of_mean(paper: Paper) -> Interval:
    """The smallest relative rise of a class mean from k = 3 to 5."""
    return smallest(_rises(paper))


def _rises(paper: Paper) -> list[Interval]:
    pairs = zip(paper.rows("stage1", k=3), paper.rows("stage1", k=5), strict=True)
    return [new.number("mean") / old.number("mean") - 1 for old, new in pairs]


@quantity
def rows_of_k1(paper: Paper) -> float:
    """The number of rows that summarise the k = 1 files."""
    return len(paper.rows("stage1", k=1))
