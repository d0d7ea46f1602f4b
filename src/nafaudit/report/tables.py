"""Trajectories by prompt, the worst first: where a reader starts to look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nafaudit.checks.check import mean
from nafaudit.core.trajectory import Arm
from nafaudit.report.data import Report
from nafaudit.report.outline import Outline


@dataclass(frozen=True)
class PromptRow:
    """All trajectories of one prompt in one arm.

    Attributes:
        prompt: Its id.
        label: Its class.
        arm: Which mechanism and budget.
        count: Trajectories.
        violations: How many exceeded their budget.
        debt: Prefix debt, in nats.
        spend: Mean spend, in nats.
        utilisation: Mean share of the budget that was spent; NaN without a budget.
        worst_utilisation: The largest.
        ratio: The largest log-likelihood ratio L.
        recall: The largest near-verbatim recall; NaN if unscored.
        active: Share of steps that served a mixture.
        worst: The trajectory to look at.
    """

    prompt: str
    label: str
    arm: Arm
    count: int
    violations: int
    debt: float
    spend: float
    utilisation: float
    worst_utilisation: float
    ratio: float
    recall: float
    active: float
    worst: Outline


def prompt_rows(report: Report) -> list[PromptRow]:
    """One row per arm and prompt; violations first, then by use, recall and spend."""
    groups: dict[tuple[Arm, str], list[Outline]] = {}
    for one in report.outlines:
        groups.setdefault((one.key.arm, one.key.prompt), []).append(one)
    rows = [_row(report, arm, prompt, group) for (arm, prompt), group in groups.items()]
    return sorted(rows, key=lambda row: (_descending(row.worst), row.arm, row.prompt))


def _row(report: Report, arm: Arm, prompt: str, group: Sequence[Outline]) -> PromptRow:
    known = report.prompts.get(prompt)
    steps = sum(one.forced + one.active + one.free for one in group)
    return PromptRow(
        prompt,
        known.label if known else "",
        arm,
        len(group),
        sum(one.violated for one in group),
        mean(known_values([one.debt for one in group])),
        mean(known_values([one.spend for one in group])),
        mean(known_values([one.utilisation for one in group])),
        largest([one.utilisation for one in group]),
        largest([one.ratio for one in group]),
        largest([one.recall for one in group]),
        sum(one.active for one in group) / steps if steps else math.nan,
        worst_of(group),
    )


def worst_of(group: Sequence[Outline]) -> Outline:
    """The trajectory to look at first; ties go to the first key."""
    return min(group, key=lambda one: (_descending(one), one.key))


def known_values(values: Sequence[float]) -> list[float]:
    """Values without the unknown ones."""
    return [value for value in values if not math.isnan(value)]


def largest(values: Sequence[float]) -> float:
    """The largest known value; NaN if there is none."""
    return max(known_values(values), default=math.nan)


def _descending(one: Outline) -> tuple[float, ...]:
    return tuple(-float(value) for value in one.badness)
