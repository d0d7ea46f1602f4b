"""Draws how much reproduction a budget allows, from nothing up to where it says nothing."""

from __future__ import annotations

import numpy as np

from nafaudit.stats.certificate import cap, vacuous
from nafaudit.views.figures.style import BLUE, GREY, VERMILION, as_bytes, canvas, style
from nafaudit.worth.certify import Certification

_POINTS = 80
_QUANTILES = (0.1, 0.5, 0.9)


def cap_plot(certification: Certification) -> bytes:
    """The content of cap.svg: cap against k, for the median passage and four fifths of them."""
    length = certification.settings.decoding.max_new_tokens
    surprisals = np.array([row.surprisal for row in certification.rows])
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
        for k in certification.settings.k:
            if k <= end:
                axes.axvline(k, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlabel(f"k (nats per token; K = {length} k)")
        axes.set_ylabel("largest chance of reproduction")
        axes.set_ylim(-0.02, 1.02)
        axes.set_title("What a kept budget still allows")
        axes.legend(loc="lower right")
        return as_bytes(figure, "svg")
