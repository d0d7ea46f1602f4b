"""How a search went, and what fresh draws say of its end."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from nafaudit.report.data import Report
from nafaudit.report.figures.arms import legend, plain
from nafaudit.report.figures.style import MARKERS, PAGE, PALETTE
from nafaudit.report.searched import measure_of, progress_of

_LINES = ("-", "--", ":", "-.")
MOST = 30
"""Lines at most; a title says if there are more."""


def lacks_search(report: Report) -> str:
    """What a run lacks for this figure."""
    return "" if progress_of(report.search or {}) else "no generation of a search is recorded"


def progress(report: Report) -> Figure:
    """The best against trajectories spent; beside it, its use on fresh draws with limits."""
    best = measure_of(report.search or {})
    scale = 100 if best.share else 1
    series = progress_of(report.search or {})
    shown = series[:MOST]
    strategies = list(dict.fromkeys(one.strategy for one in shown))
    seeds = list(dict.fromkeys(one.seed for one in shown))
    figure = Figure(figsize=(PAGE, 3.4))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for place, one in enumerate(shown):
        number = strategies.index(one.strategy) % len(PALETTE)
        colour, marker = PALETTE[number], MARKERS[number]
        label = f"{plain(one.strategy)}, seed {one.seed}"
        line = _LINES[seeds.index(one.seed) % len(_LINES)]
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
    left.set_title("so far, on the draws that chose it" + _left_out(len(series)))
    left.set_xlim(left=0)
    right.set_title("on fresh draws, with limits")
    if not best.share:
        right.set_ylabel("utilisation of the first final prompt (%)")
    right.set_ylim(bottom=0)
    right.set_xticks([])
    right.margins(x=0.15)
    legend(figure, left)
    return figure


def _left_out(total: int) -> str:
    return f" ({MOST} of {total} lines)" if total > MOST else ""
