"""`nafaudit selftest` and `nafaudit conform`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from nafaudit.selftest.conform import Item


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
    mechanism: options.Mechanism = None,
    k: Annotated[
        list[str] | None,
        options.audited_option(
            metavar="K,...", help="Budgets in nats per token, beside 0 and inf. Default: 0.25,1."
        ),
    ] = None,
    temperature: options.Temperature = None,
    repetition_penalty: options.RepetitionPenalty = None,
    prefix_n: options.PrefixN = None,
    prefix_debt: options.PrefixDebt = None,
    debt: options.Debt = None,
    top_k: options.Refused = None,
    top_p: options.Refused = None,
    greedy: options.RefusedGreedy = None,
    num_beams: options.Refused = None,
    min_p: options.Refused = None,
    typical_p: options.Refused = None,
    as_json: options.Json = False,
) -> None:
    """Does a decoder, or a step-level rule, keep the contract? For CI.

    Tries it on the lab pair and answers for every item: YES, NO, or UNKNOWN where it does not
    show enough; the first line says which promise it was held to. Exit status: 0 nothing broken,
    1 something is, 2 it cannot be built.

    Example: nafaudit conform mymodule:Decoder --no-prefix-debt
    """
    given = dict(locals())
    from nafaudit.core.design import REFUSED_DECODING, refuse_after_solve
    from nafaudit.selftest import conform as suite

    refuse_after_solve(
        {n: given[n] for n in REFUSED_DECODING if n in given and given[n] is not None}
    )
    promise = {name: given[name] for name in suite.PROMISE} | {"k": options.budgets(k)}
    found = suite.examine(decoder, python=decoder_python, timeout=timeout, promise=promise)
    items = found.items
    broken = any(item.answer is suite.Conforms.NO for item in items)
    if as_json:
        rows = [{"name": i.name, "answer": str(i.answer), "text": i.text} for i in items]
        typer.echo(
            json.dumps(
                {
                    "promise": found.promise,
                    "decoder": decoder,
                    "conforms": not broken,
                    "items": rows,
                },
                indent=2,
            )
        )
    else:
        _print(found.promise, decoder, items, broken)
    raise typer.Exit(int(broken))


def _print(promise: str, decoder: str, items: list[Item], broken: bool) -> None:
    from textwrap import wrap

    from nafaudit.selftest.conform import Conforms

    for line in wrap(f"promise: {promise}", 79, subsequent_indent="  "):
        typer.echo(line)
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
