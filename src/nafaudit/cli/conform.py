"""`nafaudit conform`: does anybody's decoder keep the contract?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from nafaudit.selftest.conform import Item


def conform(
    decoder: Annotated[
        str,
        typer.Argument(
            help="package.module:Class, file.py:Class, anchoreddecode, or a mechanism's name."
        ),
    ] = "nafaudit.mechanisms.reference:AnchoredDecoder",
    decoder_python: Annotated[
        str | None, typer.Option(help="Interpreter that runs it. Default: this one.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that an answer may take.")] = 120.0,
    as_json: options.Json = False,
) -> None:
    """Does a decoder, or a step-level rule, keep the contract? For CI.

    Tries it on the lab pair and answers for every item: YES, NO, or UNKNOWN where it does not
    show enough. Exit status: 0 nothing broken, 1 something is, 2 it cannot be built.

    Example: nafaudit conform nafaudit.mechanisms.reference:AnchoredDecoder
    """
    from nafaudit.selftest import conform as suite

    items = suite.conform(decoder, python=decoder_python, timeout=timeout)
    broken = any(item.answer is suite.Conforms.NO for item in items)
    if as_json:
        rows = [{"name": i.name, "answer": str(i.answer), "text": i.text} for i in items]
        typer.echo(
            json.dumps({"decoder": decoder, "conforms": not broken, "items": rows}, indent=2)
        )
    else:
        _print(decoder, items, broken)
    raise typer.Exit(int(broken))


def _print(decoder: str, items: list[Item], broken: bool) -> None:
    from textwrap import wrap

    from nafaudit.selftest.conform import Conforms

    for item in items:
        head, *more = wrap(item.text, 55) or [""]
        typer.echo(f"{item.name:<13}{item.answer:<9}{head}")
        for line in more:
            typer.echo(" " * 22 + line)
    unknown = sum(item.answer is Conforms.UNKNOWN for item in items)
    verdict = "breaks the contract" if broken else "breaks no item"
    rest = f"; {unknown} of {len(items)} items cannot be told" if unknown else ""
    for line in wrap(f"{decoder} {verdict}{rest}", 79):
        typer.echo(line)
