"""Draws recall against the budget, between both baselines, and where the certificate ends."""

from __future__ import annotations

from nafaudit.core.ledger import RISKY_ONLY, SAFE_ONLY, is_baseline
from nafaudit.views.figures.style import (
    GREY,
    MARKERS,
    PAGE,
    PALETTE,
    as_bytes,
    canvas,
    style,
)
from nafaudit.worth.attack_result import Answered


def recall_plot(answered: Answered) -> bytes:
    """The content of recall.svg: a line per way to attack, dashed without the debt."""
    methods = [log.method for log in answered.attacked.logs]
    shapes = list(dict.fromkeys((one.mode, one.length) for one in methods))
    with style():
        figure, axes = canvas(PAGE, 3.4)
        for method in methods:
            number = shapes.index((method.mode, method.length))
            budgets = [row.k for row in answered.rows if row.method == method]
            inner = [k for k in budgets if not is_baseline(k)]
            safe = answered.row(method, SAFE_ONLY)
            recalls = [] if safe is None else [safe.recall]
            recalls += [row.recall for k in inner if (row := answered.row(method, k)) is not None]
            axes.plot(
                [0.0, *inner][-len(recalls) :],
                recalls,
                color=PALETTE[number],
                marker=MARKERS[number],
                linestyle="-" if method.debt else "--",
                label=method.words,
            )
            risky = answered.row(method, RISKY_ONLY)
            if risky is not None and method == methods[number]:
                axes.axhline(risky.recall, color=PALETTE[number], linewidth=0.8, linestyle=":")
        critical = answered.critical_k
        axes.axvline(critical, color=GREY, linewidth=1.0)
        axes.annotate(
            "certificate\nvacuous\nfrom here on",
            (critical, 0.65),
            xytext=(-4, 0),
            textcoords="offset points",
            color=GREY,
            fontsize=7,
            ha="right",
        )
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("k of every query (nats per token)")
        axes.set_ylabel("near-verbatim recall")
        axes.set_title("Reconstructed with every query in budget (dotted: risky model alone)")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return as_bytes(figure, "svg")
