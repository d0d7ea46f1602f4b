"""Figures of a run: use of the budget, regimes, tails, overlap, bounds, and how a search went."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.ledger import RISKY_ONLY
from nafaudit.core.text import percent
from nafaudit.core.trajectory import Arm, Trajectory
from nafaudit.measures.audit import AuditResult, mean_level
from nafaudit.measures.measure import sample_key
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.stats import Sample, bound, mean
from nafaudit.views.figures.style import (
    BLACK,
    BLUE,
    COLUMNS,
    GREEN,
    GREY,
    HATCHES,
    MARKERS,
    ORANGE,
    PAGE,
    PALETTE,
    PAPER,
    VERMILION,
    NotebookFigure,
    budgets,
    canvas,
    count_ticks,
    finite,
    left_out,
    legend,
    looks,
    panels,
    plain,
)
from nafaudit.views.payload import BINS, POINTS, budget_shares, histogram, risky_spends, sample
from nafaudit.views.search import progress_of, ranking_of

_BOUNDS = (
    ("betting-prompts", "betting (holds)", BLUE, "o"),
    ("cluster-t", "Student (approximate)", GREEN, "^"),
    ("ebb-reff", "U_EBB, R_eff (proxy)", VERMILION, "s"),
)
_SIZES = 9
_DASHES = ("-", "--", ":", "-.")
MOST_LINES = 30
"""Lines of a search at most; a title says if there are more."""


def utilisation(result: AuditResult) -> Figure:
    """Draws how much of its budget each trajectory spent; outlined, the risky model alone."""
    shown = [look for look in looks(result) if not look.arm.baseline]
    figure, places = panels(len(shown))
    edges = np.arange(BINS + 2) / BINS
    for axes, look in zip(places, shown, strict=True):
        rows = result.of_arm(look.arm)
        alone = budget_shares(rows, risky_spends(result, look.arm))
        counts = histogram([one.utilisation for one in rows])
        axes.bar(edges[:-1], counts, 1 / BINS, align="edge", color=look.colour, label="decoder")
        if alone:
            axes.stairs(
                histogram(alone), edges, color=BLACK, linewidth=1.2, label="risky model alone"
            )
        axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1, marker="")
        axes.set(title=look.label, xlim=(0, 1 + 1 / BINS), xticks=[0, 0.5, 1])
        axes.set_xlabel("spend / own budget")
    for first in places[::COLUMNS]:
        first.set_ylabel("trajectories")
    title = "Utilisation; right of the dashed line: all that is over 1"
    figure.suptitle(title + left_out(result), fontsize=10)
    legend(figure, places[0])
    return figure


def regime(result: AuditResult) -> Figure:
    """Shares of steps that served the safe law, a mixture, the risky law, by budget."""
    shown = [look for look in looks(result) if look.arm.regime.steps]
    figure, axes = canvas()
    places = np.arange(len(shown))
    bottom = np.zeros(len(shown))
    kinds = (("forced", BLUE), ("active", ORANGE), ("free", VERMILION))
    for (kind, colour), hatch in zip(kinds, HATCHES, strict=False):
        shares = np.array([getattr(look.arm.regime, kind) for look in shown])
        axes.bar(places, shares, 0.7, bottom, color=colour, hatch=hatch, edgecolor="white",
                 label=kind)  # fmt: skip
        for place, share, low in zip(places, shares, bottom, strict=True):
            if share >= 0.06:
                axes.text(float(place), low + share / 2, percent(float(share)), ha="center",
                          va="center", fontsize=7, bbox=PAPER)  # fmt: skip
        bottom += shares
    axes.set_xticks(places, [look.label for look in shown], rotation=20 if len(shown) > 5 else 0)
    axes.set(
        ylabel="share of steps",
        ylim=(0, 1),
        title=f"Which model the tokens came from{left_out(result)}",
    )
    axes.grid(visible=False, axis="x")
    legend(figure, axes)
    return figure


def tails(result: AuditResult) -> Figure:
    """Draws the share of outputs whose log-likelihood ratio L exceeds x; dotted, K."""
    figure, axes = canvas()
    smallest = 1.0
    for look in looks(result):
        ratios = np.sort(finite([one.log_ratio for one in result.of_arm(look.arm)]))
        if not ratios.size:
            continue
        above = 1.0 - np.arange(ratios.size) / ratios.size
        smallest = min(smallest, 1.0 / ratios.size)
        axes.step(ratios, above, where="pre", color=look.colour, linestyle=look.line,
                  marker="", label=look.label)  # fmt: skip
        promised = result.context.promised(look.arm.k)
        if not look.arm.baseline and math.isfinite(promised):
            axes.axvline(promised, color=look.colour, linestyle=":", linewidth=1.2, marker="")
    axes.set(yscale="log", ylim=(smallest / 1.5, 1.3))
    axes.set(xlabel="x, nats", ylabel="share of outputs with L ≥ x")
    axes.set_title(f"Tails of L; dotted: K, which bounds its mean only{left_out(result)}")
    legend(figure, axes)
    return figure


def overlap(result: AuditResult) -> Figure:
    """Draws near-verbatim recall of the reference against spend, one mark per trajectory."""
    figure, axes = canvas()
    for look in looks(result):
        marks = [
            one
            for one in sample(result.of_arm(look.arm), POINTS)
            if math.isfinite(one.spend) and math.isfinite(one.recall)
        ]
        axes.plot([one.spend for one in marks], [one.recall for one in marks], linestyle="",
                  color=look.colour, marker=look.marker, markersize=4, label=look.label,
                  markerfacecolor="none")  # fmt: skip
    axes.set(xlabel="spend Z, nats", ylabel="near-verbatim recall", ylim=(-0.03, 1.03))
    axes.set_title(f"Overlap against spend{left_out(result)}")
    legend(figure, axes)
    return figure


def charges(one: Trajectory) -> Figure:
    """Draws what every token of one trajectory was allowed and charged.

    Raises:
        InputError: Its log has no steps.
    """
    if not len(one):
        raise InputError(f"{one.key.name()} has no steps: its log keeps totals only.")
    figure, axes = canvas(PAGE, 2.8)
    steps = np.arange(len(one))
    axes.bar(steps, one.steps.charge, 1.0, color=VERMILION, label="charge")
    allowance = np.where(np.isfinite(one.steps.allowance), one.steps.allowance, np.nan)
    if not np.isnan(allowance).all():
        axes.step(steps, allowance, where="mid", color=BLUE, marker="", label="allowance")
    axes.set(xlabel="token", ylabel="nats", xlim=(-0.5, len(one) - 0.5))
    axes.set_title(f"Charge per token: {plain(one.key.prompt)}, k = {one.key.k:g}, "
                   f"trajectory {one.key.trajectory}")  # fmt: skip
    legend(figure, axes)
    return figure


def lacks_budget(result: AuditResult) -> str:
    """Says why utilisation cannot be drawn; empty if it can."""
    if not budgets(result):
        return "only baselines are recorded"
    known = any(finite([one.utilisation for one in result.of_arm(arm)]) for arm in budgets(result))
    return "" if known else "no trajectory has both a spend and a budget"


def lacks_regime(result: AuditResult) -> str:
    """Says why regimes cannot be drawn; empty if they can."""
    shown = any(look.arm.regime.steps for look in looks(result))
    return "" if shown else "no step records its weight theta"


def lacks_ratios(result: AuditResult) -> str:
    """Says why tails cannot be drawn; empty if they can."""
    known = any(math.isfinite(one.log_ratio) for one in result.rows)
    return "" if known else "no step records its log-probabilities"


def lacks_overlap(result: AuditResult) -> str:
    """Says why overlap cannot be drawn; empty if it can."""
    known = any(math.isfinite(one.recall) for one in result.rows)
    return "" if known else "no output has both a text and a reference to compare it with"


def bound_against_n(result: AuditResult) -> Figure:
    """Draws upper limits of a prompt's mean spend, from the first few prompts to all."""
    shown = [look for look in looks(result) if not look.arm.baseline]
    figure, places = panels(len(shown))
    level = mean_level(result)
    for axes, look in zip(places, shown, strict=True):
        means = prompt_means(result, look.arm)
        high = result.context.promised(look.arm.k)
        # From 2 to all, evenly on a logarithmic axis.
        sizes = sorted({round(float(n)) for n in np.geomspace(2, len(means), _SIZES)})
        ends = []
        for name, label, colour, marker in _BOUNDS:
            limits = [_limit(name, means[:n], high, level) for n in sizes]
            ends += finite(limits[-1:])
            axes.plot(sizes, limits, color=colour, marker=marker, markersize=3.5, label=label)
        running = [float(means[:n].mean()) for n in sizes]
        axes.plot(sizes, running, color=BLACK, marker="", linewidth=1, label="mean")
        risky = prompt_means(result, look.arm, RISKY_ONLY)
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
    figure.suptitle(title + left_out(result), fontsize=10)
    legend(figure, places[0])
    return figure


def lacks_prompts(result: AuditResult) -> str:
    """Says why bounds cannot be drawn; empty if they can."""
    if not budgets(result):
        return "only baselines are recorded"
    counts = [prompt_means(result, arm).size for arm in budgets(result)]
    return (
        ""
        if min(counts) >= 2
        else "a budget has fewer than 2 prompts, or a spend that is not known"
    )


def prompt_means(
    result: AuditResult, arm: ArmVerdict, k: float | None = None
) -> NDArray[np.float64]:
    """Returns mean spends of prompts, in one random order for every budget.

    One spend that is not known leaves none: the mean of the others is another mean.
    """
    budget = arm.k if k is None else k
    high = result.context.promised(budget)
    top = high if math.isfinite(high) and high > 0 else math.inf
    rows = result.rows.of_arm(Arm(arm.mechanism, budget))
    spends = rows.column("spend")
    if not all(map(math.isfinite, spends)):
        return np.empty(0)
    groups: dict[str, list[float]] = {}
    for one, settled in zip(rows, result.context.clamp_spends(spends, top), strict=True):
        groups.setdefault(one.key.prompt, []).append(settled)
    order = sorted(groups, key=lambda prompt: sample_key(prompt, 0))
    return np.array([mean(groups[prompt]) for prompt in order])


def _limit(name: str, means: NDArray[np.float64], high: float, level: float) -> float:
    """Returns the bound of some prompts; NaN where it does not apply."""
    proxy = name == "ebb-reff"
    # The proxy has no range of its own, and takes any; the others refuse what they need.
    top = high if high > 0 else max(1.0, float(means.max())) if proxy else math.inf
    prompts = None if proxy else [str(i) for i in range(means.size)]
    try:
        return bound(name, Sample.of(means, top, prompts), level).value
    except InputError:
        return math.nan


def lacks_search(result: AuditResult) -> str:
    """Says why the progress of a search cannot be drawn; empty if it can."""
    return "" if progress_of(result.search or {}) else "no generation of a search is recorded"


def progress(result: AuditResult) -> Figure:
    """Draws the best against trajectories spent; beside it, its use on fresh draws."""
    best = ranking_of(result.search or {})
    scale = 100 if best.share else 1
    series = progress_of(result.search or {})
    shown = series[:MOST_LINES]
    strategies = list(dict.fromkeys(one.strategy for one in shown))
    seeds = list(dict.fromkeys(one.seed for one in shown))
    figure = NotebookFigure(figsize=(PAGE, 3.4))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for place, one in enumerate(shown):
        number = strategies.index(one.strategy) % len(PALETTE)
        colour, marker = PALETTE[number], MARKERS[number]
        label = f"{plain(one.strategy)}, seed {one.seed}"
        line = _DASHES[seeds.index(one.seed) % len(_DASHES)]
        left.plot(
            [point.spent for point in one.points],
            [scale * point.best for point in one.points],
            color=colour,
            marker=marker,
            linestyle=line,
            label=label,
        )
        if math.isnan(one.confirmed):
            continue
        ends = [end if math.isfinite(end) else one.confirmed for end in (one.low, one.high)]
        reach = [[100 * (one.confirmed - ends[0])], [100 * (ends[1] - one.confirmed)]]
        bar = right.errorbar(
            [place], [100 * one.confirmed], yerr=reach, color=colour, marker=marker, capsize=2
        )
        bar.lines[2][0].set_linestyle(line)
    left.set_xlabel("trajectories spent, a mark per generation")
    left.set_ylabel("utilisation of the best prompt (%)" if best.share else best.axis)
    left.set_title(
        "so far, on the draws that chose it"
        + (f" ({MOST_LINES} of {len(series)} lines)" if len(series) > MOST_LINES else "")
    )
    left.set_xlim(left=0)
    right.set_title("on fresh draws, with limits")
    if not best.share:
        right.set_ylabel("utilisation of the first final prompt (%)")
    right.set_ylim(bottom=0)
    right.set_xticks([])
    right.margins(x=0.15)
    legend(figure, left)
    return figure
