"""What the paper's search says, as plain data: what every search says, and a block of its own."""

from __future__ import annotations

import json
from typing import Any

from nafaudit.report.result import as_number
from nafaudit.search.finals import Item
from nafaudit.search.measured import Row
from nafaudit.search.paper_files import final_report, generation_entry, write_files
from nafaudit.search.paper_found import PaperFound, Recheck
from nafaudit.store.files import write_whole
from nafaudit.views.search import search_json


def paper_json(found: PaperFound) -> dict[str, Any]:
    """Strict JSON; the keys of the sound protocol, then `paper`."""
    settings, trail = found.settings, found.trail
    last = trail.validation.last
    pools = {
        "final": trail.items(last.final),
        "stress": trail.items(last.stress),
        "heldout": trail.heldout,
    }
    return search_json(found.found) | {
        "paper": {
            "variant": settings.variant,
            "fix": settings.fix,
            "topup_fraction": settings.topup_fraction,
            "sizes": vars(settings.sizes),
            "R": found.high,
            "embedding": found.embedding,
            "generation_log": [generation_entry(one) for one in trail.generations],
            "report": final_report(found),
            "pools": {name: [_item(item) for item in items] for name, items in pools.items()},
            "ablations": [
                {"generation": one.generation, "ablation": kind} | _item(item)
                for one in trail.generations
                for kind, item in one.ablations
            ],
            "rounds": len(trail.validation.rounds),
            "disqualified": [item.candidate.id for item in trail.validation.disqualified],
            "gap": {
                "paper": as_number(found.gap.paper),
                "valid": as_number(found.gap.valid),
                "invalid_rows": found.gap.invalid,
            },
            "flagged": {
                pool: {"flagged": flagged, "prompts": prompts}
                for pool, (flagged, prompts) in found.flagged.pools.items()
            },
            "second_k": settings.second,
            "rechecked": [_recheck(one) for one in found.rechecks],
            "not_rechecked": len(found.flagged.flags) - len(found.rechecks),
            "findings": [
                {
                    "check": one.check,
                    "verdict": str(one.verdict),
                    "value": as_number(one.value),
                    "text": one.text,
                    "numbers": {name: as_number(value) for name, value in one.numbers.items()},
                }
                for one in found.findings
            ],
        }
    }


def write_paper_result(found: PaperFound) -> None:
    """Writes RUN/search.json and RUN/paper; the same records give the same bytes."""
    write_files(found)
    path = found.found.path / "search.json"
    write_whole(path, json.dumps(paper_json(found), indent=2).encode() + b"\n")


def _row(row: Row) -> dict[str, Any]:
    return {
        "N": row.n,
        "mean_spend": as_number(row.moments.mean),
        "U_EBB": as_number(row.upper),
        "width": as_number(row.width),
        "B_eff": as_number(row.budget),
        "rho": as_number(row.rho),
        "certified": row.certified,
        "invalid": row.invalid_reason,
        "repeated_seeds": row.draws.repeated_seeds,
        "overspent": row.overspent,
    }


def _item(item: Item) -> dict[str, Any]:
    return {"id": item.candidate.id, "generation": item.candidate.generation} | _row(item.row)


def _recheck(one: Recheck) -> dict[str, Any]:
    return {
        "id": one.flag.item.candidate.id,
        "pool": one.flag.pool,
        "flagged": _row(one.flag.item.row),
        "same_k": _row(one.same),
        "second_k": _row(one.other),
    }
