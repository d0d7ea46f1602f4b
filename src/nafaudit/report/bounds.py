"""What a sample of executions says about all of them, each number with its width."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nafaudit.checks.verdict import ArmResult
from nafaudit.core.errors import InputError
from nafaudit.report.data import Report
from nafaudit.report.outline import Outline
from nafaudit.report.result import as_number
from nafaudit.stats import Assumption, Bonferroni, Bound, Sample, bound, clopper_pearson, enough

RATE_LEVEL = 0.05
"""How often each limit of a rate may miss, by itself, as in the verdicts' own sentences."""

MEANS = ("betting-prompts", "cluster-t")


@dataclass(frozen=True)
class BoundRow:
    """One limit of one arm.

    Attributes:
        arm: Index of the arm.
        target: What is bounded, in words.
        unit: nats, or share.
        point: The plain estimate.
        upper: The limit: the truth is below it, but for a chance of `level`.
        level: How often it may miss. Limits of means share the run's delta.
        n: Independent units behind it.
        units: What they are.
        method: Name of the bound.
        assumes: What it rests on, in words.
        evidence: False if n is small or the method is approximate or a proxy.
    """

    arm: int
    target: str
    unit: str
    point: float
    upper: float
    level: float
    n: int
    units: str
    method: str
    assumes: str
    evidence: bool

    @property
    def width(self) -> float:
        """Distance from the estimate to the limit."""
        return self.upper - self.point

    def to_json(self) -> dict[str, object]:
        """Plain data for report.json."""
        names = ("target", "unit", "n", "units", "method", "assumes", "evidence")
        numbers = {
            name: as_number(getattr(self, name)) for name in ("point", "upper", "width", "level")
        }
        return {name: getattr(self, name) for name in names} | numbers


def mean_level(report: Report) -> float:
    """How often each limit of a mean may miss: the run's level, shared by all of them."""
    return Bonferroni(report.facts.level, max(1, len(MEANS) * len(report.arms))).each


def bound_rows(report: Report) -> list[BoundRow]:
    """Limits on the rate of violations and on mean spend, arm by arm."""
    rows = []
    level = mean_level(report)
    for index, arm in enumerate(report.arms):
        outlines = report.of(arm)
        if not arm.is_baseline and outlines:
            rows += _rates(index, outlines)
        rows += _means(index, arm, report, level)
    return rows


def _rates(index: int, outlines: list[Outline]) -> list[BoundRow]:
    broken = {one.key.prompt for one in outlines if one.violated}
    counts = {
        "executions": (sum(one.violated for one in outlines), len(outlines)),
        "prompts": (len(broken), len({one.key.prompt for one in outlines})),
    }
    assumed = "independent units of one rate, n fixed before looking"
    return [
        BoundRow(
            index, f"{units} that go over budget", "share", events / n,
            clopper_pearson(events, n, RATE_LEVEL)[1], RATE_LEVEL, n, units, "Clopper-Pearson",
            assumed, enough(n),
        )
        for units, (events, n) in counts.items()
    ]  # fmt: skip


def _means(index: int, arm: ArmResult, report: Report, level: float) -> list[BoundRow]:
    """Upper limits on the mean spend of a prompt; a method that does not apply is left out.

    One spend that is not known leaves none: the mean of the others is another mean.
    """
    outlines = report.of(arm)
    if arm.k == 0 or not outlines or not all(math.isfinite(one.spend) for one in outlines):
        return []
    promised = report.facts.promised(arm.k)
    high = promised if math.isfinite(promised) and promised > 0 else math.inf
    spends = [report.facts.settled(one.spend, high) for one in outlines]
    sample = Sample.of(spends, high, (one.key.prompt for one in outlines))
    rows = []
    for name in MEANS:
        try:
            rows.append(_mean(index, bound(name, sample, level)))
        except InputError:
            continue
    return rows


def _mean(index: int, found: Bound) -> BoundRow:
    assumes = "; ".join(found.assumes)
    if "approximate" in found.note:
        assumes += "; approximate, rare bursts break it"
    if Assumption.RANGE in found.assumes:
        assumes += "; R = K, which holds only where the budget is kept"
    return BoundRow(
        index, "mean spend of a prompt", "nats", found.point, found.value, found.delta, found.n,
        "prompts", found.name, assumes, found.evidence and "approximate" not in found.note,
    )  # fmt: skip
