"""What the text quotes of overlap, debt and single outputs of the fixed workload."""

from __future__ import annotations

from nafaudit.report.paper.interval import Interval, interval, largest, magnitude, smallest
from nafaudit.report.paper.quantities.registry import quantity, released
from nafaudit.report.paper.source import Paper


def _overlap(paper: Paper, column: str) -> list[Interval]:
    return [row.number(column) for row in paper.rows("overlap")]


@quantity
def rouge_mean(paper: Paper) -> Interval:
    """The largest class mean of ROUGE-L."""
    return largest(_overlap(paper, "rouge_mean"))


@quantity
def rouge_max(paper: Paper) -> Interval:
    """The largest ROUGE-L."""
    return largest(_overlap(paper, "rouge_max"))


@quantity
def jaccard_mean(paper: Paper) -> Interval:
    """The largest class mean of 5-gram Jaccard."""
    return largest(_overlap(paper, "jaccard_mean"))


@quantity
def jaccard_max(paper: Paper) -> Interval:
    """The largest 5-gram Jaccard."""
    return largest(_overlap(paper, "jaccard_max"))


def _changes(paper: Paper, column: str) -> list[Interval]:
    """Relative changes of a statistic from k = 3 to 5, where it is not printed as 0."""
    pairs = zip(paper.rows("overlap", k=3), paper.rows("overlap", k=5), strict=True)
    numbers = [(old.number(column), new.number(column)) for old, new in pairs]
    return [magnitude(new / old - 1) for old, new in numbers if old.low > 0]


@quantity
def change_rouge_mean(paper: Paper) -> Interval:
    """The largest relative change of a ROUGE-L mean from k = 3 to 5."""
    return largest(_changes(paper, "rouge_mean"))


@quantity
def change_rouge_max(paper: Paper) -> Interval:
    """The largest relative change of a ROUGE-L maximum from k = 3 to 5."""
    return largest(_changes(paper, "rouge_max"))


@quantity
def change_jaccard_max(paper: Paper) -> Interval:
    """The largest relative change of a 5-gram maximum from k = 3 to 5."""
    return largest(_changes(paper, "jaccard_max"))


@quantity
def debt_mean(paper: Paper) -> Interval:
    """The largest class mean of the debt."""
    return largest(row.number("mean") for row in paper.rows("debt"))


@quantity
def debt_least_mean(paper: Paper) -> Interval:
    """The smallest class mean of the debt."""
    return smallest(row.number("mean") for row in paper.rows("debt"))


@quantity
def debt_max(paper: Paper) -> Interval:
    """The largest debt."""
    return largest(row.number("max") for row in paper.rows("debt"))


@quantity
def debt_least_max(paper: Paper) -> Interval:
    """The smallest class maximum of the debt."""
    return smallest(row.number("max") for row in paper.rows("debt"))


@quantity
def debt_least_max_share(paper: Paper) -> Interval:
    """The smallest class maximum of the debt in percent of K = 600."""
    return debt_least_max(paper) / paper.budget(3) * 100


@released
def debt_max_released(paper: Paper) -> Interval:
    """The largest debt of an archived prompt."""
    return largest(row.number("debt") for row in paper.rows("released_archive"))


@quantity
def regime_a_distance(paper: Paper) -> Interval:
    """The relative distance of regime A's spend from its class mean."""
    row = paper.row("stage1", **{"k": 3, "class": "test"})
    return magnitude(interval(paper.setting("spend_regime_A")) / row.number("mean") - 1)


@quantity
def regime_a_share(paper: Paper) -> float:
    """Regime A's spend over K."""
    return paper.setting("spend_regime_A") / paper.budget(3)


@released
def active_steps_k3_test(paper: Paper) -> Interval:
    """The percentage of steps in which the constraint acted, test class at k = 3."""
    return paper.row("released_regime", **{"k": 3, "class": "test"}).number("active_percent")
