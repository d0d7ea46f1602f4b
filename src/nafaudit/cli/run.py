"""`nafaudit run` and `nafaudit plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nafaudit.checks import ArmResult
    from nafaudit.core.settings import PlanSettings, RunSettings
    from nafaudit.runner.gpu import Arithmetic
    from nafaudit.runner.plan import Plan, Timing
    from nafaudit.store.run import Run


def run(settings: RunSettings, *, quiet: bool, as_json: bool) -> int:
    """Does the mechanism stay in budget over a fixed workload?

    Writes a run directory and its report; running the same command again resumes it.

    Example: nafaudit run --k 0.5,3 --trajectories 2
    """
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
        click.echo(f"the paper's files: {paper}")
    return status


def _report(run: Run) -> tuple[Sequence[ArmResult], Path] | None:
    """Writes the report; if the disk refuses, the verdict is shown all the same."""
    from nafaudit.core.errors import StoreError
    from nafaudit.report.checklist.extra import PAPER_EXTRA
    from nafaudit.views.page import write_report

    try:
        report, files = write_report(run, PAPER_EXTRA)
        return report.arms, files[0]
    except StoreError as error:
        click.echo(f"nafaudit: no report: {error} Or: nafaudit report {run.path}", err=True)
        return None


def _paper_files(run: Run, quiet: bool) -> Path | None:
    """Writes the paper's files; if the disk refuses, the verdict is shown all the same."""
    if not quiet:
        click.echo("writing the paper's files", err=True)
    from nafaudit.core.errors import StoreError
    from nafaudit.store.paper_files import write_paper_files

    try:
        return write_paper_files(run, run.path / "paper", replace=True)[0].parent
    except StoreError as error:
        click.echo(f"nafaudit: {error} Or: nafaudit export {run.path} --paper", err=True)
        return None


def plan(settings: PlanSettings, *, as_json: bool) -> None:
    """How many trajectories, how long, what could be detected?

    Decodes for a few seconds and records nothing; without torch or models it still counts.

    Example: nafaudit plan --trajectories 10 --limit 0

    Example: nafaudit plan --pair paper --protocol paper --gpu h100 --gpus 8
    """
    from nafaudit.cli.echo import echo
    from nafaudit.runner.plan import Hardware
    from nafaudit.runner.plan import plan as make_plan

    hardware = None
    if settings.gpu:
        hardware = Hardware(settings.gpu, settings.gpus, settings.shapes)
    made = make_plan(settings, seconds=settings.seconds, hardware=hardware)
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
    from nafaudit.views.words import budget_name

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

    from nafaudit.report.result import as_number

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
