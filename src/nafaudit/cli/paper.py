"""`nafaudit paper`: the paper's tables and figures, recomputed; every disagreement listed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli import options

_FIGURES = Path("paper")


def paper(
    out: Annotated[
        Path | None,
        typer.Option(help="Where the four figures go; ./paper if left out, none for --json."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print every cell.")] = False,
    markdown: Annotated[bool, typer.Option(help="Print the page of docs/paper.md.")] = False,
    as_json: options.Json = False,
) -> None:
    """Recomputes the paper's tables, equations and figures from the numbers it prints.

    Needs no models. Agreeing means: inside what the rounding of the printed inputs allows.
    The exit status is 0 whatever is found: the paper is not a decoder under audit.

    Example: nafaudit paper
    """
    import json

    from nafaudit.core.errors import InputError

    if as_json and (markdown or every):
        given = "--markdown" if markdown else "--all"
        raise InputError(f"--json has every cell and nothing else; leave out {given}.")
    if markdown and every:
        raise InputError("--markdown prints the page of docs/paper.md; leave out --all.")

    from nafaudit.report.paper.counterfactual import counterfactuals
    from nafaudit.report.paper.recompute import recompute
    from nafaudit.report.paper.show import as_json as to_json
    from nafaudit.report.paper.show import as_text

    result, grids = recompute(), counterfactuals()
    figures = out or (None if as_json or markdown else _FIGURES)
    files = _draw(figures) if figures is not None else []
    if as_json:
        typer.echo(json.dumps(to_json(result, grids, [str(path) for path in files]), indent=2))
    elif markdown:
        from nafaudit.report.paper.page import page

        typer.echo(page(result), nl=False)
    else:
        # Figures first: the list of disagreements is what the command ends with.
        if figures is not None:
            typer.echo(f"figures: {figures}/*.svg and *.pdf")
        typer.echo(as_text(result, grids, every=every))


def _draw(out: Path) -> list[Path]:
    """Only this needs matplotlib, which takes a second to load."""
    from nafaudit.core.errors import InputError
    from nafaudit.report.paper.figures import draw

    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a directory for the figures.")
    try:
        return draw(out)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror}.") from error
