"""`nafaudit certify`: what a budget says about reproducing passages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli import options


def certify(
    passages: Annotated[
        Path | None,
        typer.Argument(
            help="Text with blank lines between passages, or JSON Lines with 'text' and 'id'. "
            "Default: the pair's own."
        ),
    ] = None,
    pair: Annotated[str, typer.Option(help="A registered pair, for its safe model.")] = "lab",
    safe: Annotated[str | None, typer.Option(help="Safe checkpoint: directory or hub id.")] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(metavar="K,...", help="Budgets in nats per token. Default: 0.25,1,3,10."),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Length limit T of one output; K = kT.")
    ] = 200,
    given: Annotated[
        int, typer.Option(help="Opening tokens of each passage that the prompt gives away.")
    ] = 0,
    window: Annotated[int, typer.Option(help="Tokens of the windows, whose budget is kw.")] = 50,
    temperature: Annotated[float, typer.Option(help="Of the safe model's law.")] = 1.0,
    repetition_penalty: Annotated[float, typer.Option(help="Of the safe model's law.")] = 1.0,
    prefix_n: Annotated[int, typer.Option(help="Prompt tokens that make up a debt.")] = 5,
    debt: Annotated[
        str, typer.Option(help="Definition: positives or official, each also with -raw.")
    ] = "positives",
    threads: Annotated[
        int, typer.Option(help="Torch threads, 1 or 2; two where no bit changes.")
    ] = 1,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Precision of the forward pass.")] = "float32",
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory. Default: certificates/<hash>.")
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Passages in the table, worst first.")] = 10,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """What does a budget say about reproducing these passages?

    Needs the safe model and the text, nothing else. Exit status 0 whatever the answer.

    Example: nafaudit certify --k 1,3
    """
    from nafaudit.core.debt import DebtRule
    from nafaudit.core.design import Decoding

    protected, where = options.protected(passages, pair, safe, "certify")
    decoding = Decoding(max_new_tokens, temperature, repetition_penalty)
    rule = DebtRule(prefix_n, debt)  # type: ignore[arg-type]

    from nafaudit.cli.certificate import print_certificate
    from nafaudit.cli.echo import echo
    from nafaudit.cli.progress import CountedLine
    from nafaudit.runner.pairs import named_pair
    from nafaudit.worth.certify import CertifySettings
    from nafaudit.worth.certify import certify as score
    from nafaudit.worth.files import certificate_json, write_certificate

    settings = CertifySettings(
        k=options.budgets(k) or CertifySettings.k,
        decoding=decoding,
        debt=rule,
        given=given,
        window=window,
        threads=threads,
        device=device,
        dtype=dtype,
        trust=options.trust(remote_code, allow_pickle_weights),
    )
    checkpoint = safe or named_pair(pair).locate()[0]
    progress = CountedLine(quiet, "passages")
    certification = score(checkpoint, protected, settings, progress.update)
    progress.close()
    directory = out or Path("certificates") / certification.hash[:10]
    files = write_certificate(certification, directory)
    if as_json:
        import json

        echo(json.dumps({"directory": str(directory), **certificate_json(certification)}, indent=2))
    else:
        print_certificate(certification, where, files, most=show)
