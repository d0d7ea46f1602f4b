"""`nafaudit check`: what the records alone show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory; the latest under runs/ if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """What do the records alone show? Needs no models.

    Example: nafaudit check
    """
    from nafaudit.checks import judge_run
    from nafaudit.cli.show import latest_run, show
    from nafaudit.store.run import Run

    opened = Run(run or latest_run())
    raise typer.Exit(show(opened, judge_run(opened), as_json=as_json))
