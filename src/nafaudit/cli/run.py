"""`nafaudit run` and `nafaudit plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nafaudit.checks import ArmResult
    from nafaudit.store.run import Run


def run(
    design: Annotated[
        Path | None, typer.Argument(help="TOML file with the names of these options.")
    ] = None,
    pair: options.Pair = None,
    safe: options.Safe = None,
    risky: options.Risky = None,
    prompts: options.Prompts = None,
    mechanism: options.Mechanism = None,
    decoder: Annotated[
        str | None,
        options.audited_option(
            help="A black box: package.module:Class, file.py:Class, anchoreddecode."
        ),
    ] = None,
    decoder_python: Annotated[
        str | None,
        options.audited_option(help="Interpreter that runs the decoder. Default: this one."),
    ] = None,
    decoder_timeout: Annotated[
        float | None,
        options.audited_option(help="Seconds for its answer to a batch. Default: 300."),
    ] = None,
    k: Annotated[
        list[str] | None,
        options.audited_option(
            metavar="K,...", help="Budgets in nats per token. Default: 0.25,1,10."
        ),
    ] = None,
    trajectories: Annotated[
        int | None,
        options.audited_option(help="Executions per prompt and budget. Default: 2."),
    ] = None,
    limit: Annotated[
        int | None,
        options.prompts_option(
            help="Largest number of prompts; 0 for all. Default: 48 of the lab's."
        ),
    ] = None,
    data: options.Data = None,
    classes: options.Classes = None,
    cap: options.Cap = None,
    protocol: Annotated[
        str | None,
        options.protocol_option(
            help="sound, or paper: its seeds, k 3,5, 10 each, its files. Default: sound."
        ),
    ] = None,
    variant: options.Variant = None,
    baselines: Annotated[
        bool | None,
        options.protocol_option(
            help="Run each model alone too; only the paper goes without. Default: yes."
        ),
    ] = None,
    delta: Annotated[
        float | None,
        options.protocol_option(
            help="Level of all mean bounds together, over classes x budgets. Default: 0.05."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, options.decoding_option(help="Length limit T. Default: 200.")
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
    safe_device: Annotated[
        str | None,
        options.machine_option(help="Another device for the safe model. Default: the same."),
    ] = None,
    together: Annotated[
        bool | None,
        options.machine_option("--together", help="Both models step at once; changes speed only."),
    ] = None,
    speculate: Annotated[
        int | None,
        options.machine_option(
            help="The safe model guesses so many tokens ahead; speed only. Default: 0."
        ),
    ] = None,
    dtype: options.Dtype = None,
    chat_template: options.ChatTemplate = None,
    remote_code: options.RemoteCode = None,
    allow_pickle_weights: options.PickleWeights = None,
    ray: Annotated[
        str | None,
        options.machine_option(
            metavar="[ADDRESS]",
            help="Decode on a Ray cluster: this machine's own, auto, or HOST:PORT.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        options.machine_option(help="Ray processes, each with a pair. Default: all that fit."),
    ] = None,
    out: Annotated[
        str | None,
        options.machine_option(help="Run directory. Default: runs/run-<design hash>."),
    ] = None,
    top_k: options.Refused = None,
    top_p: options.Refused = None,
    greedy: options.RefusedGreedy = None,
    num_beams: options.Refused = None,
    min_p: options.Refused = None,
    typical_p: options.Refused = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Does the mechanism stay in budget over a fixed workload?

    Writes a run directory and its report; running the same command again resumes it.

    Example: nafaudit run --k 0.5,3 --trajectories 2
    """
    given = dict(locals())
    from nafaudit.core.design import REFUSED_DECODING, refuse_after_solve
    from nafaudit.core.settings import load_settings

    refused = [name for name in REFUSED_DECODING if name in given]
    refuse_after_solve({name: given[name] for name in refused if given[name] is not None})
    own = ("design", "quiet", "as_json", *refused)
    overrides = {name: value for name, value in given.items() if name not in own}
    lists = {
        "k": options.budgets(k),
        "classes": options.names(classes),
        "cap": options.caps(cap),
        "remote_code": options.names(remote_code),
    }
    settings = load_settings(design, overrides | lists)
    options.refuse_code_of(design, settings, overrides)

    from nafaudit.cli.progress import ProgressLine, remark_on_machine, resumable
    from nafaudit.cli.show import show
    from nafaudit.runner import execute

    progress = ProgressLine(quiet)
    with resumable(progress):
        outcome = execute.run(settings, progress.update)
    remark_on_machine(outcome.batch_free, *outcome.remarks)
    paper = _paper_files(outcome.run, quiet) if settings.protocol == "paper" else None
    written = _report(outcome.run)
    arms, page = written or (outcome.arms, None)
    status = show(outcome.run, arms, as_json=as_json, page=page)
    if paper is not None and not as_json:
        typer.echo(f"the paper's files: {paper}")
    raise typer.Exit(status)


def _report(run: Run) -> tuple[Sequence[ArmResult], Path] | None:
    """Writes the report; if the disk refuses, the verdict is shown all the same."""
    from nafaudit.core.errors import StoreError
    from nafaudit.paper.checklist_run import PAPER_EXTRA
    from nafaudit.views.page import write_report

    try:
        report, files = write_report(run, PAPER_EXTRA)
        return report.arms, files[0]
    except StoreError as error:
        typer.echo(f"nafaudit: no report: {error} Or: nafaudit report {run.path}", err=True)
        return None


def _paper_files(run: Run, quiet: bool) -> Path | None:
    """Writes the paper's files; if the disk refuses, the verdict is shown all the same."""
    if not quiet:
        typer.echo("writing the paper's files", err=True)
    from nafaudit.core.errors import StoreError
    from nafaudit.store.paper_files import write_paper_files

    try:
        return write_paper_files(run, run.path / "paper", replace=True)[0].parent
    except StoreError as error:
        typer.echo(f"nafaudit: {error} Or: nafaudit export {run.path} --paper", err=True)
        return None


def plan(
    design: Annotated[
        Path | None, typer.Argument(help="TOML file with the names of nafaudit run's options.")
    ] = None,
    pair: options.Pair = None,
    safe: options.Safe = None,
    risky: options.Risky = None,
    prompts: options.Prompts = None,
    data: options.Data = None,
    classes: options.Classes = None,
    cap: options.Cap = None,
    protocol: Annotated[str | None, typer.Option(help="sound or paper.")] = None,
    mechanism: options.Mechanism = None,
    k: Annotated[
        list[str] | None, typer.Option(metavar="K,...", help="Budgets in nats per token.")
    ] = None,
    trajectories: Annotated[
        int | None, typer.Option(help="Executions per prompt and budget.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Largest number of prompts; 0 for all.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Length limit T.")] = None,
    batch: options.Batch = None,
    threads: options.Threads = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    gpu: Annotated[
        str | None, typer.Option(help="Count memory and time on this GPU, for example h100.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="How many, each with its own pair.")] = 1,
    shapes: Annotated[
        list[str] | None,
        typer.Option(metavar="SAFE,RISKY", help="Models to count: names, or config.json files."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to time decoding; 0: not at all.")] = 3.0,
    as_json: options.Json = False,
) -> None:
    """How many trajectories, how long, what could be detected?

    Decodes for a few seconds and records nothing; without torch or models it still counts.

    Example: nafaudit plan --trajectories 10 --limit 0

    Example: nafaudit plan --pair paper --protocol paper --gpu h100 --gpus 8
    """
    given = dict(locals())
    from nafaudit.core.settings import load_settings

    own = ("design", "seconds", "as_json", "gpu", "gpus", "shapes")
    overrides = {name: value for name, value in given.items() if name not in own}
    lists = {"k": options.budgets(k), "classes": options.names(classes), "cap": options.caps(cap)}
    settings = load_settings(design, overrides | lists)
    options.refuse_code_of(design, settings, overrides)

    from nafaudit.cli.echo import echo
    from nafaudit.core.errors import InputError
    from nafaudit.runner.plan import Hardware
    from nafaudit.runner.plan import plan as make_plan
    from nafaudit.views.plan import plan_document, plan_json
    from nafaudit.views.terminal import terminal

    if gpu is None and (shapes or gpus != 1):
        raise InputError("gpus and shapes are for counting on a GPU: name it, for example h100.")
    hardware = Hardware(gpu, gpus, options.names(shapes) or ()) if gpu else None
    made = make_plan(settings, seconds=seconds, hardware=hardware)
    if as_json:
        import json

        echo(json.dumps(plan_json(made), indent=2))
    else:
        echo(terminal(plan_document(made)))
    raise typer.Exit(made.overall.exit_status)
