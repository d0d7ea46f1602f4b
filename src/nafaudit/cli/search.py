"""`nafaudit search`: stage 2."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options
from nafaudit.cli.echo import echo
from nafaudit.cli.progress import ProgressLine

if TYPE_CHECKING:
    from nafaudit.search.evaluate import Told

MODELS, PROMPTS, SEARCH = "What is searched", "Prompts to start from", "The search"
SURROGATE, CONFIRM, STUDY = "Surrogate", "Confirmation on fresh draws", "Study"
DECODING, MACHINE, PROPOSER = "Decoding", "Run", "Proposer"
PAPER = "Protocol"


def search(
    design: Annotated[
        Path | None, typer.Argument(help="TOML file with the names of these options.")
    ] = None,
    pair: Annotated[
        str | None, typer.Option(help="A registered pair. Default: lab.", rich_help_panel=MODELS)
    ] = None,
    safe: Annotated[
        str | None,
        typer.Option(help="Safe checkpoint: directory or hub id.", rich_help_panel=MODELS),
    ] = None,
    risky: Annotated[
        str | None,
        typer.Option(help="Risky checkpoint: directory or hub id.", rich_help_panel=MODELS),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="Name, or package.module:Class. Default: anchored.", rich_help_panel=MODELS
        ),
    ] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K,...",
            help="Budgets in nats per token; several are searched in turn. Default: 3.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="JSON Lines file of prompts. Default: the pair's own.", rich_help_panel=PROMPTS
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Directory with the paper's six files of prompts.", rich_help_panel=PROMPTS
        ),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help="Classes to start from. Default: the ordinary ones of the lab; all of yours.",
            rich_help_panel=PROMPTS,
        ),
    ] = None,
    cap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=N",
            help="Most prompts of a class; may be repeated.",
            rich_help_panel=PROMPTS,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="At most so many prompts; 0 for all. Default: 0.", rich_help_panel=PROMPTS
        ),
    ] = None,
    shortest: Annotated[
        int | None,
        typer.Option(help="Fewest tokens of a prompt. Default: 20.", rich_help_panel=PROMPTS),
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(help="Most tokens of a prompt. Default: 250.", rich_help_panel=PROMPTS),
    ] = None,
    searches: Annotated[
        int | None, typer.Option(help="Independent searches. Default: 2.", rich_help_panel=SEARCH)
    ] = None,
    pool: Annotated[
        int | None,
        typer.Option(
            help="Prompts that a search starts from. Default: 12.", rich_help_panel=SEARCH
        ),
    ] = None,
    generations: Annotated[
        int | None, typer.Option(help="Rounds of new prompts. Default: 2.", rich_help_panel=SEARCH)
    ] = None,
    proposals: Annotated[
        int | None,
        typer.Option(help="Prompts proposed in a generation. Default: 24.", rich_help_panel=SEARCH),
    ] = None,
    screened: Annotated[
        int | None,
        typer.Option(
            help="How many of them get a trajectory. Default: 12.", rich_help_panel=SEARCH
        ),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(help="Trajectories of a generation. Default: 72.", rich_help_panel=SEARCH),
    ] = None,
    survivors: Annotated[
        int | None,
        typer.Option(
            help="Prompts of a generation never dropped. Default: 2.", rich_help_panel=SEARCH
        ),
    ] = None,
    parents: Annotated[
        int | None,
        typer.Option(
            help="Prompts the next generation is made of. Default: 6.", rich_help_panel=SEARCH
        ),
    ] = None,
    operators: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...", help="Ways to make prompts. Default: all.", rich_help_panel=SEARCH
        ),
    ] = None,
    proposer: Annotated[
        str | None,
        typer.Option(
            help="Who makes them: local, transformers:PATH_OR_HUB_ID, or openai:MODEL with "
            "--proposer-url. Default: local.",
            rich_help_panel=PROPOSER,
        ),
    ] = None,
    proposer_url: Annotated[
        str | None,
        typer.Option(
            help="Server of an openai proposer, such as http://127.0.0.1:8000/v1; its key is "
            "NAFAUDIT_API_KEY in the environment.",
            rich_help_panel=PROPOSER,
        ),
    ] = None,
    proposer_attempts: Annotated[
        int | None,
        typer.Option(
            help="Most attempts at each question to it. Default: 4.", rich_help_panel=PROPOSER
        ),
    ] = None,
    proposer_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds that an answer may take. Default: 120.", rich_help_panel=PROPOSER
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            help="What is built upon: dpp (diverse) or elites (best of each kind). Default: dpp.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    surrogate: Annotated[
        str | None,
        typer.Option(
            help="auto: chooses among proposals if it passes its gate; off. Default: auto.",
            rich_help_panel=SURROGATE,
        ),
    ] = None,
    training: Annotated[
        int | None,
        typer.Option(
            help="Prompts that teach it first, 10 trajectories each. Default: 0.",
            rich_help_panel=SURROGATE,
        ),
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(
            help="What it sees of a text: auto, tfidf or minilm. Default: auto.",
            rich_help_panel=SURROGATE,
        ),
    ] = None,
    finalists: Annotated[
        int | None,
        typer.Option(
            help="Prompts of a search that are confirmed. Default: 2.", rich_help_panel=CONFIRM
        ),
    ] = None,
    fresh: Annotated[
        int | None,
        typer.Option(
            help="Fresh trajectories of each finalist. Default: 24.", rich_help_panel=CONFIRM
        ),
    ] = None,
    heldout: Annotated[
        int | None,
        typer.Option(help="Prompts that no search sees. Default: 10.", rich_help_panel=CONFIRM),
    ] = None,
    heldout_draws: Annotated[
        int | None,
        typer.Option(help="Trajectories of each of these. Default: 4.", rich_help_panel=CONFIRM),
    ] = None,
    others: Annotated[
        str | None,
        typer.Option(
            help="JSON Lines of held-out prompts of other kinds. Default: the pair's own.",
            rich_help_panel=CONFIRM,
        ),
    ] = None,
    passages: Annotated[
        str | None,
        typer.Option(
            help="Protected text that outputs are compared with. Default: the pair's own.",
            rich_help_panel=CONFIRM,
        ),
    ] = None,
    above: Annotated[
        float | None,
        typer.Option(
            help="Name prompts that use more than this share. Default: 0.5.",
            rich_help_panel=CONFIRM,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Level of all limits together. Default: 0.05.", rich_help_panel=CONFIRM),
    ] = None,
    study: Annotated[
        bool,
        typer.Option(
            "--study",
            help="Does search work here? Ten seeds, and a planted prompt.",
            rich_help_panel=STUDY,
        ),
    ] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Length limit T. Default: 64.", rich_help_panel=DECODING)
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="On both models, before the solve. Default: 1.", rich_help_panel=DECODING
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            help="On both models, before the solve. Default: 1.", rich_help_panel=DECODING
        ),
    ] = None,
    prefix_n: Annotated[
        int | None,
        typer.Option(
            help="Prompt tokens that make up the debt. Default: 5.", rich_help_panel=DECODING
        ),
    ] = None,
    prefix_debt: Annotated[
        bool | None,
        typer.Option(help="Charge prompts a prefix debt. Default: yes.", rich_help_panel=DECODING),
    ] = None,
    debt: Annotated[
        str | None,
        typer.Option(
            help="Definition: positives or official. Default: positives.", rich_help_panel=DECODING
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of run and search. Default: 0.", rich_help_panel=MACHINE),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Rows decoded together; changes speed only. Default: 32.", rich_help_panel=MACHINE
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Torch threads. Default: 1.", rich_help_panel=MACHINE)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Torch device. Default: cpu.", rich_help_panel=MACHINE)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Precision of the forward passes. Default: float32.", rich_help_panel=MACHINE
        ),
    ] = None,
    chat_template: options.ChatTemplate = None,
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    ray: Annotated[str | None, typer.Option(hidden=True)] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Run directory. Default: runs/search-<design hash>.", rich_help_panel=MACHINE
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=PAPER, help="sound, or paper: the paper's search. Default: sound."
        ),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=PAPER,
            help="Where the paper's text and code differ: code or text. Default: code.",
        ),
    ] = None,
    fix: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=PAPER,
            metavar="NAME,...",
            help="The paper's own recommendations: min-n, width, reff. Default: none.",
        ),
    ] = None,
    topup_fraction: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=PAPER,
            help="Share of a pool that is topped up; its k = 5 table needs 0.75. Default: 0.5.",
        ),
    ] = None,
    second_k: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=PAPER,
            help="Second budget for flagged prompts. Default: 5/3 of k, as 5 is of 3.",
        ),
    ] = None,
    init: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=PAPER,
            metavar="CLASS=N,...",
            help="Prompts that it starts from. Default: attack_train=48,factual=24,creative=24.",
        ),
    ] = None,
    heldout_class: Annotated[
        str | None,
        typer.Option(rich_help_panel=PAPER, help="Class of the held-out pool. Default: test."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=PAPER,
            metavar="NAME=N,...",
            help="Other sizes than the paper's, by its names: generations=1,init_traj=4.",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No progress.", rich_help_panel=MACHINE)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead.", rich_help_panel=MACHINE)
    ] = False,
) -> None:
    """Can an adversary find a prompt that drives spend to the budget?

    Looks for one, confirms what it found on fresh draws, and says whether it beats its controls.
    Running the same command again resumes it. A violation becomes a bundle for nafaudit verify.

    Example: nafaudit search --k 1,3,5 --generations 1
    """
    given = dict(locals())
    from nafaudit.search.paper_settings import PaperSettings
    from nafaudit.search.protocols import search_settings

    overrides = {n: v for n, v in given.items() if n not in ("design", "quiet", "as_json", "study")}
    lists = {
        "k": options.budgets(k),
        "classes": options.names(classes),
        "cap": options.caps(cap),
        "operators": options.names(operators),
        "remote_code": options.names(remote_code),
        "init": options.counts(init, "init", "CLASS=N, for example --init test=24"),
        "size": options.counts(size, "size", "NAME=N, for example --size generations=1"),
    }
    settings = search_settings(design, overrides | lists, study=study)

    from nafaudit.cli.search_answers import answer_paper, answer_search, answer_study, described

    progress = ProgressLine(quiet)

    def tell(told: Told) -> None:
        progress.line(described(told), told.seconds)

    try:
        if isinstance(settings, PaperSettings):
            text, status = answer_paper(settings, tell, as_json)
        else:
            text, status = (answer_study if study else answer_search)(settings, tell, as_json)
    except KeyboardInterrupt:
        progress.close()
        typer.echo(
            "nafaudit: stopped; what was finished is recorded. The same command resumes.", err=True
        )
        raise typer.Exit(130) from None
    progress.close()
    echo(text)
    raise typer.Exit(status)
