"""The paper's search as a document: its tables, what is wrong with it, and the verdict."""

from __future__ import annotations

import math

from nafaudit.core.finding import Answer
from nafaudit.core.text import name, nats
from nafaudit.mechanisms.cards import verified_with
from nafaudit.paper.loop import Trail
from nafaudit.paper.search import PaperFound
from nafaudit.views.document import Column, Document, Section, Table
from nafaudit.views.search import verdict_lines

_SHOWN = 8
_PROMPT = Column("prompt", write=name, words=True, most=30)


def paper_search_document(found: PaperFound) -> Document:
    """Returns the paper's search as a document."""
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
    ]
    # Defects that occurred, one line each: the first place, and how many there are.
    places: dict[str, list[str]] = {}
    for one in found.findings:
        if one.verdict == Answer.SUSPECT:
            places.setdefault(one.check, []).append(one.text)
    lines.append(
        "defects of the protocol that occurred (none is about the decoder):"
        if places
        else "none of the protocol's known defects occurred"
    )
    for check, texts in places.items():
        more = f" (and in {len(texts) - 1} other places)" if len(texts) > 1 else ""
        lines.append(f"  {check}: {texts[0]}{more}")
    plugin = verified_with(found.settings.mechanism)
    return Document(
        "nafaudit search --protocol paper",
        (
            Section(table=_generations(found.trail)),
            Section(table=_pools(found)),
            Section(table=_rechecks(found)),
            Section(lines=tuple(lines)),
        ),
        "\n".join(verdict_lines(found.found, plugin, "--size recheck_traj=20")),
        files=(f"search directory: {found.found.path}",),
    )


def _generations(trail: Trail) -> Table:
    """The paper's own columns; generation 0 is the first pool."""
    heads = ("raw", "dedup", "length", "screen", "medium", "<0.9", "top-up", "best rho", "drawn")
    ratios = [item.row.rho for item in trail.init if item.row.certified]
    best = _ratio(max(ratios, default=math.nan))
    rows: list[tuple[object, ...]] = [
        (0, len(trail.init), *(None,) * 5, len(ratios), best, trail.init_trajectories)
    ]
    for one in trail.generations:
        admission = one.admission
        rows.append(
            (
                one.generation,
                admission.raw,
                admission.after_dedup,
                admission.after_length,
                len(one.screened.kept),
                len(one.medium),
                one.survivors,
                len(one.promoted),
                _ratio(max((item.row.rho for item in one.archive), default=math.nan)),
                one.trajectories,
            )
        )
    return Table((Column("gen", words=True), *map(Column, heads)), tuple(rows))


def _pools(found: PaperFound) -> Table:
    trail, last = found.trail, found.trail.validation.last
    columns = (
        Column("pool", words=True),
        _PROMPT,
        Column("N"),
        *(Column(head, write=nats) for head in ("mean", "U_EBB", "width", "B_eff")),
        Column("rho"),
    )
    pools = (
        ("final", trail.items(last.final)),
        ("stress", trail.items(last.stress)),
        ("held-out", trail.heldout),
    )
    rows = (
        (
            pool,
            item.candidate.id,
            item.row.n,
            item.row.moments.mean,
            item.row.upper,
            item.row.width,
            item.row.budget,
            _ratio(item.row.rho),
        )
        for pool, items in pools
        for item in items
    )
    return Table(columns, tuple(rows))


def _rechecks(found: PaperFound) -> Table:
    """Flagged prompts: as flagged, then on fresh draws at both budgets."""
    settings = found.settings
    n = settings.sizes.recheck_traj
    fresh = [f"N={n}, k={k:.3g}" for k in (settings.budget, settings.second)]
    columns = (
        Column("flagged in", words=True),
        _PROMPT,
        *map(Column, ("N", "rho", *fresh, "over")),
    )
    rows = (
        (
            one.flag.pool,
            one.flag.item.candidate.id,
            one.flag.item.row.n,
            *map(_ratio, (one.flag.item.row.rho, one.same.rho, one.other.rho)),
            one.same.overspent + one.other.overspent,
        )
        for one in found.rechecks[:_SHOWN]
    )
    return Table(columns, tuple(rows))


def _ratio(value: float) -> str:
    return "invalid" if math.isnan(value) else f"{value:.3f}"


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
        f"{sum(certified)} of {len(rechecks)}"
        for certified in (
            [one.same.certified for one in rechecks],
            [one.other.certified for one in rechecks],
        )
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
