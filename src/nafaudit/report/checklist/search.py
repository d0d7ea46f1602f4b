"""Items 6 and 7: what a search says of its surrogate and of its seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nafaudit.core.text import name, percent
from nafaudit.report.checklist.items import MIN_AUC, MIN_SEEDS, Item, judged, not_applicable
from nafaudit.views.search import by_paper, number, part, rows, text, texts


def surrogate(found: Mapping[str, Any] | None) -> Item:
    """Item 6: was a surrogate validated before a search relied on it?

    One that was switched off is not relied on, whatever its AUC.
    """
    if found is None:
        return not_applicable(
            6,
            "no prompt search was run, so there is no surrogate",
            f"nafaudit search; its surrogate needs an AUC of at least {MIN_AUC} on held-out rows",
        )
    asked = rows(part(found, "surrogate"), "gates")
    steering = [row for row in asked if row.get("steers") is True]
    paper = by_paper(found)
    if not steering:
        why = _unready(asked) if paper else _unsteered(asked)
        return not_applicable(6, why, "nothing to pass: no surrogate is relied on")
    lowest = min(steering, key=lambda row: _known(number(row, "auc")))
    auc = number(lowest, "auc")
    which = (
        f"search seed {number(lowest, 'seed'):.0f}, generation {number(lowest, 'generation'):.0f}"
    )
    share = f"it steered {len(steering)} of {len(asked)} generations"
    if paper and math.isnan(auc):
        none = "no AUC on held-out rows was measured (protocol paper)"
        return judged(6, False, f"{share}, and {none}", _GATED)
    if math.isnan(auc):
        return judged(6, False, f"{share}, and no AUC is recorded ({which})", _RAISE)
    text = f"{share}; lowest AUC on prompts it never saw {auc:.2f} ({which})"
    return judged(6, auc >= MIN_AUC, text, _RAISE, auc)


_RAISE = "more prompts with more trajectories each for the surrogate to learn from, or none of it"


_GATED = (
    "nafaudit search without --protocol paper: its surrogate steers only if it passes on prompts "
    "it never saw"
)


def _unready(asked: list[dict[str, Any]]) -> str:
    """Why the paper's surrogate, which needs archived prompts and no test, never steered."""
    if not asked:
        return "no surrogate steers this search: it has no generation"
    reasons = list(dict.fromkeys(name(one) for row in asked for one in texts(row, "reasons")))
    why = f": {'; '.join(reasons[-3:])}" if reasons else ""
    return f"the surrogate was never ready, so that none steers this search{why}"


def _unsteered(asked: list[dict[str, Any]]) -> str:
    if not asked:
        return "no surrogate steers this search: prompts are ranked by what they spent"
    values = [auc for row in asked if not math.isnan(auc := number(row, "auc"))]
    seen = f" (its best AUC: {max(values):.2f})" if values else ""
    reasons = list(dict.fromkeys(name(one) for row in asked for one in texts(row, "reasons")))
    why = f": {'; '.join(reasons[:3])}" if reasons else ""
    return f"the surrogate did not pass its gate and was switched off{seen}{why}"


def _known(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def seeds(found: Mapping[str, Any] | None) -> Item:
    """Item 7: was the search repeated, and how far do its best prompts vary?"""
    if found is None:
        return not_applicable(
            7,
            "no prompt search was run, so no archive maximum can vary",
            f"nafaudit search with at least {MIN_SEEDS} different --seed",
        )
    mine = {
        number(row, "seed")
        for row in rows(found, "generations")
        if (text(row, "strategy") or "search") == "search" and not math.isnan(number(row, "seed"))
    }
    if not mine:
        return not_applicable(
            7, "the search does not say its seeds", f"nafaudit search --searches {MIN_SEEDS}"
        )
    maxima = part(part(found, "spread"), "search").get("maxima")
    values = [number({"x": one}, "x") for one in maxima] if isinstance(maxima, list) else []
    shown = ", ".join(percent(value) for value in values)
    text_ = f"{len(mine)} search seed{'s' if len(mine) > 1 else ''}"
    if shown:
        text_ += f"; best prompt of each on fresh draws: {shown}"
    known = [value for value in values if math.isfinite(value)]
    if len(known) > 1:
        text_ += f" (a range of {100 * (max(known) - min(known)):.1f} points)"
    todo = f"nafaudit search with --searches {MIN_SEEDS} or more"
    return judged(7, len(mine) >= MIN_SEEDS, text_, todo, len(mine))
