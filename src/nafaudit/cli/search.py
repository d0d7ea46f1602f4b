"""`nafaudit search`: stage 2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nafaudit.cli import options
from nafaudit.cli.echo import echo
from nafaudit.cli.progress import ProgressLine, resumable

_search, _proposer = options.panel("The search"), options.panel("Proposer")
_confirm = options.panel("Confirmation on fresh draws")
_Removed = Annotated[str | None, typer.Option(hidden=True)]


def search(
    design: Annotated[
        Path | None, typer.Argument(help="TOML file with the names of these options.")
    ] = None,
    pair: options.Pair = None,
    safe: options.Safe = None,
    risky: options.Risky = None,
    mechanism: options.Mechanism = None,
    k: Annotated[
        list[str] | None,
        options.audited_option(
            metavar="K,...",
            help="Budgets in nats per token; several are searched in turn. Default: 3.",
        ),
    ] = None,
    prompts: options.Prompts = None,
    data: options.Data = None,
    classes: Annotated[
        list[str] | None,
        options.prompts_option(
            metavar="NAME,...",
            help="Classes to start from. Default: the ordinary ones of the lab; all of yours.",
        ),
    ] = None,
    cap: options.Cap = None,
    limit: Annotated[
        int | None, options.prompts_option(help="Largest number of prompts; 0 for all. Default: 0.")
    ] = None,
    shortest: Annotated[
        int | None, options.prompts_option(help="Fewest tokens of a prompt. Default: 20.")
    ] = None,
    longest: Annotated[
        int | None, options.prompts_option(help="Most tokens of a prompt. Default: 250.")
    ] = None,
    searches: Annotated[int | None, _search(help="Independent searches. Default: 2.")] = None,
    pool: Annotated[
        int | None, _search(help="Prompts that a search starts from. Default: 12.")
    ] = None,
    generations: Annotated[int | None, _search(help="Rounds of new prompts. Default: 2.")] = None,
    proposals: Annotated[
        int | None, _search(help="Prompts proposed in a generation. Default: 24.")
    ] = None,
    screened: Annotated[
        int | None, _search(help="How many of them get a trajectory. Default: 12.")
    ] = None,
    draws: Annotated[int | None, _search(help="Trajectories of a generation. Default: 72.")] = None,
    survivors: Annotated[
        int | None, _search(help="Prompts of a generation never dropped. Default: 2.")
    ] = None,
    parents: Annotated[
        int | None, _search(help="Prompts the next generation is made of. Default: 6.")
    ] = None,
    operators: Annotated[
        list[str] | None, _search(metavar="NAME,...", help="Ways to make prompts. Default: all.")
    ] = None,
    proposer: Annotated[
        str | None,
        _proposer(
            help="Who makes them: local, transformers:PATH_OR_HUB_ID, or openai:MODEL with "
            "--proposer-url. Default: local."
        ),
    ] = None,
    proposer_url: Annotated[
        str | None,
        _proposer(
            help="Server of an openai proposer, such as http://127.0.0.1:8000/v1; its key is "
            "NAFAUDIT_API_KEY in the environment."
        ),
    ] = None,
    proposer_attempts: Annotated[
        int | None, _proposer(help="Most attempts at each question to it. Default: 4.")
    ] = None,
    proposer_timeout: Annotated[
        float | None, _proposer(help="Seconds that an answer may take. Default: 120.")
    ] = None,
    finalists: Annotated[
        int | None, _confirm(help="Prompts of a search that are confirmed. Default: 2.")
    ] = None,
    fresh: Annotated[
        int | None, _confirm(help="Fresh trajectories of each finalist. Default: 24.")
    ] = None,
    heldout: Annotated[
        int | None, _confirm(help="Prompts that no search sees. Default: 10.")
    ] = None,
    heldout_draws: Annotated[
        int | None, _confirm(help="Trajectories of each of these. Default: 4.")
    ] = None,
    others: Annotated[
        str | None,
        _confirm(help="JSON Lines of held-out prompts of other kinds. Default: the pair's own."),
    ] = None,
    passages: Annotated[
        str | None,
        _confirm(help="Protected text that outputs are compared with. Default: the pair's own."),
    ] = None,
    above: Annotated[
        float | None, _confirm(help="Name prompts that use more than this share. Default: 0.5.")
    ] = None,
    delta: Annotated[
        float | None, _confirm(help="Level of all limits together. Default: 0.05.")
    ] = None,
    protocol: Annotated[
        str | None,
        options.protocol_option(help="sound, or paper: the paper's search. Default: sound."),
    ] = None,
    variant: options.Variant = None,
    fix: Annotated[
        str | None,
        options.protocol_option(
            metavar="NAME",
            help="The paper's own recommendation: min-n, at least 20 draws where a first rho is "
            "above 0.9. Default: none.",
        ),
    ] = None,
    topup_fraction: Annotated[
        float | None,
        options.protocol_option(
            help="Share of a pool that is topped up; its k = 5 table needs 0.75. Default: 0.5."
        ),
    ] = None,
    second_k: Annotated[
        float | None,
        options.protocol_option(
            help="Second budget for flagged prompts. Default: 5/3 of k, as 5 is of 3."
        ),
    ] = None,
    init: Annotated[
        list[str] | None,
        options.protocol_option(
            metavar="CLASS=N,...",
            help="Prompts that it starts from. Default: attack_train=48,factual=24,creative=24.",
        ),
    ] = None,
    heldout_class: Annotated[
        str | None, options.protocol_option(help="Class of the held-out pool. Default: test.")
    ] = None,
    size: Annotated[
        list[str] | None,
        options.protocol_option(
            metavar="NAME=N,...",
            help="Other sizes than the paper's, by its names: generations=1,init_traj=4.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, options.decoding_option(help="Length limit T. Default: 64.")
    ] = None,
    temperature: options.Temperature = None,
    repetition_penalty: options.RepetitionPenalty = None,
    prefix_n: options.PrefixN = None,
    prefix_debt: options.PrefixDebt = None,
    debt: options.Debt = None,
    seed: Annotated[
        int | None, options.machine_option(help="Seed of run and search. Default: 0.")
    ] = None,
    batch: options.Batch = None,
    threads: options.Threads = None,
    mixed: options.Mixed = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    chat_template: options.ChatTemplate = None,
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    ray: _Removed = None,
    archive: _Removed = None,
    surrogate: _Removed = None,
    training: _Removed = None,
    embedding: _Removed = None,
    study: Annotated[bool, typer.Option("--study", hidden=True)] = False,
    out: Annotated[
        str | None,
        options.machine_option(help="Run directory. Default: runs/search-<design hash>."),
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Can an adversary find a prompt that drives spend to the budget?

    Looks for one, confirms what it found on fresh draws, and says whether it beats its controls.
    Running the same command again resumes it. A violation becomes a bundle for nafaudit verify.

    Example: nafaudit search --k 1,3,5 --generations 1
    """
    given = dict(locals())
    from nafaudit.search.paper_settings import PaperSettings
    from nafaudit.search.protocols import search_settings
    from nafaudit.search.settings import SearchSettings

    overrides = {n: v for n, v in given.items() if n not in ("design", "quiet", "as_json")}
    lists = {
        "k": options.budgets(k),
        "classes": options.names(classes),
        "cap": options.caps(cap),
        "operators": options.names(operators),
        "remote_code": options.names(remote_code),
        "init": options.counts(init, "init", "CLASS=N, for example --init test=24"),
        "size": options.counts(size, "size", "NAME=N, for example --size generations=1"),
    }
    settings = search_settings(design, overrides | lists, PaperSettings)
    options.refuse_code_of(design, settings, overrides)

    from nafaudit.cli.search_answers import answer_paper, answer_search

    progress = ProgressLine(quiet)
    with resumable(progress):
        if isinstance(settings, PaperSettings):
            text, status = answer_paper(settings, progress.update, as_json)
        else:
            assert isinstance(settings, SearchSettings)
            text, status = answer_search(settings, progress.update, as_json)
    echo(text)
    raise typer.Exit(status)
