"""`nafaudit report`: one page a reviewer can trust."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli import options


def report(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory; the latest under runs/ if left out.")
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Hide the text of prompts, outputs and references.")
    ] = False,
    figures: Annotated[
        bool, typer.Option("--figures", help="Draw RUN/report/figures too, as SVG and PDF.")
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(
            metavar="PROMPT@K#TRAJECTORY",
            help="Print one record as JSON and write nothing; PART:ROW names one too.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Writes RUN/report: a page, Markdown and JSON, from the records alone. Needs no models.

    The same run gives the same bytes. Exit status as for nafaudit check. Where RUN cannot be
    written, the Markdown is printed instead, with status 2; --json prints the JSON as ever.

    Example: nafaudit report
    """
    import json

    from nafaudit.cli.echo import echo
    from nafaudit.cli.show import exit_status, latest_run
    from nafaudit.core.errors import StoreError
    from nafaudit.report.data import collect
    from nafaudit.report.markdown import markdown
    from nafaudit.report.plain import plain
    from nafaudit.report.record import record_json
    from nafaudit.report.write import save_report
    from nafaudit.store.run import Run

    source = Run(run or latest_run())
    if record is not None:
        echo(json.dumps(record_json(source, record), indent=1))
        return
    made = collect(source)
    files, failed = [], None
    try:
        files = save_report(made, redact=redact, figures=figures)
    except StoreError as error:
        failed = error
    names = [str(path) for path in files]
    if as_json:
        data = plain(made, redact=redact)
        data["made"] |= {"run": str(source.path), "files": names}
        echo(json.dumps(data, indent=1))
    else:
        echo("\n".join(names) if failed is None else markdown(made, plain(made, redact=redact)))
    if failed is not None:
        typer.echo(
            f"nafaudit: {failed} The report is printed above; for the page, copy {source.path} to "
            "a place that can be written and name the copy.",
            err=True,
        )
    if failed is not None and not as_json:
        # Whoever asked for files must not go on without them.
        raise typer.Exit(failed.exit_status)
    raise typer.Exit(exit_status(made.arms))
