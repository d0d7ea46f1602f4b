"""`nafaudit search`: stage 2."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from nafaudit.search.evaluate import Told


def search(
    design: Annotated[
        Path | None, typer.Argument(help="TOML file with the names of these options.")
    ] = None,
    pair: Annotated[str | None, typer.Option(help="A registered pair. Default: lab.")] = None,
    safe: Annotated[str | None, typer.Option(help="Safe checkpoint: directory or hub id.")] = None,
    risky: Annotated[
        str | None, typer.Option(help="Risky checkpoint: directory or hub id.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help="JSON Lines file of prompts. Default: the pair's own.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Directory with the paper's six files of prompts.")
    ] = None,
    classes: Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help="Only these classes. Default: all.")
    ] = None,
    cap: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=N", help="Most prompts of a class; may be repeated."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most so many prompts; 0 for all. Default: 0.")
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="Name, or package.module:Class. Default: anchored.")
    ] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="The budget, in nats per token. Default: 1."),
    ] = None,
    searches: Annotated[int | None, typer.Option(help="Independent searches. Default: 2.")] = None,
    pool: Annotated[
        int | None, typer.Option(help="Prompts that a search starts from. Default: 12.")
    ] = None,
    generations: Annotated[
        int | None, typer.Option(help="Rounds of new prompts. Default: 2.")
    ] = None,
    proposals: Annotated[
        int | None, typer.Option(help="Prompts proposed in a generation. Default: 24.")
    ] = None,
    screened: Annotated[
        int | None, typer.Option(help="How many of them get a trajectory. Default: 12.")
    ] = None,
    draws: Annotated[
        int | None, typer.Option(help="Trajectories of a generation. Default: 72.")
    ] = None,
    survivors: Annotated[
        int | None, typer.Option(help="Prompts of a generation never dropped. Default: 2.")
    ] = None,
    parents: Annotated[
        int | None, typer.Option(help="Prompts the next generation is made of. Default: 6.")
    ] = None,
    finalists: Annotated[
        int | None, typer.Option(help="Prompts of a search that are confirmed. Default: 2.")
    ] = None,
    fresh: Annotated[
        int | None, typer.Option(help="Fresh trajectories of each finalist. Default: 24.")
    ] = None,
    heldout: Annotated[
        int | None, typer.Option(help="Prompts that no search sees. Default: 10.")
    ] = None,
    heldout_draws: Annotated[
        int | None, typer.Option(help="Trajectories of each of these. Default: 4.")
    ] = None,
    shortest: Annotated[
        int | None, typer.Option(help="Fewest tokens of a prompt. Default: 20.")
    ] = None,
    longest: Annotated[
        int | None, typer.Option(help="Most tokens of a prompt. Default: 250.")
    ] = None,
    operators: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Ways to make prompts. Default: all."),
    ] = None,
    proposer: Annotated[
        str | None,
        typer.Option(
            help="Who makes them: local, transformers:PATH_OR_HUB_ID, or openai:MODEL with "
            "--proposer-url. Default: local."
        ),
    ] = None,
    proposer_url: Annotated[
        str | None,
        typer.Option(
            help="Server of an openai proposer, such as http://127.0.0.1:8000/v1; its key is "
            "NAFAUDIT_API_KEY in the environment."
        ),
    ] = None,
    proposer_attempts: Annotated[
        int | None, typer.Option(help="Most attempts at each question to it. Default: 4.")
    ] = None,
    proposer_timeout: Annotated[
        float | None, typer.Option(help="Seconds that an answer may take. Default: 120.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Level of all limits together. Default: 0.05.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Length limit T. Default: 64.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="On both models, before the solve. Default: 1.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="On both models, before the solve. Default: 1.")
    ] = None,
    prefix_n: Annotated[
        int | None, typer.Option(help="Prompt tokens that make up the debt. Default: 5.")
    ] = None,
    prefix_debt: Annotated[
        bool | None, typer.Option(help="Charge prompts a prefix debt. Default: yes.")
    ] = None,
    debt: Annotated[
        str | None, typer.Option(help="Definition: positives or official. Default: positives.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of run and search. Default: 0.")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Rows decoded together; changes speed only. Default: 32.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Torch threads. Default: 1.")] = None,
    device: Annotated[str | None, typer.Option(help="Torch device. Default: cpu.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Precision of the forward passes. Default: float32.")
    ] = None,
    chat_template: options.ChatTemplate = None,
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    ray: Annotated[str | None, typer.Option(hidden=True)] = None,
    out: Annotated[
        str | None, typer.Option(help="Run directory. Default: runs/search-<design hash>.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Can an adversary find a prompt that drives spend to the budget?

    Looks for one, confirms what it found on fresh draws, and says whether it beats its controls.
    Running the same command again resumes it. A violation becomes a bundle for nafaudit verify.

    Example: nafaudit search --k 0.5 --generations 1
    """
    given = dict(locals())
    from nafaudit.core.settings import load_settings_of
    from nafaudit.search.settings import SearchSettings

    overrides = {n: v for n, v in given.items() if n not in ("design", "quiet", "as_json")}
    lists = {
        "k": options.budgets(k),
        "classes": options.names(classes),
        "cap": options.caps(cap),
        "operators": options.names(operators),
        "remote_code": options.names(remote_code),
    }
    settings = load_settings_of(SearchSettings, design, overrides | lists)

    import json

    from nafaudit.cli.echo import echo
    from nafaudit.cli.progress import ProgressLine
    from nafaudit.cli.show_search import EXIT, search_text
    from nafaudit.search.result import search_json, write_result
    from nafaudit.search.run import run_search

    progress = ProgressLine(quiet)

    def tell(told: Told) -> None:
        progress.line(_describe(told), told.seconds)

    try:
        found = run_search(settings, tell)
    except KeyboardInterrupt:
        progress.close()
        typer.echo(
            "nafaudit: stopped; what was finished is recorded. The same command resumes.", err=True
        )
        raise typer.Exit(130) from None
    progress.close()
    if not found.batch_free:
        typer.echo(
            "nafaudit: on this machine a row's last bits depend on its batch (try --threads 1); "
            "a resumed search may go another way.",
            err=True,
        )
    write_result(found)
    echo(json.dumps(search_json(found), indent=2) if as_json else search_text(found))
    raise typer.Exit(EXIT[found.outcome])


def _describe(told: Told) -> str:
    parts = [f"{told.stage}: {told.done}/{told.total} {told.unit}"]
    if told.seconds > 0:
        parts.append(f"{told.tokens / told.seconds:.0f} tokens/s")
    if told.worst >= 0:
        parts.append(f"worst utilisation {told.worst:.1%}")
    return ", ".join(parts)
