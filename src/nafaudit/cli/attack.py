"""`nafaudit attack`: what can be reconstructed while every query stays in budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from nafaudit.worth.attack import Told

_attack = options.panel("The attack")


def attack(
    passages: Annotated[
        Path | None,
        typer.Argument(
            help="Text with blank lines between passages, or JSON Lines with 'text' and 'id'. "
            "Default: the pair's own."
        ),
    ] = None,
    pair: options.Pair = None,
    safe: options.Safe = None,
    risky: options.Risky = None,
    mechanism: options.Mechanism = None,
    k: Annotated[
        list[str] | None,
        options.audited_option(metavar="K,...", help="Budgets of a query. Default: 1,5,10,20."),
    ] = None,
    limit: Annotated[
        int | None,
        _attack(help="At most so many passages; 0 for all. Default: 16."),
    ] = None,
    given: Annotated[
        int | None,
        _attack(help="Opening tokens that the attacker knows. Default: 25."),
    ] = None,
    modes: Annotated[
        list[str] | None,
        _attack(metavar="MODE,...", help="oracle, chained; single is always there."),
    ] = None,
    window: Annotated[
        list[str] | None,
        _attack(metavar="N,...", help="Tokens that one window query asks for. Default: 50."),
    ] = None,
    attempts: Annotated[
        int | None,
        _attack(help="How often each query is asked. Default: 2."),
    ] = None,
    ablation: Annotated[
        bool | None,
        _attack(help="Attack without the prefix debt too. Default: yes."),
    ] = None,
    target: Annotated[
        float | None,
        _attack(help="Recall whose budget is looked for. Default: 0.1."),
    ] = None,
    user_budget: Annotated[
        list[str] | None,
        _attack(metavar="B,...", help="Total nats of a user. Default: 100,200,400,800,1600."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        options.decoding_option(help="Most tokens of a passage that are asked for. Default: 200."),
    ] = None,
    temperature: options.Temperature = None,
    repetition_penalty: options.RepetitionPenalty = None,
    prefix_n: options.PrefixN = None,
    prefix_debt: options.PrefixDebt = None,
    debt: options.Debt = None,
    seed: Annotated[int | None, options.machine_option(help="Run seed. Default: 0.")] = None,
    batch: options.Batch = None,
    threads: options.Threads = None,
    mixed: options.Mixed = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    out: Annotated[
        str | None,
        options.machine_option(help="Directory. Default: runs/attack-<design hash>."),
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
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
    from nafaudit.cli.progress import ProgressLine, remark_on_machine, resumable
    from nafaudit.cli.show_attack import EXIT, attack_text
    from nafaudit.worth.attack import run_attack
    from nafaudit.worth.attack_files import attack_json, write_attack
    from nafaudit.worth.attack_result import Answered

    progress = ProgressLine(quiet)

    def tell(told: Told) -> None:
        progress.line(_describe(told), told.seconds)

    with resumable(progress):
        attacked = run_attack(protected, settings, tell)
    remark_on_machine(attacked.batch_free, attacked.mixed, attacked.remark)
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
