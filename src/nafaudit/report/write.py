"""The report's files: a pure function of the run, written whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nafaudit.report.data import Report, collect
from nafaudit.report.markdown import markdown
from nafaudit.report.page import render
from nafaudit.report.plain import plain
from nafaudit.store.files import make_directory, write_whole
from nafaudit.store.run import Run


def write_report(
    run: Run, *, redact: bool = False, figures: bool = False
) -> tuple[Report, list[Path]]:
    """Writes RUN/report/index.html, report.md and report.json; returns what they show.

    Args:
        run: What to report on; only read.
        redact: Leave the text of prompts, outputs and references out.
        figures: Draw figures/*.svg and *.pdf too, which takes some seconds.
    """
    report = collect(run)
    return report, save_report(report, redact=redact, figures=figures)


def save_report(report: Report, *, redact: bool = False, figures: bool = False) -> list[Path]:
    """Writes the files of a report that was collected; options as for `write_report`."""
    data = plain(report, redact=redact)
    directory = report.run.path / "report"
    make_directory(directory)
    drawn: list[Path] = []
    if figures:
        data["figures"], drawn = _draw(report, directory / "figures")
    contents = {
        "index.html": render(report, data, redact=redact),
        "report.md": markdown(report, data),
        "report.json": json.dumps(data, indent=1, ensure_ascii=False) + "\n",
    }
    for name, content in contents.items():
        write_whole(directory / name, content.encode())
    return [*(directory / name for name in contents), *drawn]


def _draw(report: Report, directory: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Every figure as data, those that this run cannot have with the reason, and the files."""
    # Imported late: loading the drawing library takes a second.
    from nafaudit.report.figures.of_run import draw_figures

    found = draw_figures(report, directory)
    files = [directory / name for one in found for name in one.files]
    return [asdict(one) for one in found], files
