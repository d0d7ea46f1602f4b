"""`nafaudit frontier`: price, fidelity and leakage of every mechanism and budget from one pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from nafaudit.workload.passages import Passage


def frontier(
    passages: Annotated[
        Path | None,
        typer.Argument(
            help="Protected text: blank lines between passages, or JSON Lines with 'text'. "
            "Default: the pair's own."
        ),
    ] = None,
    ordinary: Annotated[
        Path | None, typer.Option(help="Ordinary text, in the same form. Default: the pair's own.")
    ] = None,
    pair: Annotated[str, typer.Option(help="A registered pair.")] = "lab",
    safe: Annotated[str | None, typer.Option(help="Safe checkpoint: directory or hub id.")] = None,
    risky: Annotated[
        str | None, typer.Option(help="Risky checkpoint: directory or hub id.")
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="May be repeated; the others are compared with the first. "
            "Default: anchored, renyi:2, renyi:4, pathwise.",
        ),
    ] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(metavar="K,...", help="Budgets. Default: 0.1,0.25,0.5,1,3,10."),
    ] = None,
    given: Annotated[int, typer.Option(help="Tokens of each text that are its prompt.")] = 25,
    window: Annotated[int, typer.Option(help="Tokens over which leakage is stated.")] = 50,
    limit: Annotated[int, typer.Option(help="At most so many texts of a kind; 0 for all.")] = 16,
    max_new_tokens: Annotated[
        int, typer.Option(help="Most tokens of a text that are followed.")
    ] = 200,
    temperature: Annotated[float, typer.Option(help="On both models, before the solve.")] = 1.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="On both models, before the solve.")
    ] = 1.0,
    prefix_n: Annotated[
        int, typer.Option(help="Prompt tokens that make up the debt; 0 for none.")
    ] = 5,
    debt: Annotated[
        str, typer.Option(help="Definition: positives or official, each also with -raw.")
    ] = "positives",
    threads: Annotated[
        int, typer.Option(help="Torch threads, 1 or 2; two where no bit changes.")
    ] = 1,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Precision of the forward passes.")] = "float32",
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    out: Annotated[Path | None, typer.Option(help="Directory. Default: frontiers/<hash>.")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """What does each budget buy on ordinary text, and what does it give away of protected text?

    Follows both kinds of text once with both models; decodes nothing. Exit status 3 if the
    protected text is less likely than under the safe model alone: then it is the wrong text.

    Example: nafaudit frontier --mechanism anchored --mechanism renyi:2 --k 0.5,3
    """
    from nafaudit.core.debt import DebtRule
    from nafaudit.core.design import Decoding
    from nafaudit.core.errors import InputError

    if (safe is None) != (risky is None):
        raise InputError("safe and risky belong together: give both, or neither and a --pair.")
    protected, where = options.protected(passages, pair, safe, "frontier")
    plain = _ordinary(ordinary, pair, safe)
    decoding = Decoding(max_new_tokens, temperature, repetition_penalty)
    rule = DebtRule(prefix_n, debt)  # type: ignore[arg-type]

    import json

    from nafaudit.cli.echo import echo
    from nafaudit.cli.progress import CountedLine
    from nafaudit.cli.show_frontier import frontier_text
    from nafaudit.runner.pairs import named_pair
    from nafaudit.worth.frontier import FrontierSettings
    from nafaudit.worth.frontier import frontier as follow
    from nafaudit.worth.frontier_files import frontier_json, write_frontier
    from nafaudit.worth.matched import Reading

    settings = FrontierSettings(
        mechanisms=tuple(mechanism) if mechanism else FrontierSettings.mechanisms,
        k=options.budgets(k) or FrontierSettings.k,
        decoding=decoding,
        debt=rule,
        given=given,
        window=window,
        limit=limit,
        threads=threads,
        device=device,
        dtype=dtype,
        trust=options.trust(remote_code, allow_pickle_weights),
    )
    checkpoints = (safe, risky) if safe and risky else named_pair(pair).locate()
    progress = CountedLine(quiet, "texts")
    found = follow(checkpoints, protected, plain, settings, progress.update)
    progress.close()
    reading = Reading(found)
    directory = out or Path("frontiers") / found.hash[:10]
    files = write_frontier(reading, directory)
    if as_json:
        echo(json.dumps({"frontier": str(directory), **frontier_json(reading)}, indent=2))
    else:
        echo(frontier_text(reading, where, files))
    raise typer.Exit(0 if reading.bracketed else 3)


def _ordinary(path: Path | None, pair: str, safe: str | None) -> list[Passage]:
    from nafaudit.core.errors import InputError
    from nafaudit.runner.pairs import named_pair
    from nafaudit.workload.passages import read_passages

    if path is not None:
        return read_passages(path)
    found = [] if safe is not None else named_pair(pair).ordinary()
    if not found:
        what = "your own models have" if safe is not None else f"pair {pair} has"
        raise InputError(
            f"{what} no ordinary text; give --ordinary FILE: text that neither model memorised, "
            "with blank lines between passages."
        )
    return found
