"""`nafaudit check`: what the records alone show."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options
from nafaudit.cli.import_ import (
    Columns,
    GivenK,
    GivenT,
    LedgerName,
    MechanismName,
    Schema,
    Stops,
    VocabularySize,
    options_of,
)

if TYPE_CHECKING:
    from nafaudit.store.run import Run


def check(
    run: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN|LOG...]", help="Run directory, or logs; the latest run if left out."
        ),
    ] = None,
    schema: Schema = None,
    mechanism: MechanismName = None,
    k: GivenK = None,
    max_new_tokens: GivenT = 0,
    stop: Stops = None,
    column: Columns = None,
    ledger: LedgerName = None,
    vocabulary_size: VocabularySize = 0,
    as_json: options.Json = False,
) -> None:
    """What do the records alone show? Needs no models.

    Reads a run, or somebody's logs (docs/foreign-logs.md). The options but --json are for logs.

    Example: nafaudit check
    """
    from nafaudit.cli.show import latest_run
    from nafaudit.core.errors import InputError
    from nafaudit.store.importers import ImportOptions, import_logs
    from nafaudit.store.run import Run

    paths = run or [latest_run()]
    options = options_of(
        schema, mechanism, k, max_new_tokens, stop, column, ledger, vocabulary_size
    )
    if len(paths) == 1 and not paths[0].is_file():
        found = Run(paths[0])
        if options != ImportOptions():
            raise InputError(
                f"{paths[0]} is a run, which says itself what it is; only --json goes with it, "
                "the other options are for logs."
            )
        raise typer.Exit(_judge(found, str(paths[0]), as_json=as_json))
    with tempfile.TemporaryDirectory(prefix="nafaudit-") as directory:
        imported = import_logs(paths, Path(directory) / "run", options)
        status = _judge(imported, " ".join(map(str, paths)), as_json=as_json)
    raise typer.Exit(status)


def _judge(run: Run, source: str, *, as_json: bool) -> int:
    """Prints what an import noticed, and files that are no records, to standard error first."""
    from nafaudit.checks import judge_run
    from nafaudit.cli.show import show
    from nafaudit.report.text import visible
    from nafaudit.store.importers import describe, import_report

    if (report := import_report(run)) is not None:
        for line in describe(report):
            typer.echo(f"hygiene: {line}", err=True)
    if run.mixed:
        typer.echo(f"hygiene: {visible(run.mixed)}", err=True)
    for name in run.strays():
        typer.echo(f"hygiene: parts/{visible(name)} is no part of this run; not read", err=True)
    return show(run, judge_run(run), as_json=as_json, source=source)
