"""Every figure of a run, drawn if the run has what it needs and named with the reason if not.

A figure is a line in one of the tables here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from nafaudit.core.errors import InputError
from nafaudit.measures.audit import AuditResult
from nafaudit.views.figures import classes, run
from nafaudit.views.figures.style import save, style


@dataclass(frozen=True)
class RunFigure:
    """A figure that any run may have.

    Attributes:
        name: Name of its files.
        caption: What it shows, in a few words.
        draw: Draws it.
        lacks: Why a run cannot have it; empty if it can.
    """

    name: str
    caption: str
    draw: Callable[[AuditResult], Figure]
    lacks: Callable[[AuditResult], str]


@dataclass(frozen=True)
class Drawn:
    """What became of a figure.

    Attributes:
        name: Name of its files.
        caption: What it shows.
        files: Their names, SVG and PDF; none if it was not drawn.
        lacks: Why it was not drawn; empty if it was.
    """

    name: str
    caption: str
    files: tuple[str, ...] = ()
    lacks: str = ""


PAPER_FIGURES = (
    RunFigure("effective-range", "U_EBB of each class under R and R_eff, and the bound that holds",
              classes.effective_range, classes.lacks_classes),
    RunFigure("deterministic-term", "the deterministic term of U_EBB against N",
              classes.deterministic_term, classes.lacks_classes),
)  # fmt: skip
"""Figures of the paper that any run may have."""

OWN_FIGURES = (
    RunFigure("utilisation", "spend as a share of its own budget",
              run.utilisation, run.lacks_budget),
    RunFigure("regime", "steps forced, active and free, by budget", run.regime, run.lacks_regime),
    RunFigure("bound-n", "upper limits of the mean spend against the number of prompts",
              run.bound_against_n, run.lacks_prompts),
    RunFigure("overlap", "near-verbatim recall against spend", run.overlap, run.lacks_overlap),
    RunFigure("tails", "tails of the log-likelihood ratio L", run.tails, run.lacks_ratios),
)  # fmt: skip

SEARCH_FIGURES = (
    RunFigure("search-progress", "the best prompt of a search by trajectories spent",
              run.progress, run.lacks_search),
)  # fmt: skip
"""Of runs that hold a search; others do not speak of them."""


def draw_figure(result: AuditResult, name: str) -> Figure:
    """Draws one figure.

    Args:
        result: What is drawn.
        name: Name of the figure, as its files have it.

    Raises:
        InputError: The run has nothing for it; the message says what it lacks.
    """
    every = (*PAPER_FIGURES, *OWN_FIGURES, *SEARCH_FIGURES)
    found = next(figure for figure in every if figure.name == name)
    if lacks := found.lacks(result):
        raise InputError(f"{result.run.path} has no figure {name!r}: {lacks}.")
    with style():
        return found.draw(result)


def draw_figures(
    result: AuditResult, directory: Path, more: Sequence[RunFigure] = ()
) -> list[Drawn]:
    """Writes every figure that the run can have as SVG and PDF; says of the others why not.

    Args:
        result: What is drawn.
        directory: Where to.
        more: Figures of rooms above; they stand beside the paper's.
    """
    found = []
    figures = (*PAPER_FIGURES, *more, *OWN_FIGURES)
    for figure in figures if result.search is None else figures + SEARCH_FIGURES:
        if lacks := figure.lacks(result):
            found.append(Drawn(figure.name, figure.caption, lacks=f"not in this run: {lacks}"))
            continue
        with style(), warnings.catch_warnings():
            # A class may be named in a script that the font does not have: boxes are drawn.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            paths = save(figure.draw(result), directory / figure.name)
        found.append(Drawn(figure.name, figure.caption, tuple(path.name for path in paths)))
    return found
