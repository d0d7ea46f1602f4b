"""`nafaudit compare`: what changed between two runs or two decoders, on shared draws?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli import options


def compare(
    a: Annotated[
        Path | None,
        typer.Argument(metavar="[A]", help="The run before; the second latest if left out."),
    ] = None,
    b: Annotated[
        Path | None, typer.Argument(metavar="[B]", help="The run after; the latest if left out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write compare.md and compare.json there.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """What moved between two runs, two decoders or two versions? Needs no models.

    Arms are matched by mechanism and budget, else by budget alone; executions by prompt and
    number if both runs drew alike, else by prompt; intervals have prompts as units.

    Exit status: 0 nothing got worse, 1 B violates a budget that A does not, 2 bad input,
    3 B no longer shows that a budget is kept which A keeps, or a run is unfinished. What moved is
    no verdict.

    Example: nafaudit compare
    """
    import json

    from nafaudit.cli.echo import echo
    from nafaudit.cli.show import latest_runs
    from nafaudit.report import compare as comparing
    from nafaudit.store.files import make_directory, write_whole
    from nafaudit.store.run import Run

    if a is None:
        a, b = latest_runs(2)
    found = comparing.compare(Run(a), Run(b or latest_runs(1)[0]))
    data = json.dumps(comparing.as_json(found), indent=2)
    files = []
    if out is not None:
        make_directory(out)
        files = [out / "compare.md", out / "compare.json"]
        write_whole(files[0], comparing.as_markdown(found).encode())
        write_whole(files[1], data.encode() + b"\n")
    echo(data if as_json else "\n".join([comparing.as_text(found), *map(str, files)]))
    raise typer.Exit(found.exit_status)
