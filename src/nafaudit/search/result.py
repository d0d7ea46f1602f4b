"""What a search says, as plain data: the one form behind `--json` and RUN/search.json."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nafaudit.report.result import as_number
from nafaudit.search.confirm import Comparison, Finalist, Interval
from nafaudit.search.explore import SEARCH, STRATEGIES, Explored
from nafaudit.search.run import Found
from nafaudit.store.files import write_whole


def search_json(found: Found) -> dict[str, Any]:
    """Everything that a search found; strict JSON, NaN and infinity as strings."""
    held = found.heldout
    return {
        "run": str(found.path),
        "outcome": str(found.outcome),
        "k": found.settings.budget,
        "delta": found.settings.delta,
        "looked": found.looked,
        "trajectories": found.trajectories,
        "violating_prompts": found.violating,
        "generations": [row for one in found.explored for row in _generations(one)],
        "finalists": [_finalist(one) for one in found.finalists],
        "controls": [_finalist(one) for one in found.controls],
        "comparisons": [_comparison(one) for one in found.comparisons],
        "spread": {who: _spread(found, who) for who in STRATEGIES},
        "heldout": {
            "prompts": held.prompts,
            "trajectories": held.trajectories,
            "use": _interval(held.use),
            "highest": as_number(held.highest),
            "gap": as_number(held.gap),
        },
        "proposer": dict(found.proposer),
        "counterexamples": [str(path) for path in found.counterexamples],
    }


def write_result(found: Found) -> Path:
    """Writes RUN/search.json; the same records give the same bytes."""
    path = found.path / "search.json"
    write_whole(path, json.dumps(search_json(found), indent=2).encode() + b"\n")
    return path


def archive_maxima(found: Found, strategy: str) -> list[float]:
    """Confirmed utilisation of the first finalist of every search seed."""
    everyone: Sequence[Finalist] = (*found.finalists, *found.controls)
    return [one.use.mean for one in everyone if one.strategy == strategy and one.rank == 1]


def _spread(found: Found, strategy: str) -> dict[str, Any]:
    maxima = archive_maxima(found, strategy)
    known = [value for value in maxima if not math.isnan(value)]
    apart = max(known) - min(known) if known else math.nan
    return {"maxima": [as_number(value) for value in maxima], "range": as_number(apart)}


def _generations(one: Explored) -> list[dict[str, Any]]:
    """Generations of the search itself carry no other name than their seed."""
    where = {"strategy": one.strategy, "seed": one.seed}
    return [where | asdict(row) | {"best": as_number(row.best)} for row in one.generations]


def _interval(found: Interval) -> dict[str, Any]:
    return {name: as_number(value) for name, value in asdict(found).items()}


def _finalist(one: Finalist) -> dict[str, Any]:
    return {
        "strategy": one.strategy,
        "seed": one.seed,
        "rank": one.rank,
        **{
            name: getattr(one.candidate, name)
            for name in ("id", "text", "label", "generation", "operator", "lineage")
        },
        "parents": list(one.candidate.parents),
        "promised": as_number(one.promised),
        "draws": one.draws,
        "fresh": one.fresh,
        "unspent": one.unspent,
        "use": _interval(one.use),
        "worst": as_number(one.worst),
        "violations": one.violations,
        "rate_upper": as_number(one.rate),
        "spend": as_number(one.spend),
        "risky_alone": as_number(one.risky),
    }


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        "control": one.control,
        "answer": one.answer,
        "difference": as_number(one.difference),
        "low": as_number(one.low),
        "high": as_number(one.high),
        "search": _interval(one.search),
        "other": _interval(one.other),
    }


def only_search(found: Found) -> list[Explored]:
    """The searches without their controls."""
    return [one for one in found.explored if one.strategy == SEARCH]
