"""`nafaudit run` and `nafaudit plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from nafaudit.measures.audit import AuditResult
    from nafaudit.runner.gpu import Arithmetic
    from nafaudit.runner.plan import Plan
    from nafaudit.runner.timing import Timing
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
    from nafaudit.runner.execute import run_stage1

    progress = ProgressLine(quiet)
    with resumable(progress):
        outcome = run_stage1(settings, progress.update)
    remark_on_machine(outcome.batch_free, *outcome.remarks)
    paper = _paper_files(outcome.run, quiet) if settings.protocol == "paper" else None
    written = _report(outcome.run)
    result, page = written or (outcome.result, None)
    status = show(result, as_json=as_json, page=page)
    if paper is not None and not as_json:
        typer.echo(f"the paper's files: {paper}")
    raise typer.Exit(status)


def _report(run: Run) -> tuple[AuditResult, Path] | None:
    """Writes the report; if the disk refuses, the verdict is shown all the same."""
    from nafaudit.core.errors import StoreError
    from nafaudit.report.checklist.extra import PAPER_EXTRA
    from nafaudit.views.page import write_report

    try:
        report, files = write_report(run, PAPER_EXTRA)
        return report, files[0]
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

    if gpu is None and (shapes or gpus != 1):
        raise InputError("gpus and shapes are for counting on a GPU: name it, for example h100.")
    hardware = Hardware(gpu, gpus, options.names(shapes) or ()) if gpu else None
    made = make_plan(settings, seconds=seconds, hardware=hardware)
    if as_json:
        import json

        echo(json.dumps(_as_json(made), indent=2))
    else:
        import textwrap

        filled = []
        for line in _as_text(made):
            inner = " " * (len(line) - len(line.lstrip()) + 2)
            filled.append(textwrap.fill(line, 79, subsequent_indent=inner))
        echo("\n".join(filled))


def _as_text(made: Plan) -> list[str]:
    from nafaudit.core.ledger import budget_name

    size = f"{made.prompts} prompts x {len(made.budgets)} budgets x {made.per_prompt}"
    lines = [
        f"{size} = {made.trajectories} trajectories, at most {made.tokens:,} tokens",
        f"classes: {', '.join(f'{name} {n}' for name, n in sorted(made.classes.items()))}",
        f"budgets: {', '.join(budget_name(k) for k in made.budgets)}",
        f"each budget: {made.per_budget} trajectories of {made.prompts} prompts",
        f"  0 violations would mean, at 95 %: below {made.trajectory_rate:.2%} of trajectories,",
        f"  below {made.prompt_rate:.2%} of prompts; a fault that frequent shows 19 times in 20",
    ]
    for rate, n in made.needed.items():
        lines.append(f"  to see a fault of {rate:.1%} of trajectories: {n} trajectories a budget")
    if not made.conclusive:
        lines.append("  too few for a verdict: INCONCLUSIVE below 20 trajectories a budget")
    worth = f"{made.protected} prompts have a protected reference"
    lines.append(f"worth: {worth if made.protected else 'UNKNOWN, as no prompt has a reference'}")
    lines += _time_lines(made)
    if made.arithmetic is not None:
        lines += _gpu_lines(made.arithmetic)
    expected, most = made.bytes_expected / 1e6, made.bytes_at_most / 1e6
    lines.append(f"disk: about {expected:.1f} MB of records, never above {most:.1f} MB")
    return lines


def _time_lines(made: Plan) -> list[str]:
    from nafaudit.cli.progress import duration

    if made.timing is None or made.seconds is None:
        return [f"time: cannot be said: {made.untimed}"]
    timing = made.timing
    return [
        f"time: about {duration(made.seconds)} if no output stops early, as fast as just now",
        f"  ({timing.tokens_per_second:.0f} tokens/s over {timing.tokens} tokens, "
        f"{timing.seconds_per_prompt * 1e3:.0f} ms a prompt, {timing.loading:.1f} s to load)",
        *_price_lines(timing),
    ]


def _price_lines(timing: Timing) -> list[str]:
    if not timing.why:
        return []
    return [
        f"  that is {timing.price:.1f} times as long as with free rows, for every product has a "
        f"constant number of rows here: {timing.why}"
    ]


def _gpu_lines(count: Arithmetic) -> list[str]:
    from nafaudit.cli.progress import duration

    gpu, work = count.gpu, count.work
    billions = [shape.parameters / 1e9 for shape in (count.safe, count.risky)]
    cache, laws = (work.batch * one for one in (count.cache_per_row, count.laws_per_row))
    least, likely = count.step_at_limit, count.step_likely
    fits = f"up to {count.largest_batch} rows fit a GPU" if count.largest_batch else "NO ROW FITS"
    return [
        f"on {count.gpus} x {gpu.name}, by arithmetic from its data sheet, not measured:",
        f"  memory of each: weights {count.weights / 1e9:.1f} GB ({billions[0]:.2f} + "
        f"{billions[1]:.2f} billion, {count.dtype}), cache {cache / 1e9:.1f} GB ({work.batch} rows "
        f"x {work.width} positions), laws {laws / 1e9:.1f} GB: {count.memory / 1e9:.1f} of "
        f"{gpu.memory / 1e9:.0f} GB; {fits}",
        f"  a step of {work.batch} rows: {least * 1e3:.1f} ms at the GPU's limit, likely "
        f"{likely * 1e3:.0f} ms with Transformers' layers, solver and noise",
        f"  time: {duration(count.seconds_at_limit)} at the limit, likely "
        f"{duration(count.seconds_likely)} if no output stops early; prompts of about "
        f"{work.prompt_tokens:.0f} tokens (4 characters each) are read in it",
    ]


def _gpu_json(count: Arithmetic) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "gpu": asdict(count.gpu),
        "gpus": count.gpus,
        "safe": asdict(count.safe) | {"parameters": count.safe.parameters},
        "risky": asdict(count.risky) | {"parameters": count.risky.parameters},
        "dtype": count.dtype,
        "work": asdict(count.work),
        "bytes": {
            "weights": count.weights,
            "cache_per_row": count.cache_per_row,
            "laws_per_row": count.laws_per_row,
            "worker": count.memory,
        },
        "largest_batch": count.largest_batch,
        "step_seconds": {"at_limit": count.step_at_limit, "likely": count.step_likely},
        "seconds": {"at_limit": count.seconds_at_limit, "likely": count.seconds_likely},
    }


def _as_json(made: Plan) -> dict[str, Any]:
    from dataclasses import asdict

    from nafaudit.core.text import as_number

    return {
        "prompts": made.prompts,
        "classes": dict(made.classes),
        "budgets": [as_number(k) for k in made.budgets],
        "trajectories_per_prompt": made.per_prompt,
        "trajectories_per_budget": made.per_budget,
        "trajectories": made.trajectories,
        "tokens_at_most": made.tokens,
        "conclusive": made.conclusive,
        "protected_prompts": made.protected,
        "level": made.level,
        "upper_limit_if_none": {"trajectories": made.trajectory_rate, "prompts": made.prompt_rate},
        "trajectories_to_see": {f"{rate:g}": n for rate, n in made.needed.items()},
        "bytes": {"expected": made.bytes_expected, "at_most": made.bytes_at_most},
        "seconds": made.seconds,
        "timing": asdict(made.timing) if made.timing else None,
        "untimed": made.untimed or None,
        "arithmetic": _gpu_json(made.arithmetic) if made.arithmetic else None,
    }
