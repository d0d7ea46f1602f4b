"""The checklist of a run, from its records alone."""

from __future__ import annotations

import math

from nafaudit.core.ledger import is_baseline
from nafaudit.core.text import name
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.classes import ClassRow
from nafaudit.report.agreement import out_of_step
from nafaudit.report.checklist.anchors import anchors
from nafaudit.report.checklist.items import (
    HIGH_RATIO,
    MIN_EXECUTIONS,
    MIN_TRAJECTORIES,
    Answer,
    Item,
    judged,
    not_applicable,
)
from nafaudit.report.checklist.ratios import Ratio, ratios
from nafaudit.report.checklist.search import seeds, surrogate
from nafaudit.store.gaps import Missing

_METRICS = {"near_verbatim_recall": "near-verbatim recall", "rouge_l_f1": "ROUGE-L"}


def of_run(report: AuditResult, second: AuditResult | None = None) -> list[Item]:
    """All seven items.

    Args:
        report: A run, judged.
        second: A run with another anchor, for the first item.
    """
    prompts = ratios(report)
    rows = [row for row in report.classes.rows if not is_baseline(row.k)]
    items = [
        anchors(report, second),
        _executions(rows),
        _agreement(rows),
        _floor(prompts),
        _widths(prompts),
        surrogate(report.search),
        seeds(report.search),
    ]
    lacking = [side.gaps for side in (report, second) if side is not None and side.gaps is not None]
    return [_open(item, lacking[0]) for item in items] if lacking else items


def _open(item: Item, gaps: Missing) -> Item:
    """An item that the records of an unfinished run cannot pass."""
    if item.answer != Answer.PASS:
        return item
    text = f"the run is unfinished: {gaps.brief}; of what is there: {item.text}"
    return not_applicable(item.number, text, "run the same command again to finish")


def _executions(rows: list[ClassRow]) -> Item:
    if not rows:
        return not_applicable(2, "no budget was audited", "nafaudit run --k 1,3,5")
    fewest = min(rows, key=lambda row: row.trajectories)
    over = [row for row in rows if row.passes_seen is False]
    unknown = [row for row in rows if row.passes_seen is None]
    text = f"fewest executions: {fewest.trajectories}, {_cell(fewest)}"
    if over:
        worst = max(over, key=_excess)
        value = worst.paper_seen.value if worst.paper_seen else math.nan
        text += f"; U_EBB (R_eff) above K in {len(over)} of {len(rows)} cells, most in "
        text += f"{_cell(worst)}: {value:.1f} against {worst.budget:g}"
    elif unknown:
        text += f"; K or spends are not known in {len(unknown)} of {len(rows)} cells"
    else:
        text += "; U_EBB (R_eff) <= K in every cell"
    enough = fewest.trajectories >= MIN_EXECUTIONS
    if enough and unknown and not over:
        return not_applicable(2, text, "give the log's length limit: --max-new-tokens")
    return judged(2, enough and not over, text, _more(fewest, enough), fewest.trajectories)


def _more(fewest: ClassRow, enough: bool) -> str:
    if enough:
        return "read the classes above K: nafaudit check"
    needed = math.ceil(MIN_EXECUTIONS / max(1, fewest.prompts))
    return f"the same run with --trajectories {needed}, or with more prompts in the class"


def _excess(row: ClassRow) -> float:
    return row.paper_seen.value / row.budget if row.paper_seen and row.budget > 0 else math.inf


def _agreement(rows: list[ClassRow]) -> Item:
    odd: list[str] = []
    compared = 0
    used = ""
    for k in sorted({(row.mechanism, row.k) for row in rows}):
        cells = [row for row in rows if (row.mechanism, row.k) == k]
        metric = next((m for m in _METRICS if sum(_known(row, m) for row in cells) > 1), None)
        if metric is None:
            continue
        compared, used = compared + 1, _METRICS[metric]
        known = [row for row in cells if _known(row, metric)]
        spend = {row.label: row.mean for row in known}
        overlap = {row.label: row.copying.mean(metric) for row in known}
        found = out_of_step(spend, overlap)
        odd += [f"{name(label)} at k = {k[1]:g} ({how})" for label, how in found.items()]
    if not compared:
        return not_applicable(
            3,
            "fewer than two classes have references that outputs were compared with",
            "give prompts of several classes a reference (docs: --data, --prompts)",
        )
    text = f"{len(odd)} classes out of step over {compared} budgets, by {used} in thirds"
    text += f": {'; '.join(odd[:3])}{' ...' if len(odd) > 3 else ''}" if odd else ""
    return judged(3, not odd, text, "read these classes' outputs: nafaudit report", len(odd))


def _known(row: ClassRow, metric: str) -> bool:
    return not (math.isnan(row.mean) or math.isnan(row.copying.mean(metric)))


def _floor(prompts: list[Ratio]) -> Item:
    known = [row for row in prompts if not math.isnan(row.rho)]
    if not known:
        return not_applicable(4, "no prompt has a ratio", "a log with spends and budgets is needed")
    high = [row for row in known if row.rho > HIGH_RATIO]
    few = [row for row in high if row.n < MIN_TRAJECTORIES]
    text = f"{len(few)} of {len(high)} prompts with rho > {HIGH_RATIO} have fewer than "
    text += f"{MIN_TRAJECTORIES} trajectories ({len(known)} prompts and budgets have a ratio)"
    if few:
        worst = max(few, key=lambda row: row.rho)
        text += f"; highest: {name(worst.prompt)} at k = {worst.k:g}, rho {worst.rho:.2f}, "
        text += f"N = {worst.n}"
    todo = f"the same run with --trajectories {MIN_TRAJECTORIES}"
    return judged(4, not few, text, todo, len(few))


def _widths(prompts: list[Ratio]) -> Item:
    if not prompts:
        return not_applicable(5, "no prompt has an estimate", "a log with spends is needed")
    single = [row for row in prompts if math.isnan(row.width)]
    widest = max((row for row in prompts if row not in single), key=lambda r: r.width, default=None)
    text = f"{len(prompts) - len(single)} of {len(prompts)} per-prompt estimates have a width"
    if widest is not None:
        text += f", the widest {widest.width:.1f} nats on a mean of {widest.mean:.1f} "
        text += f"(N = {widest.n}); --json prints all of them"
    todo = "one trajectory has no variance: the same run with --trajectories 2 or more"
    return judged(5, not single, text, todo, widest.width if widest else math.nan)


def _cell(row: ClassRow) -> str:
    return f"class {name(row.label)} at k = {row.k:g}"
