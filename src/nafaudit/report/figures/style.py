"""One look for every figure: colours everybody can tell apart, and files that never change.

    with style():
        figure, axes = canvas()
        axes.plot(...)
        save(figure, Path("out/spend"))

Drawing and saving both belong inside `style()`. Nothing here touches pyplot or a display, and
the same numbers give the same bytes: no date, no version and no random id gets into a file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nafaudit.store.files import make_directory, write_whole

# Okabe and Ito (2008): told apart under every common colour blindness, and in print by lightness.
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


@contextmanager
def style() -> Iterator[None]:
    """Applies the look while a figure is drawn and saved; what was set before comes back."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def canvas(width: float = COLUMN, height: float | None = None) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes.

    Args:
        width: In inches.
        height: In inches; the golden section of the width if left out.
    """
    figure = Figure(figsize=(width, height or width * _GOLDEN))
    return figure, figure.subplots()


def as_bytes(figure: Figure, kind: str) -> bytes:
    """The content of a file: `svg` or `pdf`, the same for the same figure."""
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


def inline_svg(figure: Figure, description: str) -> str:
    """The figure as an element to put into a page, named for readers who cannot see it.

    Args:
        figure: What was drawn.
        description: One sentence that says what the picture shows.
    """
    from html import escape

    drawn = as_bytes(figure, "svg").decode()
    drawn = drawn[drawn.index("<svg") :].rstrip()
    label = escape(description, quote=True)
    return drawn.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
