"""`nafaudit certify`, `attack` and `frontier`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from nafaudit.workload.passages import Passage
    from nafaudit.worth.attack import Told


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

    import json

    from nafaudit.cli.echo import echo
    from nafaudit.cli.progress import CountedLine
    from nafaudit.core.text import plain
    from nafaudit.runner.pairs import named_pair
    from nafaudit.views.terminal import terminal
    from nafaudit.views.worth import certificate_document, write_certificate
    from nafaudit.worth.certify import CertifySettings
    from nafaudit.worth.certify import certify as score

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
    found = score(checkpoint, protected, settings, progress.update)
    progress.close()
    directory = out or Path("certificates") / found.hash[:10]
    files = write_certificate(found, directory)
    if as_json:
        echo(json.dumps({"directory": str(directory), **plain(found)}, indent=2))
    else:
        echo(terminal(certificate_document(found, where, files, most=show)))
    raise typer.Exit(found.overall.exit_status)


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
        _attack(help="Largest number of passages; 0 for all. Default: 16."),
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
    from nafaudit.core.text import plain
    from nafaudit.views.terminal import terminal
    from nafaudit.views.worth import attack_document, write_attack
    from nafaudit.worth.attack import run_attack
    from nafaudit.worth.attack_result import attack_result

    progress = ProgressLine(quiet)

    def tell(told: Told) -> None:
        progress.line(_describe(told), told.seconds)

    with resumable(progress):
        attacked = run_attack(protected, settings, tell)
    remark_on_machine(attacked.batch_free, attacked.mixed, attacked.remark)
    found = attack_result(attacked)
    files = write_attack(found)
    text = json.dumps(plain(found), indent=2) if as_json else ""
    echo(text or terminal(attack_document(found, where, files)))
    raise typer.Exit(found.overall.exit_status)


def _describe(told: Told) -> str:
    parts = [f"{told.stage}: {told.done}/{told.total} answers"]
    if told.seconds > 0:
        parts.append(f"{told.tokens / told.seconds:.0f} tokens/s")
    return ", ".join(parts)


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
    limit: Annotated[int, typer.Option(help="Largest number of texts of a kind; 0 for all.")] = 16,
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
    everyday = _ordinary(ordinary, pair, safe)
    decoding = Decoding(max_new_tokens, temperature, repetition_penalty)
    rule = DebtRule(prefix_n, debt)  # type: ignore[arg-type]

    import json

    from nafaudit.cli.echo import echo
    from nafaudit.cli.progress import CountedLine
    from nafaudit.core.text import plain
    from nafaudit.runner.pairs import named_pair
    from nafaudit.views.terminal import terminal
    from nafaudit.views.worth import frontier_document, write_frontier
    from nafaudit.worth.frontier import FrontierSettings
    from nafaudit.worth.frontier import frontier as follow
    from nafaudit.worth.matched import frontier_result

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
    followed = follow(checkpoints, protected, everyday, settings, progress.update)
    progress.close()
    found = frontier_result(followed)
    directory = out or Path("frontiers") / found.hash[:10]
    files = write_frontier(found, directory)
    if as_json:
        echo(json.dumps({"frontier": str(directory), **plain(found)}, indent=2))
    else:
        echo(terminal(frontier_document(found, where, files)))
    raise typer.Exit(found.overall.exit_status)


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
