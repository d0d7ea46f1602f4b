"""The two figures of the paper that need held-out prompts, for runs and logs that have them."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from nafaudit.core.trajectory import Arm
from nafaudit.measures.audit import AuditResult
from nafaudit.report.checklist.ratios import Ratio, ratios
from nafaudit.views.figures import RunFigure
from nafaudit.views.figures.style import (
    BLUE,
    GREY,
    PAGE,
    VERMILION,
    canvas,
    finite,
    left_out,
    legend,
    looks,
    plain,
)

_NAMES = ("heldout", "held-out", "held_out")
_FLAG = 1.0
_MOST_ROWS = 16


def heldout(report: AuditResult) -> Figure:
    """Ratio rho = U_EBB / B of every held-out prompt against its N."""
    figure, axes = canvas()
    rows = _valid(report)
    has = {(row.mechanism, row.k) for row in rows}
    shown = [look for look in looks(report) if (look.arm.mechanism, look.arm.k) in has]
    shifts = np.linspace(-0.15, 0.15, len(shown)) if len(shown) > 1 else [0.0]
    for shift, look in zip(shifts, shown, strict=True):
        mine = [r for r in rows if (r.mechanism, r.k) == (look.arm.mechanism, look.arm.k)]
        axes.plot([row.n + float(shift) for row in mine], [row.rho for row in mine], linestyle="",
                  color=look.colour, marker=look.marker, label=look.label)  # fmt: skip
    axes.axhline(_FLAG, color=GREY, linestyle="--", linewidth=1, marker="")
    axes.set(xlabel="executions N of the prompt", ylabel="rho = U_EBB / B")
    axes.set_ylim(0, 1.08 * max(_FLAG, *(row.rho for row in rows)))
    missing = len(_heldout(report)) - len(rows)
    lost = f"; {missing} without a valid ratio" if missing else ""
    axes.set_title(f"Held-out ratio against N{lost}{left_out(report)}")
    legend(figure, axes)
    return figure


def flagged(report: AuditResult) -> Figure:
    """Spends of held-out prompts with rho above 1, and of the others, prompt by prompt."""
    rows = sorted(_valid(report), key=lambda row: -row.rho)[:_MOST_ROWS]
    figure, axes = canvas(PAGE, 0.22 * len(rows) + 1.2)
    for place, row in enumerate(rows):
        over = row.rho > _FLAG
        colour, marker = (VERMILION, "s") if over else (BLUE, "o")
        spends = finite(
            [
                one.spend
                for one in report.rows.of_arm(Arm(row.mechanism, row.k))
                if one.key.prompt == row.prompt
            ]
        )
        axes.plot(spends, [place] * len(spends), linestyle="", color=colour, marker=marker,
                  markersize=4, markerfacecolor="none")  # fmt: skip
        axes.plot([row.budget], [place], color=GREY, marker="|", markersize=9)
    names = [f"{plain(row.prompt, 30)}, k = {row.k:g}, rho = {row.rho:.2f}" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set(xlabel="spend of each execution, nats (grey bar: the budget B)", xlim=(0, None))
    axes.set_title("Flagged (squares, rho > 1) and other held-out prompts")
    return figure


def lacks_heldout(report: AuditResult) -> str:
    """Why held-out figures cannot be drawn."""
    if not _heldout(report):
        return "no held-out prompts; a search, or an imported Stage 2 log, has them"
    return "" if _valid(report) else "no held-out prompt has a valid ratio"


HELDOUT_FIGURES = (
    RunFigure("heldout", "held-out ratio rho against N", heldout, lacks_heldout),
    RunFigure(
        "flagged-spend", "spends of flagged and other held-out prompts", flagged, lacks_heldout
    ),
)


def _heldout(report: AuditResult) -> list[Ratio]:
    return [
        row
        for row in ratios(report)
        if row.prompt.lower().startswith(_NAMES)
        or report.context.label(row.prompt).lower().startswith(_NAMES)
    ]


def _valid(report: AuditResult) -> list[Ratio]:
    return [row for row in _heldout(report) if finite([row.rho])]
