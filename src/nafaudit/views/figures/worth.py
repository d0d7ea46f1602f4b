"""Figures of a certificate, an attack and a frontier, as the bytes of SVG files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nafaudit.core.ledger import RISKY_ONLY, SAFE_ONLY, is_baseline
from nafaudit.stats.certificate import cap, vacuous
from nafaudit.views.figures.style import (
    BLUE,
    GREY,
    MARKERS,
    PAGE,
    PALETTE,
    VERMILION,
    as_bytes,
    canvas,
    style,
)

if TYPE_CHECKING:
    from nafaudit.worth.attack_result import AttackResult
    from nafaudit.worth.certify import Certificate
    from nafaudit.worth.matched import FrontierResult

_POINTS = 80
_QUANTILES = (0.1, 0.5, 0.9)


def cap_plot(found: Certificate) -> bytes:
    """Returns cap.svg: the cap against k, for the median passage and four fifths of them."""
    length = found.max_new_tokens
    surprisals = np.array([row.surprisal for row in found.passages])
    finite = surprisals[np.isfinite(surprisals)]
    end = 1.25 * (finite.max() if finite.size else length) / length
    grid = np.linspace(0.0, max(end, 1e-3), _POINTS)
    budgets = grid[:, np.newaxis] * length
    low, middle, high = np.quantile(cap(surprisals, budgets), _QUANTILES, axis=1)
    reached = vacuous(surprisals, budgets).mean(axis=1)
    with style():
        figure, axes = canvas()
        axes.fill_between(
            grid, low, high, color=BLUE, alpha=0.25, linewidth=0, label="80 % of passages"
        )
        axes.plot(grid, middle, color=BLUE, marker="", label="median passage")
        axes.plot(grid, reached, color=VERMILION, marker="", linestyle="--", label="share vacuous")
        for k in (card.k for card in found.cards):
            if k <= end:
                axes.axvline(k, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlabel(f"k (nats per token; K = {length} k)")
        axes.set_ylabel("largest chance of reproduction")
        axes.set_ylim(-0.02, 1.02)
        axes.set_title("What a kept budget still allows")
        axes.legend(loc="lower right")
        return as_bytes(figure, "svg")


def recall_plot(found: AttackResult) -> bytes:
    """Returns recall.svg: a line per way to attack, dashed without the debt."""
    methods = found.methods
    shapes = list(dict.fromkeys((one.mode, one.length) for one in methods))
    with style():
        figure, axes = canvas(PAGE, 3.4)
        for method in methods:
            number = shapes.index((method.mode, method.length))
            budgets = [row.k for row in found.rows if row.method == method]
            inner = [k for k in budgets if not is_baseline(k)]
            safe = found.row(method, SAFE_ONLY)
            recalls = [] if safe is None else [safe.recall]
            recalls += [row.recall for k in inner if (row := found.row(method, k)) is not None]
            axes.plot(
                [0.0, *inner][-len(recalls) :],
                recalls,
                color=PALETTE[number],
                marker=MARKERS[number],
                linestyle="-" if method.debt else "--",
                label=method.words,
            )
            risky = found.row(method, RISKY_ONLY)
            if risky is not None and method == methods[number]:
                axes.axhline(risky.recall, color=PALETTE[number], linewidth=0.8, linestyle=":")
        critical = found.critical_k
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


def frontier_plot(found: FrontierResult) -> bytes:
    """Returns frontier.svg: leak against fidelity, a line per mechanism."""
    with style():
        figure, axes = canvas(PAGE, 3.8)
        for name in dict.fromkeys(one.mechanism for one in found.points):
            points = [one for one in found.points if one.mechanism == name]
            bought = [0.0, *(one.fidelity for one in points)]
            axes.plot(bought, [0.0, *(one.leak for one in points)], label=name)
        axes.axhline(found.protected.risky_leak, color=GREY, linestyle=":", linewidth=1.0)
        axes.annotate(
            "risky model alone",
            (0.5, found.protected.risky_leak),
            color=GREY,
            fontsize=7,
            va="bottom",
        )
        axes.set_xlabel("fidelity bought on ordinary text, of all there is")
        axes.set_ylabel(f"leak: nats gained per {found.window}\nprotected tokens")
        axes.set_title("What budgets buy, and what they give away (a mark per k, from 0)")
        axes.legend(loc="center left")
        return as_bytes(figure, "svg")
