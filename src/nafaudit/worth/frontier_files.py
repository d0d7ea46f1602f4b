"""A frontier as files: frontier.json, points.csv, matched.csv and a figure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from nafaudit import __version__
from nafaudit.core.text import as_number
from nafaudit.store.files import make_directory, write_whole
from nafaudit.views.figures.style import GREY, PAGE, as_bytes, canvas, style
from nafaudit.worth.matched import Match, Point, Reading


def frontier_json(reading: Reading) -> dict[str, Any]:
    """Everything that a frontier says; strict JSON, NaN and infinity as strings."""
    frontier = reading.frontier
    settings = frontier.settings
    return {
        "hash": frontier.hash,
        "nafaudit": __version__,
        "identity": frontier.identity,
        "window": settings.window,
        "ordinary": {"texts": len(frontier.ordinary.ids), "ceiling": reading.ceiling},
        "protected": {"passages": len(frontier.protected.ids), "risky_leak": reading.risky_leak},
        "bracketed": reading.bracketed,
        "paying_k": dict(zip(("least", "median", "most"), reading.paying_k, strict=True)),
        "points": [_plain(one) for one in reading.points],
        "matched": [_plain(one) for one in reading.matches],
    }


def write_frontier(reading: Reading, directory: Path) -> list[Path]:
    """Writes the files; the same frontier gives the same bytes."""
    make_directory(directory)
    files = {
        "points.csv": _csv(Point, reading.points),
        "matched.csv": _csv(Match, reading.matches),
        "frontier.svg": frontier_plot(reading),
        "frontier.json": json.dumps(frontier_json(reading), indent=2).encode() + b"\n",
    }
    for name, content in files.items():
        write_whole(directory / name, content)
    return [directory / name for name in files]


def frontier_plot(reading: Reading) -> bytes:
    """The content of frontier.svg: leak against fidelity, a line per mechanism."""
    window = reading.frontier.settings.window
    with style():
        figure, axes = canvas(PAGE, 3.8)
        for name in reading.frontier.settings.mechanisms:
            points = [one for one in reading.points if one.mechanism == name]
            bought = [0.0, *(one.fidelity for one in points)]
            axes.plot(bought, [0.0, *(one.leak for one in points)], label=name)
        axes.axhline(reading.risky_leak, color=GREY, linestyle=":", linewidth=1.0)
        axes.annotate(
            "risky model alone", (0.5, reading.risky_leak), color=GREY, fontsize=7, va="bottom"
        )
        axes.set_xlabel("fidelity bought on ordinary text, of all there is")
        axes.set_ylabel(f"leak: nats gained per {window}\nprotected tokens")
        axes.set_title("What budgets buy, and what they give away (a mark per k, from 0)")
        axes.legend(loc="center left")
        return as_bytes(figure, "svg")


def _plain(row: Point | Match) -> dict[str, Any]:
    values = asdict(row)
    return {name: v if isinstance(v, str) else as_number(v) for name, v in values.items()}


def _csv(kind: type[Point] | type[Match], rows: Sequence[Point] | Sequence[Match]) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [field.name for field in fields(kind)]
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return stream.getvalue().encode()
