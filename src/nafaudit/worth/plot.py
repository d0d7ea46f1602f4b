"""Draws how much reproduction a budget allows, from nothing up to where it says nothing."""

from __future__ import annotations

import numpy as np

from nafaudit.report.figures.style import BLUE, GREY, VERMILION, as_bytes, canvas, style
from nafaudit.stats.certificate import reproduction_cap
from nafaudit.worth.certify import Certificate

_POINTS = 80
_QUANTILES = (0.1, 0.5, 0.9)


def cap_plot(certificate: Certificate) -> bytes:
    """The content of cap.svg: cap against k, for the median passage and four fifths of them."""
    length = certificate.settings.decoding.max_new_tokens
    surprisals = np.array([row.surprisal for row in certificate.rows])
    finite = surprisals[np.isfinite(surprisals)]
    end = 1.25 * (finite.max() if finite.size else length) / length
    grid = np.linspace(0.0, max(end, 1e-3), _POINTS)
    caps = np.array([[reproduction_cap(s, k * length) for s in surprisals] for k in grid])
    low, middle, high = np.quantile(caps, _QUANTILES, axis=1)
    vacuous = np.array([np.mean(surprisals <= k * length) for k in grid])
    with style():
        figure, axes = canvas()
        axes.fill_between(grid, low, high, color=BLUE, alpha=0.25, linewidth=0, label="80 % of passages")
        axes.plot(grid, middle, color=BLUE, marker="", label="median passage")
        axes.plot(grid, vacuous, color=VERMILION, marker="", linestyle="--", label="share vacuous")
        for k in certificate.settings.k:
            if k <= end:
                axes.axvline(k, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlabel(f"k (nats per token; K = k × {length})")
        axes.set_ylabel("largest chance of reproduction")
        axes.set_ylim(-0.02, 1.02)
        axes.set_title("What a kept budget still allows")
        axes.legend(loc="lower right")
        return as_bytes(figure, "svg")
