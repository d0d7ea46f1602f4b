"""`nafaudit attack`: what can be reconstructed while every query stays in budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from nafaudit.worth.attack import Told


def attack(
    passages: Annotated[
        Path | None,
        typer.Argument(
            help="Text with blank lines between passages, or JSON Lines with 'text' and 'id'. "
            "Default: the pair's own."
        ),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="A registered pair. Default: lab.")] = None,
    safe: Annotated[str | None, typer.Option(help="Safe checkpoint: directory or hub id.")] = None,
    risky: Annotated[
        str | None, typer.Option(help="Risky checkpoint: directory or hub id.")
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="Name, or package.module:Class. Default: anchored.")
    ] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(metavar="K,...", help="Budgets of a query. Default: 1,5,10,20."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most so many passages; 0 for all. Default: 16.")
    ] = None,
    given: Annotated[
        int | None, typer.Option(help="Opening tokens that the attacker knows. Default: 25.")
    ] = None,
    modes: Annotated[
        list[str] | None,
        typer.Option(metavar="MODE,...", help="oracle, chained; single is always there."),
    ] = None,
    window: Annotated[
        list[str] | None,
        typer.Option(metavar="N,...", help="Tokens that one window query asks for. Default: 50."),
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(help="How often each query is asked. Default: 2.")
    ] = None,
    ablation: Annotated[
        bool | None, typer.Option(help="Attack without the prefix debt too. Default: yes.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Recall whose budget is looked for. Default: 0.1.")
    ] = None,
    user_budget: Annotated[
        list[str] | None,
        typer.Option(metavar="B,...", help="Total nats of a user. Default: 100,200,400,800,1600."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a passage that are asked for. Default: 200.")
    ] = None,
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
    seed: Annotated[int | None, typer.Option(help="Run seed. Default: 0.")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Rows decoded together; changes speed only. Default: 32.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Torch threads. Default: 1.")] = None,
    device: Annotated[str | None, typer.Option(help="Torch device. Default: cpu.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Precision of the forward passes. Default: float32.")
    ] = None,
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    out: Annotated[
        str | None, typer.Option(help="Directory. Default: runs/attack-<design hash>.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """What can be reconstructed while every query stays in budget?

    Asks for protected passages in one answer, window after window, and along its own answers.
    Running the same command again resumes it. Exit status 3 if the risky model alone recalls
    too little for an attack to mean anything.

    Example: nafaudit attack --k 5,20 --limit 10 --modes oracle
    """
    given_options = dict(locals())
    from nafaudit.core.settings import load_settings_of
    from nafaudit.worth.settings import AttackSettings

    own = ("passages", "quiet", "as_json", "attempts", "user_budget")
    overrides = {name: value for name, value in given_options.items() if name not in own}
    lists = {
        "k": options.budgets(k),
        "modes": options.names(modes),
        "window": options.whole_numbers(window, "window"),
        "trajectories": attempts,
        "remote_code": options.names(remote_code),
        "user_budgets": options.numbers(
            user_budget, "user-budget must be numbers of nats, for example 100,400"
        ),
    }
    settings = load_settings_of(AttackSettings, None, overrides | lists)
    protected, where = options.protected(passages, settings.pair, settings.safe, "attack")

    import json

    from nafaudit.cli.echo import echo
    from nafaudit.cli.progress import ProgressLine
    from nafaudit.cli.show_attack import EXIT, attack_text
    from nafaudit.worth.attack import run_attack
    from nafaudit.worth.attack_files import attack_json, write_attack
    from nafaudit.worth.attack_result import Answered

    progress = ProgressLine(quiet)

    def tell(told: Told) -> None:
        progress.line(_describe(told), told.seconds)

    try:
        attacked = run_attack(protected, settings, tell)
    except KeyboardInterrupt:
        progress.close()
        typer.echo(
            "nafaudit: stopped; what was finished is recorded. The same command resumes.", err=True
        )
        raise typer.Exit(130) from None
    progress.close()
    if not attacked.batch_free:
        typer.echo(
            "nafaudit: on this machine a row's last bits depend on its batch (try --threads 1); "
            "a resumed attack may go another way.",
            err=True,
        )
    answered = Answered(attacked)
    files = write_attack(answered)
    text = json.dumps(attack_json(answered), indent=2) if as_json else ""
    echo(text or attack_text(answered, where, files))
    raise typer.Exit(EXIT[answered.outcome])


def _describe(told: Told) -> str:
    parts = [f"{told.stage}: {told.done}/{told.total} answers"]
    if told.seconds > 0:
        parts.append(f"{told.tokens / told.seconds:.0f} tokens/s")
    return ", ".join(parts)
