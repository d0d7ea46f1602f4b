"""What a search says, as plain data: the one form behind `--json` and RUN/search.json."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nafaudit.core.text import as_number
from nafaudit.measures.audit import key_json
from nafaudit.search.confirm import Comparison, Copied, Finalist, HeldOut, Interval
from nafaudit.search.explore import STRATEGIES, Explored
from nafaudit.search.found import Found
from nafaudit.store.files import write_whole


def search_json(found: Found) -> dict[str, Any]:
    """Everything that a search found; strict JSON, NaN and infinity as strings."""
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
        "heldout": _heldout(found.heldout),
        "proposer": dict(found.proposer),
        "counterexamples": [str(path) for path in found.counterexamples],
        "others": [_heldout(one) for one in found.others],
        "named": {
            "above": found.named.above,
            "asked": found.named.asked,
            "looked": found.named.looked,
            "shared": list(found.named.shared),
            "discovered": list(found.named.discovered),
        },
        "overlap": None if found.overlaps is None else _overlaps(found),
        "archive": found.settings.archive,
        "surrogate": _surrogate(found),
    }


def write_result(found: Found) -> Path:
    """Writes RUN/search.json; the same records give the same bytes."""
    path = found.path / "search.json"
    write_whole(path, json.dumps(search_json(found), indent=2).encode() + b"\n")
    return path


def _heldout(held: HeldOut) -> dict[str, Any]:
    return {
        "kind": held.kind,
        "prompts": held.prompts,
        "trajectories": held.trajectories,
        "use": _interval(held.use),
        "highest": as_number(held.highest),
        "gap": as_number(held.gap),
    }


def _overlaps(found: Found) -> dict[str, Any]:
    """Of everything drawn under the budget, and of the fresh draws of what was confirmed."""
    assert found.overlaps is not None
    chosen = dict.fromkeys(one.candidate.id for one in (*found.finalists, *found.controls))
    return {
        "passages": found.overlaps.passages,
        "everything": _copied(found.overlaps.everything),
        "confirmed": {
            name: _copied(found.overlaps.by_prompt.get(name, Copied())) for name in chosen
        },
    }


def _copied(one: Copied) -> dict[str, Any]:
    return {
        "trajectories": one.trajectories,
        "repeating": one.repeating,
        "words": one.words,
        "passage": one.passage,
        "where": None if one.key is None else key_json(one.key),
        "near_verbatim_recall": one.recall,
    }


def _surrogate(found: Found) -> dict[str, Any]:
    """What the paper's surrogate did; nothing is measured of it."""
    unknown = dict.fromkeys(("auc", "spearman", "disattenuated", "lower", "coverage"), "nan")
    return {
        "mode": found.settings.surrogate,
        "embedding": found.embedding,
        "taught_by": 0,
        "gates": [
            {
                "seed": seed,
                "generation": one.generation,
                "steers": one.steers,
                "offered": one.offered,
                "kept": one.kept,
                "prompts": 0,
                **unknown,
                "reasons": list(one.reasons),
            }
            for seed, one in found.steered
        ],
    }


def _spread(found: Found, strategy: str) -> dict[str, Any]:
    maxima = found.maxima(strategy)
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
        "e_above": as_number(one.evidence),
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
