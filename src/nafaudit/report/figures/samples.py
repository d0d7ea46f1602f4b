"""What more prompts buy: bounds of the mean spend against how many prompts they rest on."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nafaudit.checks.check import mean
from nafaudit.checks.verdict import ArmResult
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import RISKY_ONLY
from nafaudit.core.trajectory import Arm
from nafaudit.report.bounds import mean_level
from nafaudit.report.data import Report
from nafaudit.report.figures.arms import (
    COLUMNS,
    budgets,
    count_ticks,
    finite,
    left_out,
    legend,
    looks,
    panels,
)
from nafaudit.report.figures.style import BLACK, BLUE, GREEN, GREY, PAPER, VERMILION
from nafaudit.report.outline import lot_of
from nafaudit.stats import Sample, bound

_LINES = (
    ("betting-prompts", "betting (holds)", BLUE, "o"),
    ("cluster-t", "Student (approximate)", GREEN, "^"),
    ("ebb-reff", "U_EBB, R_eff (proxy)", VERMILION, "s"),
)
_SIZES = 9


def bound_against_n(report: Report) -> Figure:
    """Upper limits of the mean spend of a prompt, from the first few prompts to all of them."""
    shown = [look for look in looks(report) if not look.arm.is_baseline]
    figure, places = panels(len(shown))
    level = mean_level(report)
    for axes, look in zip(places, shown, strict=True):
        means = prompt_means(report, look.arm)
        high = report.facts.promised(look.arm.k)
        sizes = sizes_of(len(means))
        ends = []
        for name, label, colour, marker in _LINES:
            limits = [_limit(name, means[:n], high, level) for n in sizes]
            ends += finite(limits[-1:])
            axes.plot(sizes, limits, color=colour, marker=marker, markersize=3.5, label=label)
        running = [float(means[:n].mean()) for n in sizes]
        axes.plot(sizes, running, color=BLACK, marker="", linewidth=1, label="mean")
        risky = prompt_means(report, look.arm, RISKY_ONLY)
        if risky.size:
            axes.axhline(float(risky.mean()), color=BLACK, linestyle="--", linewidth=1, marker="",
                         label="risky model alone")  # fmt: skip
        if math.isfinite(high):
            axes.axhline(high, color=GREY, linestyle=":", linewidth=1.4, marker="", label="K")
            # Where each line ends is shown; where a small sample starts may be anywhere.
            top = 1.25 * max(high, *running, *(min(end, 4 * high) for end in ends))
            axes.set_ylim(0, top)
            if risky.size and risky.mean() > top:
                note = f"risky alone: {risky.mean():.0f} \u2191"
                axes.text(0.98, 0.97, note, transform=axes.transAxes, ha="right", va="top",
                          fontsize=7, bbox=PAPER)  # fmt: skip
        axes.set(title=look.label, xscale="log", xlabel="prompts N")
        count_ticks(axes, sizes[-1])
    for first in places[::COLUMNS]:
        first.set_ylabel("mean spend, nats")
    title = f"Upper limit of the mean spend against N; each misses with chance {level:.2g}"
    figure.suptitle(title + left_out(report), fontsize=10)
    legend(figure, places[0])
    return figure


def lacks_prompts(report: Report) -> str:
    """Why bounds cannot be drawn."""
    if not budgets(report):
        return "only baselines are recorded"
    counts = [prompt_means(report, arm).size for arm in budgets(report)]
    return (
        ""
        if min(counts) >= 2
        else "a budget has fewer than 2 prompts, or a spend that is not known"
    )


def prompt_means(report: Report, arm: ArmResult, k: float | None = None) -> NDArray[np.float64]:
    """Mean spend of each prompt, in an order drawn by lot that is the same for every budget.

    One spend that is not known leaves none: the mean of the others is another mean.
    """
    budget = arm.k if k is None else k
    high = report.facts.promised(budget)
    top = high if math.isfinite(high) and high > 0 else math.inf
    groups: dict[str, list[float]] = {}
    for one in report.by_arm.get(Arm(arm.mechanism, budget), []):
        if not math.isfinite(one.spend):
            return np.empty(0)
        settled = report.facts.settled(one.spend, top)
        groups.setdefault(one.key.prompt, []).append(settled)
    order = sorted(groups, key=lambda prompt: lot_of(prompt, 0))
    return np.array([mean(groups[prompt]) for prompt in order])


def sizes_of(most: int) -> list[int]:
    """From 2 to all, evenly on a logarithmic axis."""
    return sorted({round(float(n)) for n in np.geomspace(2, most, _SIZES)})


def _limit(name: str, means: NDArray[np.float64], high: float, level: float) -> float:
    """The bound of some prompts; NaN where it does not apply."""
    proxy = name == "ebb-reff"
    # The proxy has no range of its own, and takes any; the others refuse what they need.
    top = high if high > 0 else max(1.0, float(means.max())) if proxy else math.inf
    prompts = None if proxy else [str(i) for i in range(means.size)]
    try:
        return bound(name, Sample.of(means, top, prompts), level).value
    except InputError:
        return math.nan
