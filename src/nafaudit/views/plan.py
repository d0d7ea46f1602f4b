"""A plan of a run: how many trajectories, what they could show, how long they take."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nafaudit.core.ledger import budget_name, budgets_and_baselines
from nafaudit.core.text import counted, duration, plain
from nafaudit.views.document import Document, Section

if TYPE_CHECKING:
    from nafaudit.runner.gpu import Arithmetic
    from nafaudit.runner.plan import Plan


def plan_document(made: Plan) -> Document:
    """Returns a plan as a document."""
    arms = budgets_and_baselines(made.budgets)
    size = f"{counted(made.prompts, 'prompt')} x ({arms}) x {made.per_prompt}"
    alone = [budget_name(k) for k in made.budgets if k not in made.audited]
    lines = [
        f"{size} = {made.trajectories} trajectories, at most {made.tokens:,} tokens",
        f"classes: {', '.join(f'{name} {n}' for name, n in sorted(made.classes.items()))}",
        f"budgets: {', '.join(map(budget_name, made.audited)) or 'none'}",
        f"baselines: {', '.join(alone) or 'none'}",
        f"each budget: {made.per_budget} trajectories of {counted(made.prompts, 'prompt')}",
        f"  0 violations would mean, at 95 %: below {made.trajectory_rate:.2%} of trajectories, "
        f"below {made.prompt_rate:.2%} of prompts; a fault that frequent shows 19 times in 20",
    ]
    for rate, n in made.needed.items():
        lines.append(f"  to see a fault of {rate:.1%} of trajectories: {n} trajectories a budget")
    worth = f"{made.protected} prompts have a protected reference"
    lines.append(f"worth: {worth if made.protected else 'UNKNOWN, as no prompt has a reference'}")
    if made.timing is None or made.seconds is None:
        lines.append(f"decoding: not timed: {made.untimed}")
    else:
        timing = made.timing
        lines += [
            f"decoding: about {duration(made.seconds)} if no output stops early, as fast as just "
            "now; starting, the machine's probes and the report come on top",
            f"  ({timing.tokens_per_second:.0f} tokens/s over {timing.tokens} tokens, "
            f"{timing.seconds_per_prompt * 1e3:.0f} ms a prompt, {timing.loading:.1f} s to load)",
        ]
        if timing.workers > 1:
            lines.append(f"  in {timing.workers} processes, if as many cores are free")
        if timing.why:
            lines.append(
                f"  that is {timing.price:.1f} times as long as with free rows, for every product "
                f"has a constant number of rows here: {timing.why}"
            )
    if made.arithmetic is not None:
        lines += _gpu_lines(made.arithmetic)
    expected, most = made.bytes_expected / 1e6, made.bytes_at_most / 1e6
    lines.append(f"disk: about {expected:.1f} MB of records, never above {most:.1f} MB")
    return Document("nafaudit plan", (Section(lines=tuple(lines)),), answer=made.overall)


def _gpu_lines(count: Arithmetic) -> list[str]:
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


def plan_json(made: Plan) -> dict[str, Any]:
    """Returns a plan as strict JSON."""
    count = made.arithmetic
    found = {
        **plain(made.overall),
        "prompts": made.prompts,
        "classes": made.classes,
        "budgets": made.budgets,
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
        "timing": made.timing,
        "untimed": made.untimed or None,
        "arithmetic": None,
    }
    if count is not None:
        found["arithmetic"] = {
            "gpu": count.gpu,
            "gpus": count.gpus,
            "safe": asdict(count.safe) | {"parameters": count.safe.parameters},
            "risky": asdict(count.risky) | {"parameters": count.risky.parameters},
            "dtype": count.dtype,
            "work": count.work,
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
    shown: dict[str, Any] = plain(found)
    return shown
