"""How executions spread: use of the budget, regimes, tails of L, overlap against spend."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from nafaudit.core.ledger import RISKY_ONLY
from nafaudit.core.text import percent
from nafaudit.core.trajectory import Arm
from nafaudit.report.charts import BINS, histogram, points
from nafaudit.report.data import Report
from nafaudit.report.figures.arms import COLUMNS, budgets, finite, left_out, legend, looks, panels
from nafaudit.report.figures.style import (
    BLACK,
    BLUE,
    GREY,
    HATCHES,
    ORANGE,
    PAPER,
    VERMILION,
    canvas,
)


def utilisation(report: Report) -> Figure:
    """How much of its own budget each execution spent; outlined, the risky model alone."""
    shown = [look for look in looks(report) if not look.arm.is_baseline]
    figure, places = panels(len(shown))
    edges = np.arange(BINS + 2) / BINS
    for axes, look in zip(places, shown, strict=True):
        outlines = report.of(look.arm)
        risky = {
            (one.key.prompt, one.key.trajectory): one.spend
            for one in report.by_arm.get(Arm(look.arm.mechanism, RISKY_ONLY), [])
        }
        alone = [
            risky[unit] / one.budget
            for one in outlines
            if (unit := (one.key.prompt, one.key.trajectory)) in risky and 0 < one.budget < math.inf
        ]
        counts = histogram([one.utilisation for one in outlines])
        axes.bar(edges[:-1], counts, 1 / BINS, align="edge", color=look.colour, label="decoder")
        if alone:
            axes.stairs(
                histogram(alone), edges, color=BLACK, linewidth=1.2, label="risky model alone"
            )
        axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1, marker="")
        axes.set(title=look.label, xlim=(0, 1 + 1 / BINS), xticks=[0, 0.5, 1])
        axes.set_xlabel("spend / own budget")
    for first in places[::COLUMNS]:
        first.set_ylabel("executions")
    title = "Utilisation; right of the dashed line: all that is over 1"
    figure.suptitle(title + left_out(report), fontsize=10)
    legend(figure, places[0])
    return figure


def regime(report: Report) -> Figure:
    """Shares of steps that served the safe law, a mixture, the risky law, by budget."""
    shown = [look for look in looks(report) if look.arm.regime.steps]
    figure, axes = canvas()
    places = np.arange(len(shown))
    bottom = np.zeros(len(shown))
    kinds = (("forced", BLUE), ("active", ORANGE), ("free", VERMILION))
    for (kind, colour), hatch in zip(kinds, HATCHES, strict=False):
        shares = np.array([look.arm.regime.share(getattr(look.arm.regime, kind)) for look in shown])
        axes.bar(places, shares, 0.7, bottom, color=colour, hatch=hatch, edgecolor="white",
                 label=kind)  # fmt: skip
        for place, share, low in zip(places, shares, bottom, strict=True):
            if share >= 0.06:
                axes.text(float(place), low + share / 2, percent(float(share)), ha="center",
                          va="center", fontsize=7, bbox=PAPER)  # fmt: skip
        bottom += shares
    axes.set_xticks(places, [look.label for look in shown], rotation=20 if len(shown) > 5 else 0)
    axes.set(ylabel="share of steps", ylim=(0, 1), title=f"Who wrote the tokens{left_out(report)}")
    axes.grid(visible=False, axis="x")
    legend(figure, axes)
    return figure


def tails(report: Report) -> Figure:
    """Share of outputs whose log-likelihood ratio L exceeds x; dotted, K of each budget."""
    figure, axes = canvas()
    smallest = 1.0
    for look in looks(report):
        ratios = np.sort(finite([one.ratio for one in report.of(look.arm)]))
        if not ratios.size:
            continue
        above = 1.0 - np.arange(ratios.size) / ratios.size
        smallest = min(smallest, 1.0 / ratios.size)
        axes.step(ratios, above, where="pre", color=look.colour, linestyle=look.line,
                  marker="", label=look.label)  # fmt: skip
        promised = report.facts.promised(look.arm.k)
        if not look.arm.is_baseline and math.isfinite(promised):
            axes.axvline(promised, color=look.colour, linestyle=":", linewidth=1.2, marker="")
    axes.set(yscale="log", ylim=(smallest / 1.5, 1.3))
    axes.set(xlabel="x, nats", ylabel="share of outputs with L ≥ x")
    axes.set_title(f"Tails of L; dotted: K, which bounds its mean only{left_out(report)}")
    legend(figure, axes)
    return figure


def overlap(report: Report) -> Figure:
    """Near-verbatim recall of the reference against spend, one mark per execution."""
    figure, axes = canvas()
    for look in looks(report):
        marks = [
            one
            for one in points(report.of(look.arm))
            if math.isfinite(one.spend) and math.isfinite(one.recall)
        ]
        axes.plot([one.spend for one in marks], [one.recall for one in marks], linestyle="",
                  color=look.colour, marker=look.marker, markersize=4, label=look.label,
                  markerfacecolor="none")  # fmt: skip
    axes.set(xlabel="spend Z, nats", ylabel="near-verbatim recall", ylim=(-0.03, 1.03))
    axes.set_title(f"Overlap against spend{left_out(report)}")
    legend(figure, axes)
    return figure


def lacks_budget(report: Report) -> str:
    """Why utilisation cannot be drawn."""
    if not budgets(report):
        return "only baselines are recorded"
    known = any(finite([one.utilisation for one in report.of(arm)]) for arm in budgets(report))
    return "" if known else "no execution has both a spend and a budget"


def lacks_regime(report: Report) -> str:
    """Why regimes cannot be drawn."""
    shown = any(look.arm.regime.steps for look in looks(report))
    return "" if shown else "no step records its weight theta"


def lacks_ratios(report: Report) -> str:
    """Why tails cannot be drawn."""
    known = any(math.isfinite(one.ratio) for one in report.outlines)
    return "" if known else "no step records its log-probabilities"


def lacks_overlap(report: Report) -> str:
    """Why overlap cannot be drawn."""
    known = any(math.isfinite(one.recall) for one in report.outlines)
    return "" if known else "no output has both a text and a reference to compare it with"
