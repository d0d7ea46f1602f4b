"""`nafaudit selftest` and `nafaudit conform`."""

from __future__ import annotations

import json
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
    from nafaudit.core.text import plain
    from nafaudit.selftest import run
    from nafaudit.views.selftest import selftest_document, selftest_page
    from nafaudit.views.terminal import terminal

    found = run.selftest(full=full, seed=seed, jobs=jobs, note=_progress(quiet))
    data = json.dumps(plain(found), indent=2)
    if out is not None:
        _save(out, data + "\n" if out.suffix == ".json" else selftest_page(found, __version__))
    files = (f"saved: {out}",) if out else ()
    echo(data if as_json else terminal(selftest_document(found, files)))
    raise typer.Exit(found.overall.exit_status)


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
    from nafaudit.cli.echo import echo
    from nafaudit.core.design import REFUSED_DECODING, refuse_after_solve
    from nafaudit.core.text import plain
    from nafaudit.selftest import conform as suite
    from nafaudit.views.selftest import conform_document
    from nafaudit.views.terminal import terminal

    refuse_after_solve(
        {n: given[n] for n in REFUSED_DECODING if n in given and given[n] is not None}
    )
    promise = {name: given[name] for name in suite.PROMISE} | {"k": options.budgets(k)}
    found = suite.examine(decoder, python=decoder_python, timeout=timeout, promise=promise)
    echo(json.dumps(plain(found), indent=2) if as_json else terminal(conform_document(found)))
    raise typer.Exit(found.overall.exit_status)
