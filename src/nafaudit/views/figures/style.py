"""One style for every figure: distinct colours, and files that are equal for equal data.

    with style():
        figure, axes = canvas()
        axes.plot(...)
        save(figure, Path("out/spend"))

Drawing and saving both belong inside `style()`. Nothing here touches pyplot or a display, and
the same numbers give the same bytes: no date, no version and no random id gets into a file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from nafaudit.core.text import cut, name
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.store.files import make_directory, write_whole
from nafaudit.views.words import arm_name

# Okabe and Ito (2008): distinct under every common colour blindness, and in print by lightness.
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
ORANGE = "#E69F00"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
BLACK = "#000000"
GREY = "#6E6E6E"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)
# Colour is never the only sign: the n-th series also has the n-th marker and hatch.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "+++")

# Behind words that stand on a drawing.
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}

# Inches; a page column, and a full page width.
COLUMN = 5.2
PAGE = 7.2
_GOLDEN = 0.618

_SETTINGS: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.prop_cycle": cycler(color=PALETTE) + cycler(marker=MARKERS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    # Shipped with matplotlib, so that no machine draws with another one.
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#D9D9D9",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "mathtext.fontset": "dejavusans",
    "pdf.compression": 6,
    "pdf.fonttype": 42,
    "savefig.dpi": 100,
    "svg.fonttype": "path",
    "svg.hashsalt": "nafaudit",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
_NO_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_BUDGET_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
MOST = 6
"""Budgets in a figure; of more, evenly chosen ones are drawn, and the title says so."""
COLUMNS = 3
"""Panels side by side."""
_LONGEST = 22


@contextmanager
def style() -> Iterator[None]:
    """Applies the look while a figure is drawn and saved; what was set before comes back."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


class NotebookFigure(Figure):
    """A figure that a notebook shows, without pyplot and whatever backend there is."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        with style():
            self.savefig(stream, format="png", dpi=110, bbox_inches="tight")
        return stream.getvalue()


def canvas(width: float = COLUMN, height: float | None = None) -> tuple[Figure, Axes]:
    """Makes an empty figure with one pair of axes.

    Args:
        width: In inches.
        height: In inches; the golden section of the width if left out.
    """
    figure = NotebookFigure(figsize=(width, height or width * _GOLDEN))
    return figure, figure.subplots()


def as_bytes(figure: Figure, kind: str) -> bytes:
    """Writes the content of a file: `svg` or `pdf`, the same for the same figure."""
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, metadata=_NO_METADATA[kind])
    return stream.getvalue()


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes STEM.svg and STEM.pdf and returns their paths."""
    make_directory(stem.parent)
    paths = []
    for kind in _NO_METADATA:
        # Not with_suffix: a stem such as "spend_k0.5" keeps its dot.
        path = stem.parent / f"{stem.name}.{kind}"
        write_whole(path, as_bytes(figure, kind))
        paths.append(path)
    return paths


@dataclass(frozen=True)
class Look:
    """How one arm is drawn.

    Attributes:
        arm: Arm that is drawn.
        label: Name of the arm.
        colour: Colour of lines and marks.
        marker: Shape of a mark.
        line: Style of a line.
    """

    arm: ArmVerdict
    label: str
    colour: str
    marker: str
    line: str


def budgets(result: AuditResult) -> list[ArmVerdict]:
    """Returns up to `MOST` audited arms with outputs, with the smallest and the largest."""
    judged = [arm for arm in result.arms if not arm.baseline and result.of_arm(arm)]
    if len(judged) <= MOST:
        return judged
    step = (len(judged) - 1) / (MOST - 1)
    return [judged[round(i * step)] for i in range(MOST)]


def looks(result: AuditResult) -> list[Look]:
    """Chooses black and grey for baselines, colours for budgets, a shape of its own for each."""
    found = []
    alone = [arm for arm in result.arms if arm.baseline and result.of_arm(arm)]
    for arm in alone[:2]:
        colour, line = (GREY, ":") if arm.k == 0 else (BLACK, "--")
        found.append(Look(arm, plain(arm_name(arm, result.arms)), colour, "x", line))
    for i, arm in enumerate(budgets(result)):
        label = plain(arm_name(arm, result.arms))
        found.append(Look(arm, label, _BUDGET_COLOURS[i], MARKERS[i], "-"))
    return sorted(found, key=lambda look: (look.arm.k, look.arm.mechanism))


def left_out(result: AuditResult) -> str:
    """Says what a title adds if not all budgets are drawn."""
    judged = sum(not arm.baseline for arm in result.arms)
    drawn = len(budgets(result))
    return f" ({drawn} of {judged} budgets)" if judged > drawn else ""


def plain(text: str, most: int = _LONGEST) -> str:
    """Writes a name from a log as a label: short, and never a formula."""
    return cut(name(text), most).replace("$", r"\$")


def panels(count: int, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """Makes panels, at most three in a row; places that are not needed stay empty."""
    columns = min(count, COLUMNS)
    rows = math.ceil(count / columns)
    figure = NotebookFigure(figsize=(max(4.2, PAGE * columns / COLUMNS), height * rows + 0.5))
    places = figure.subplots(rows, columns, squeeze=False)
    flat = [axes for row in places for axes in row]
    for axes in flat[count:]:
        axes.remove()
    return figure, flat[:count]


def finite(values: Sequence[float]) -> list[float]:
    """Keeps what can be drawn."""
    return [value for value in values if math.isfinite(value)]


def count_ticks(axes: Axes, most: int) -> None:
    """Labels a logarithmic axis of counts with counts."""
    ticks = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    axes.set_xticks([tick for tick in ticks if 2 <= tick <= most])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")


def nat_ticks(axes: Axes) -> None:
    """Labels a logarithmic axis of nats with numbers, with more of them on a short one."""
    low, high = axes.get_ylim()
    digits = (1, 2, 5) if high < 300 * low else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=digits))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def legend(figure: Figure, axes: Axes) -> None:
    """Draws one legend for all panels, below them, with as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    # Inches of a letter, and of a mark with the space around it.
    widest = 0.065 * max(map(len, labels), default=1) + 0.55
    columns = int(figure.get_figwidth() // widest)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=max(1, min(columns, len(labels)))
    )
