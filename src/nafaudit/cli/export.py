"""`nafaudit export`: a run out as the paper's JSON Lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli import options


def export(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory; the latest under runs/ if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory to write.")] = Path("export"),
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="The paper's own files: budgets only, scored, with its summary."
        ),
    ] = False,
    delta: Annotated[
        float | None,
        typer.Option(help="Level of all bounds of the summary. Default: the run's, or 0.05."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Writes a run as the paper's trajectory files. Needs no models.

    `nafaudit import` of what it writes gives back every record. With --paper the baselines are
    left out, every output is scored against its reference (0 where there is none, as the paper
    has it), and h1_summary.json and .csv are beside it. Exit status: 0, or 3 if the run is
    unfinished: what it has is written.

    Example: nafaudit export --out exported
    """
    import json

    from nafaudit.cli.show import latest_run
    from nafaudit.core.errors import InputError
    from nafaudit.report.text import visible
    from nafaudit.store.export import export_run
    from nafaudit.store.gaps import missing_of
    from nafaudit.store.paper_files import write_paper_files
    from nafaudit.store.run import Run

    source = run or latest_run()
    if delta is not None and not paper:
        raise InputError("delta belongs to the paper's summary; give --paper too.")
    written = (
        write_paper_files(Run(source), out, delta=delta) if paper else export_run(Run(source), out)
    )
    files = [str(path) for path in written]
    gaps = missing_of(Run(source))
    if as_json:
        missing = None if gaps is None else gaps.to_json()
        data = {"run": str(source), "files": files, "missing": missing}
        typer.echo(json.dumps(data, indent=2))
    else:
        for name in files:
            typer.echo(name)
    if gaps is not None:
        typer.echo(f"incomplete: {visible(gaps.text)}", err=True)
        raise typer.Exit(3)
