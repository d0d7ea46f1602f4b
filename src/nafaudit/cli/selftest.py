"""`nafaudit selftest`: can the auditor be trusted?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli import options


def selftest(
    full: Annotated[
        bool, typer.Option("--full", help="The published table: every fault; about 12 minutes.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of worlds, prompts and draws.", min=0)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to save: a .json file, or the page of docs/selftest.md as .md."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes; the result is the same.", min=1)] = 1,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Can the auditor be trusted? Faulty decoders caught, false alarms, calibration of bounds.

    Faults are decoders that are wrong in one way each, audited in small worlds by the checks of a
    real run. Exit status: 0 every fault is caught that must be and false alarms are within their
    level, 1 otherwise.

    Example: nafaudit selftest
    """
    _check_out(out)

    import json

    from nafaudit import __version__
    from nafaudit.cli.echo import echo
    from nafaudit.selftest import run, table

    found = run.selftest(full=full, seed=seed, jobs=jobs, note=_progress(quiet))
    told = json.dumps(table.as_json(found), indent=2)
    if out is not None:
        _save(out, told + "\n" if out.suffix == ".json" else table.as_markdown(found, __version__))
    echo(told if as_json else table.as_text(found) + (f"\nsaved: {out}" if out else ""))
    raise typer.Exit(0 if found.passed else 1)


def _check_out(out: Path | None) -> None:
    """Says what is wrong with --out before minutes are spent."""
    from nafaudit.core.errors import InputError

    if out is None:
        return
    if out.suffix not in (".json", ".md"):
        raise InputError(f"--out {out} must end in .json or .md: that chooses the format.")
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"--out {out} cannot be written: name a file in an existing directory.")


def _save(out: Path, text: str) -> None:
    from nafaudit.core.errors import InputError

    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror}.") from error


def _progress(quiet: bool) -> Callable[[str], None]:
    """One line that is written over on a terminal; silence elsewhere."""
    if quiet or not sys.stderr.isatty():
        return lambda _: None

    def note(text: str) -> None:
        typer.echo(f"\r{text[:78]:<78}", nl=False, err=True)

    return note
