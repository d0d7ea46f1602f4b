"""`nafaudit export`: a run out as the paper's JSON Lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory; the latest under runs/ if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory to write.")] = Path("export"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Writes a run as the paper's trajectory files. Needs no models.

    `nafaudit import` of what it writes gives back every record.

    Example: nafaudit export --out exported
    """
    import json

    from nafaudit.cli.show import latest_run
    from nafaudit.store.export import export_run
    from nafaudit.store.run import Run

    source = run or latest_run()
    files = [str(path) for path in export_run(Run(source), out)]
    if as_json:
        typer.echo(json.dumps({"run": str(source), "files": files}, indent=2))
        return
    for name in files:
        typer.echo(name)
