"""The report's files: a pure function of the run, written whole."""

from __future__ import annotations

import json
from pathlib import Path

from nafaudit.report.data import Report, collect
from nafaudit.report.markdown import markdown
from nafaudit.report.page import render
from nafaudit.report.plain import plain
from nafaudit.store.files import make_directory, write_whole
from nafaudit.store.run import Run


def write_report(run: Run, *, redact: bool = False) -> tuple[Report, list[Path]]:
    """Writes RUN/report/index.html, report.md and report.json; returns what they show.

    Args:
        run: What to report on; only read.
        redact: Leave the text of prompts, outputs and references out.
    """
    report = collect(run)
    data = plain(report)
    contents = {
        "index.html": render(report, data, redact=redact),
        "report.md": markdown(report, data),
        "report.json": json.dumps(data, indent=1, ensure_ascii=False) + "\n",
    }
    directory = run.path / "report"
    make_directory(directory)
    for name, content in contents.items():
        write_whole(directory / name, content.encode())
    return report, [directory / name for name in contents]
