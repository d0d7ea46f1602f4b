"""`nafaudit checklist`: the paper's seven practitioner items, of a run or of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli import options


def checklist(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory; the latest under runs/ if left out.")
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Of the paper itself.")] = False,
    anchor: Annotated[
        Path | None,
        typer.Option(help="A run with another safe model and the same risky one, for item 1."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Answers the paper's seven practitioner items: pass, fail, and what to run to pass.

    Needs no models. The exit status is 0 whatever the answers: no item is a verdict.

    Example: nafaudit checklist --paper
    """
    import json

    from nafaudit.cli.show import latest_run
    from nafaudit.core.errors import InputError
    from nafaudit.report import checklist as lists
    from nafaudit.report.checklist.ratios import ratios
    from nafaudit.report.data import collect
    from nafaudit.store.run import Run

    if paper and (run is not None or anchor is not None):
        raise InputError("--paper is about the paper alone; leave out RUN and --anchor.")
    if paper:
        items, name, prompts = lists.of_paper(), "the paper", []
    else:
        report = collect(Run(run or latest_run()))
        second = collect(Run(anchor)) if anchor is not None else None
        items, name, prompts = lists.of_run(report, second), str(report.run.path), ratios(report)
    if as_json:
        data = {"run": name} | lists.as_json(items, prompts)
        typer.echo(json.dumps(data, indent=2))
    else:
        typer.echo(f"{lists.as_text(items)}\nof {name}")
