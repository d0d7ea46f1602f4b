"""The numbers behind the page's charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nafaudit.checks.verdict import ArmResult
from nafaudit.core.ledger import RISKY_ONLY
from nafaudit.core.trajectory import Arm
from nafaudit.report.choose import sample
from nafaudit.report.data import Report
from nafaudit.report.outline import Outline
from nafaudit.report.records import as_json
from nafaudit.report.tables import known_values
from nafaudit.report.words import budget_name

BINS = 20
POINTS = 400
"""Marks per arm in a chart; histograms and tails are of all executions."""

_TAIL_POINTS = 121


def arm_name(arm: ArmResult, report: Report) -> str:
    """The budget, with the mechanism if the run has several."""
    several = len({other.mechanism for other in report.arms}) > 1
    return f"{arm.mechanism} {budget_name(arm.k)}" if several else budget_name(arm.k)


def colour(arm: ArmResult, report: Report) -> str:
    """A class of the style sheet: baselines have their own, budgets take turns."""
    if arm.k == 0:
        return "c-safe"
    if arm.k == RISKY_ONLY:
        return "c-risky"
    judged = [other for other in report.arms if not other.is_baseline]
    return f"c{judged.index(arm) % 6}"


def arm_chart(
    arm: ArmResult, report: Report, ids: Mapping[str, int], shown: Mapping[Any, int]
) -> dict[str, Any]:
    """Everything the charts draw of one arm."""
    outlines = report.of(arm)
    risky = {
        (o.key.prompt, o.key.trajectory): o
        for o in report.by_arm.get(Arm(arm.mechanism, RISKY_ONLY), [])
    }
    alone = {one.key: risky[unit].spend for one in outlines if (unit := _unit(one)) in risky}
    regime = arm.regime
    length = report.facts.max_new_tokens
    return {
        "name": arm_name(arm, report),
        "mechanism": arm.mechanism,
        "colour": colour(arm, report),
        "baseline": arm.is_baseline,
        "k": as_json(arm.k),
        "K": as_json(arm.k * length if length else math.nan),
        "regime": [
            as_json(regime.share(n), 6) for n in (regime.forced, regime.active, regime.free)
        ],
        "hist": histogram([one.utilisation for one in outlines]),
        "ghost": histogram(
            [
                alone[o.key] / o.budget
                for o in outlines
                if o.key in alone and 0 < o.budget < math.inf
            ]
        ),
        "tail": tail([one.ratio for one in outlines]),
        "points": [
            {
                "p": ids[one.key.prompt],
                "n": one.key.trajectory,
                "z": as_json(one.spend, 3),
                "b": as_json(one.budget, 3),
                "c": as_json(one.recall, 3),
                "r": as_json(alone.get(one.key, math.nan), 2),
                "v": shown.get(one.key, -1),
            }
            for one in points(outlines)
        ],
    }


def points(outlines: Sequence[Outline]) -> list[Outline]:
    """Which executions get a mark."""
    return sample(outlines, POINTS)


def histogram(values: Sequence[float]) -> list[int]:
    """Counts of twentieths of the budget; the last count is of values above 1."""
    counts = [0] * (BINS + 1)
    for value in known_values(values):
        # Exactly all of the budget belongs to the last twentieth; rounding in sums is no excess.
        over = value > 1 + 1e-6
        counts[BINS if over else min(BINS - 1, int(max(0.0, value) * BINS))] += 1
    return counts


def tail(values: Sequence[float]) -> list[float | str | None]:
    """Values at evenly spaced ranks, the smallest and the largest among them."""
    ordered = sorted(known_values(values))
    if len(ordered) <= _TAIL_POINTS:
        return [as_json(value, 2) for value in ordered]
    last = len(ordered) - 1
    ranks = [round(i * last / (_TAIL_POINTS - 1)) for i in range(_TAIL_POINTS)]
    return [as_json(ordered[rank], 2) for rank in ranks]


def _unit(one: Outline) -> tuple[str, int]:
    return one.key.prompt, one.key.trajectory
