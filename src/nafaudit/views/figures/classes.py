"""Two figures of the paper from a run's own records: U_EBB by class, and its fixed term."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from nafaudit.core.ledger import RISKY_ONLY
from nafaudit.core.trajectory import Arm
from nafaudit.measures.audit import AuditResult
from nafaudit.stats import Bound
from nafaudit.stats.moments import ebb_range_term
from nafaudit.views.figures.style import (
    BLACK,
    BLUE,
    COLUMNS,
    GREEN,
    GREY,
    VERMILION,
    budgets,
    canvas,
    count_ticks,
    finite,
    left_out,
    legend,
    looks,
    nat_ticks,
    panels,
    plain,
)

MOST_CLASSES = 8


def effective_range(result: AuditResult) -> Figure:
    """Draws U_EBB of each class under R and R_eff, with the bound that holds and the means."""
    shown = [look for look in looks(result) if not look.arm.baseline]
    figure, places = panels(len(shown), 2.9)
    for axes, look in zip(places, shown, strict=True):
        # The classes that spend most, in the order of the tables.
        every = result.classes.of(Arm(look.arm.mechanism, look.arm.k))
        ranked = sorted(
            every, key=lambda row: (-row.mean if math.isfinite(row.mean) else 0.0, row.label)
        )
        most = {row.label for row in ranked[:MOST_CLASSES]}
        rows = [row for row in every if row.label in most]
        risky = {
            row.label: row.mean for row in result.classes.of(Arm(look.arm.mechanism, RISKY_ONLY))
        }
        series = (
            ("U_EBB, R = T ln|V| (proxy)", VERMILION, "s", [_value(row.u_ebb) for row in rows]),
            ("U_EBB, R_eff (proxy)", GREEN, "^", [_value(row.u_ebb_eff) for row in rows]),
            ("bound on prompts", BLUE, "D", [_value(row.upper) for row in rows]),
            ("mean spend", BLACK, "o", [row.mean for row in rows]),
            ("risky model alone, mean", BLACK, "x", [risky.get(r.label, math.nan) for r in rows]),
        )
        at = np.arange(len(rows))
        known = [(*one, finite(one[3])) for one in series]
        for label, colour, marker, values, some in known:
            if some:
                axes.plot(at, values, linestyle="", color=colour, marker=marker, label=label)
        budget = rows[0].budget if rows else math.nan
        if math.isfinite(budget):
            axes.axhline(budget, color=GREY, linestyle="--", linewidth=1, marker="", label="K = kT")
        drawn = [value for *_, some in known for value in some]
        drawn += finite([budget])
        low, high = min(drawn), max(drawn)
        # From a few nats to thousands: logarithmic, but linear below 1 where there is a 0.
        if low > 0:
            axes.set(yscale="log", ylim=(low / 2, high * 2))
            nat_ticks(axes)
        else:
            axes.set_yscale("symlog", linthresh=1.0)
            axes.set_ylim(min(low, -0.2), max(high, 1.0) * 2)
        axes.set(title=look.label, xlim=(-0.5, len(rows) - 0.5))
        axes.set_xticks(at, [plain(row.label, 16) for row in rows], rotation=35, ha="right")
    for first in places[::COLUMNS]:
        first.set_ylabel("nats, logarithmic")
    figure.suptitle(f"U_EBB by class under R and R_eff{left_out(result)}", fontsize=10)
    legend(figure, places[0])
    return figure


def deterministic_term(result: AuditResult) -> Figure:
    """Draws 3 R_eff ln(2/delta) / N against N for the widest class; marks show each class's N."""
    figure, axes = canvas()
    delta = result.classes.delta
    most = max([40, *(row.trajectories for row in result.classes.rows)])
    sizes = np.unique(np.geomspace(2, most, 80).round().astype(int))
    for look in looks(result):
        rows = [
            r
            for r in result.classes.of(Arm(look.arm.mechanism, look.arm.k))
            if math.isfinite(r.r_eff)
        ]
        if look.arm.baseline or not rows:
            continue
        widest = max(rows, key=lambda row: row.r_eff)
        label = f"{look.label}, R_eff = {widest.r_eff:.3g}"
        term = [ebb_range_term(widest.r_eff, int(n), delta) for n in sizes]
        axes.plot(sizes, term, color=look.colour, marker="", label=label)
        axes.plot(
            [row.trajectories for row in rows],
            [ebb_range_term(row.r_eff, row.trajectories, delta) for row in rows],
            linestyle="", color=look.colour, marker=look.marker, markerfacecolor="none",
        )  # fmt: skip
        if math.isfinite(widest.budget):
            axes.axhline(widest.budget, color=look.colour, linestyle="--", linewidth=1, marker="")
    axes.set(xscale="log", yscale="log", xlabel="trajectories N")
    count_ticks(axes, most)
    nat_ticks(axes)
    axes.set_ylabel("3 R_eff ln(2/δ) / N, nats")
    axes.set_title(f"Deterministic term of U_EBB at δ = {delta:.2g}; dashed: K{left_out(result)}")
    legend(figure, axes)
    return figure


def lacks_classes(result: AuditResult) -> str:
    """Says why U_EBB cannot be drawn; empty if it can."""
    if not budgets(result):
        return "only baselines are recorded"
    known = any(row.u_ebb_eff is not None for row in result.classes.rows)
    return "" if known else "not every spend is recorded as a number"


def _value(found: Bound | None) -> float:
    return math.nan if found is None else found.value
