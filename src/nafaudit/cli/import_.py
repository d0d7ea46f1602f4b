"""`nafaudit import`: other people's logs in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options
from nafaudit.core.errors import InputError

if TYPE_CHECKING:
    from nafaudit.store.importers import ImportOptions

Schema = Annotated[
    str | None,
    typer.Option(
        help="trajectories, history, heldout, queries, items or table. Default: by content."
    ),
]
MechanismName = Annotated[
    str | None, typer.Option(help="What the log was decoded with. Default: as it says.")
]
GivenK = Annotated[float | None, typer.Option("--k", help="Budget of records that have none.")]
GivenT = Annotated[int, typer.Option(help="T of records that have none; 0: unknown.")]
Stops = Annotated[
    list[int] | None, typer.Option("--stop", help="Id of a token that ends a row; repeatable.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="OURS=THEIRS", help="A table's column, as spend=total_kl."),
]
VocabularySize = Annotated[
    int,
    typer.Option(help="Tokens of the vocabulary, for the paper's R = T ln|V|; 0: unknown."),
]
LedgerName = Annotated[
    str | None,
    typer.Option(
        help="Rule behind the budgets: banking (k T), or unknown to believe the log's own. "
        "Default: by schema."
    ),
]


def import_(
    logs: Annotated[list[Path], typer.Argument(help="Log files; .gz is read too.")],
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
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
    """Reads other people's logs into a run directory. Needs no models.

    Nothing is mended in silence: what was dropped or read in another way is printed, and kept in
    import.json. The schemas: docs/foreign-logs.md.

    Example: nafaudit import anchored.csv --max-new-tokens 100 --out runs/anchored
    """
    import json

    from nafaudit.store.importers import describe, import_logs, import_report

    options = options_of(
        schema, mechanism, k, max_new_tokens, stop, column, ledger, vocabulary_size
    )
    run = import_logs(logs, out, options)
    report = import_report(run) or {}
    if as_json:
        typer.echo(json.dumps({"run": str(out)} | report, indent=2))
        return
    schemas = ", ".join(sorted({source["schema"] for source in report["sources"]}))
    typer.echo(
        f"{report['trajectories']} trajectories, {report['steps']} steps, {report['prompts']} "
        f"prompts ({schemas})"
    )
    for line in describe(report):
        typer.echo(f"  {line}")
    typer.echo(f"run directory: {out}; judge it with: nafaudit check {out}")


def options_of(
    schema: str | None,
    mechanism: str | None,
    k: float | None,
    max_new_tokens: int,
    stop: list[int] | None,
    column: list[str] | None,
    ledger: str | None,
    vocabulary_size: int,
) -> ImportOptions:
    """Turns command-line options into what a reader needs; says what is wrong with them."""
    from nafaudit.core.ledger import LEDGERS, as_budget
    from nafaudit.store.importers import ImportOptions
    from nafaudit.store.importers.fields import identifier

    columns = dict(part.partition("=")[::2] for part in column or ())
    if not all(columns.keys()) or not all(columns.values()):
        raise InputError(f"--column needs OURS=THEIRS, for example spend=total_kl, got {column}.")
    if max_new_tokens < 0:
        raise InputError(f"max-new-tokens must be at least 0, got {max_new_tokens}.")
    if vocabulary_size < 0 or vocabulary_size == 1:
        raise InputError(
            f"vocabulary-size must be at least 2, or 0 if it is not known, got {vocabulary_size}."
        )
    if ledger is not None and ledger not in (*LEDGERS, "unknown"):
        raise InputError(f"ledger must be one of {', '.join(LEDGERS)}, unknown; got {ledger!r}.")
    return ImportOptions(
        schema=schema,
        mechanism=identifier(mechanism, "--mechanism", "command line") or None,
        k=None if k is None else as_budget(k),
        max_new_tokens=max_new_tokens,
        stops=frozenset(stop or ()),
        columns=columns,
        ledger=ledger,
        vocabulary_size=vocabulary_size,
    )
