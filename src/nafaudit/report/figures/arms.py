"""How every figure of a run names, colours and orders its budgets, baselines beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from nafaudit.checks.verdict import ArmResult
from nafaudit.core.text import cut, name
from nafaudit.report.charts import arm_name
from nafaudit.report.data import Report
from nafaudit.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PAGE,
    PURPLE,
    SKY,
    VERMILION,
)

_BUDGET_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
MOST = 6
"""Budgets in a figure; of more, evenly chosen ones are drawn, and the title says so."""
COLUMNS = 3
"""Panels side by side."""
_LONGEST = 22


@dataclass(frozen=True)
class Look:
    """How one arm is drawn.

    Attributes:
        arm: Which.
        label: Its name.
        colour: Of lines and marks.
        marker: Shape of a mark.
        line: Style of a line.
    """

    arm: ArmResult
    label: str
    colour: str
    marker: str
    line: str


def budgets(report: Report) -> list[ArmResult]:
    """Audited arms with outputs, at most `MOST`, the smallest and the largest among them."""
    judged = [arm for arm in report.arms if not arm.is_baseline and report.of(arm)]
    if len(judged) <= MOST:
        return judged
    step = (len(judged) - 1) / (MOST - 1)
    return [judged[round(i * step)] for i in range(MOST)]


def baselines(report: Report) -> list[ArmResult]:
    """The safe model alone and the risky model alone, where they were run; at most two."""
    return [arm for arm in report.arms if arm.is_baseline and report.of(arm)][:2]


def looks(report: Report) -> list[Look]:
    """Baselines in black and grey, budgets in colours, each with a shape of its own."""
    found = []
    for arm in baselines(report):
        colour, line = (GREY, ":") if arm.k == 0 else (BLACK, "--")
        found.append(Look(arm, plain(arm_name(arm, report)), colour, "x", line))
    for i, arm in enumerate(budgets(report)):
        label = plain(arm_name(arm, report))
        found.append(Look(arm, label, _BUDGET_COLOURS[i], MARKERS[i], "-"))
    return sorted(found, key=lambda look: (look.arm.k, look.arm.mechanism))


def left_out(report: Report) -> str:
    """What a title adds if not all budgets are drawn."""
    judged = sum(not arm.is_baseline for arm in report.arms)
    drawn = len(budgets(report))
    return f" ({drawn} of {judged} budgets)" if judged > drawn else ""


def plain(text: str, most: int = _LONGEST) -> str:
    """Anybody's name as a label: short, and never a formula."""
    return cut(name(text), most).replace("$", r"\$")


def panels(count: int, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """Side by side, at most three in a row; places that are not needed stay empty."""
    columns = min(count, COLUMNS)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(4.2, PAGE * columns / COLUMNS), height * rows + 0.5))
    places = figure.subplots(rows, columns, squeeze=False)
    flat = [axes for row in places for axes in row]
    for axes in flat[count:]:
        axes.remove()
    return figure, flat[:count]


def finite(values: Sequence[float]) -> list[float]:
    """What can be drawn."""
    return [value for value in values if math.isfinite(value)]


def count_ticks(axes: Axes, most: int) -> None:
    """Labels a logarithmic axis of counts with counts."""
    ticks = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    axes.set_xticks([tick for tick in ticks if 2 <= tick <= most])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")


def nat_ticks(axes: Axes) -> None:
    """Labels a logarithmic axis of nats with numbers, with more of them on a short one."""
    low, high = axes.get_ylim()
    digits = (1, 2, 5) if high < 300 * low else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=digits))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def legend(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, below them, with as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    # Inches of a letter, and of a mark with the space around it.
    widest = 0.065 * max(map(len, labels), default=1) + 0.55
    columns = int(figure.get_figwidth() // widest)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=max(1, min(columns, len(labels)))
    )
