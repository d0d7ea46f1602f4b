"""The paper's search on a terminal: its tables, what is wrong with it, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from textwrap import fill

from rich.console import Console
from rich.table import Table

from nafaudit.cli.numbers import nats
from nafaudit.cli.show_search import plain_table, verdict_lines
from nafaudit.core.finding import Answer
from nafaudit.paper.loop import Trail
from nafaudit.paper.proxy import Item
from nafaudit.paper.search import PaperFound

_ID, _SHOWN = 30, 8


def paper_text(found: PaperFound) -> str:
    """The whole answer, at most 80 columns wide."""
    console = Console(width=80, highlight=False, color_system=None)
    with console.capture() as captured:
        for block in (_generations(found.trail), _pools(found), _rechecks(found)):
            console.print(block)
            console.print()
        for line in _lines(found):
            console.print(line, markup=False, soft_wrap=False)
    return captured.get().rstrip()


def _generations(trail: Trail) -> Table:
    """The paper's own columns; generation 0 is the first pool."""
    columns = ("raw", "dedup", "length", "screen", "medium", "<0.9", "top-up", "best rho", "drawn")
    table = plain_table(("gen",), columns)
    ratios = [item.row.rho for item in trail.init if item.row.certified]
    first = (len(trail.init), *("-",) * 5, len(ratios), _ratio(max(ratios, default=math.nan)))
    table.add_row("0", *map(str, (*first, trail.init_trajectories)))
    for one in trail.generations:
        best = max((item.row.rho for item in one.archive), default=math.nan)
        admission = one.admission
        counts = (admission.raw, admission.after_dedup, admission.after_length)
        late = (len(one.screened.kept), len(one.medium), one.survivors, len(one.promoted))
        cells = (*counts, *late, _ratio(best), one.trajectories)
        table.add_row(str(one.generation), *map(str, cells))
    return table


def _pools(found: PaperFound) -> Table:
    table = plain_table(("pool", "prompt"), ("N", "mean", "U_EBB", "width", "B_eff", "rho"))
    trail, last = found.trail, found.trail.validation.last
    pools: Sequence[tuple[str, Sequence[Item]]] = (
        ("final", trail.items(last.final)),
        ("stress", trail.items(last.stress)),
        ("held-out", trail.heldout),
    )
    for name, items in pools:
        for item in items:
            row = item.row
            numbers = (row.moments.mean, row.upper, row.width, row.budget)
            cells = (str(row.n), *map(nats, numbers), _ratio(row.rho))
            table.add_row(name, _short(item.candidate.id), *cells)
    return table


def _rechecks(found: PaperFound) -> Table:
    """Flagged prompts: as flagged, then on fresh draws at both budgets."""
    settings = found.settings
    n = settings.sizes.recheck_traj
    fresh = [f"N={n}, k={k:.3g}" for k in (settings.budget, settings.second)]
    table = plain_table(("flagged in", "prompt"), ("N", "rho", *fresh, "over"))
    for one in found.rechecks[:_SHOWN]:
        item = one.flag.item
        cells = (str(item.row.n), *map(_ratio, (item.row.rho, one.same.rho, one.other.rho)))
        over = str(one.same.overspent + one.other.overspent)
        table.add_row(one.flag.pool, _short(item.candidate.id), *cells, over)
    return table


def _ratio(value: float) -> str:
    return "invalid" if math.isnan(value) else f"{value:.3f}"


def _short(name: str) -> str:
    return name if len(name) <= _ID else name[: _ID - 3] + "..."


def _lines(found: PaperFound) -> list[str]:
    shares = ", ".join(
        f"{pool} {bad} of {total}" for pool, (bad, total) in found.flagged.pools.items() if total
    )
    rounds = found.trail.validation
    lines = [
        "rho = U_EBB / B_eff is the paper's proxy, and much of it may be its width; it decides "
        "nothing here. invalid: a trajectory ended before its debt was paid",
        f"flagged (rho above 1, or invalid): {shares}",
        *([_recheck_line(found)] if found.rechecks else []),
        f"validation: {len(rounds.rounds)} round(s), {len(rounds.disqualified)} prompts "
        "disqualified with their families",
        f"generalisation gap: {_gap(found.gap.paper)} with {found.gap.invalid} invalid held-out "
        f"rows as 0, {_gap(found.gap.valid)} without",
        _surrogate(found),
        *_findings(found),
    ]
    ends = [
        *verdict_lines(found.found, "--size recheck_traj=20"),
        f"search directory: {found.found.path}",
    ]
    return [*(fill(line, 80, subsequent_indent="  ") for line in lines), *ends]


def _surrogate(found: PaperFound) -> str:
    """Whether it chose; this protocol measures no AUC of it."""
    steps = [step for _, step in found.found.steered]
    chose = sum(step.steers for step in steps)
    line = f"surrogate on {found.embedding}, in the place of Sentence-T5: "
    if not steps:
        return f"{line}chose nothing, as there was no generation"
    line += f"chose in {chose} of {len(steps)} generations"
    if chose < len(steps):
        last = [step for step in steps if not step.steers][-1]
        line += f" (generation {last.generation}: {'; '.join(last.reasons)})"
    return f"{line}; its AUC on held-out rows was never measured" if chose else line


def _gap(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:+.3f}"


def _recheck_line(found: PaperFound) -> str:
    rechecks, k = found.rechecks, found.settings.second
    same, other = (
        _passing(one.same.certified for one in rechecks),
        _passing(one.other.certified for one in rechecks),
    )
    more = len(rechecks) - _SHOWN
    rest = f" ({more} not shown)" if more > 0 else ""
    over = sum(one.same.overspent + one.other.overspent for one in rechecks)
    left = len(found.flagged.flags) - len(rechecks)
    return (
        f"like for like, fresh draws{rest}: {same} pass at the same k, {other} at k = {k:.3g}; "
        f"{over} of their trajectories exceed their budget; {left} flagged prompts not looked at "
        "again"
    )


def _passing(certified: Iterable[bool]) -> str:
    found = list(certified)
    return f"{sum(found)} of {len(found)}"


def _findings(found: PaperFound) -> list[str]:
    """Defects that occurred, one line each: the first place, and how many there are."""
    places: dict[str, list[str]] = {}
    for one in found.findings:
        if one.verdict == Answer.SUSPECT:
            places.setdefault(one.check, []).append(one.text)
    lines = ["defects of the protocol that occurred (none is about the decoder):"]
    for check, texts in places.items():
        more = f" (and in {len(texts) - 1} other places)" if len(texts) > 1 else ""
        lines.append(f"  {check}: {texts[0]}{more}")
    return lines if places else ["none of the protocol's known defects occurred"]
