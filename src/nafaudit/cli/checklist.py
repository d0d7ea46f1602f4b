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

    Needs no models. No item is a verdict: the exit status is 0 whatever the answers, and 3 if the
    run is unfinished.

    Example: nafaudit checklist --paper
    """
    import json

    from nafaudit.cli.echo import echo
    from nafaudit.cli.show import latest_run
    from nafaudit.core.errors import InputError
    from nafaudit.report import checklist as lists
    from nafaudit.report.checklist.ratios import ratios
    from nafaudit.report.data import collect
    from nafaudit.report.text import visible
    from nafaudit.store.run import Run

    if paper and (run is not None or anchor is not None):
        raise InputError("--paper is about the paper alone; leave out RUN and --anchor.")
    if paper:
        items, name, prompts, gaps = lists.of_paper(), "the paper", [], None
    else:
        report = collect(Run(run or latest_run()))
        second = collect(Run(anchor)) if anchor is not None else None
        items, name, prompts = lists.of_run(report, second), str(report.run.path), ratios(report)
        gaps = report.gaps or (second.gaps if second is not None else None)
    if as_json:
        data = {"run": name} | lists.as_json(items, prompts)
        data["missing"] = None if gaps is None else gaps.to_json()
        echo(json.dumps(data, indent=2))
    else:
        lines = [lists.as_text(items), f"of {name}"]
        lines += [] if gaps is None else [f"incomplete: {visible(gaps.text)}"]
        echo("\n".join(lines))
    raise typer.Exit(0 if gaps is None else 3)
