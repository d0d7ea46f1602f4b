"""Prints an audit for people or for programs, and finds the latest runs."""

from __future__ import annotations

import json
from pathlib import Path

from nafaudit.cli.echo import echo
from nafaudit.core.errors import InputError
from nafaudit.measures.audit import AuditResult, result_json
from nafaudit.views.audit import audit_document
from nafaudit.views.terminal import terminal


def latest_run(directory: Path = Path("runs")) -> Path:
    """Returns the run that was written last."""
    return latest_runs(1, directory)[0]


def latest_runs(count: int, directory: Path = Path("runs")) -> list[Path]:
    """Returns the runs that were written last, the latest at the end."""
    # A name with a dot in front is what a killed import left.
    runs = sorted(directory.glob("[!.]*/design.json"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise InputError(f"no run under {directory}/ yet; make one with: nafaudit run")
    if len(runs) < count:
        raise InputError(f"need {count} runs under {directory}/, there is {len(runs)}; name them.")
    return [path.parent for path in runs[-count:]]


def show(
    result: AuditResult, *, as_json: bool, source: str | None = None, page: Path | None = None
) -> int:
    """Prints the result of a run; returns the exit status.

    Args:
        result: What came out.
        as_json: Print for machines.
        source: What the user named, if that is not the run directory.
        page: The report, if one was written.
    """
    name = source or str(result.run.path)
    if as_json:
        more = {"report": str(page)} if page else {}
        echo(json.dumps(result_json(result, name) | more, indent=2))
    else:
        echo(terminal(audit_document(result, name, page)))
    return result.overall.exit_status
