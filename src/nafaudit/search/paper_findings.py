"""What is wrong with a run of the paper's search, by name; none of it is about the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nafaudit.core.finding import Finding
from nafaudit.search import defects
from nafaudit.search.allocation import Rule
from nafaudit.search.finals import Item
from nafaudit.search.measured import Row
from nafaudit.search.paper_loop import Trail
from nafaudit.search.paper_settings import Sizes


def findings_of(trail: Trail, labels: Sequence[bool], rule: Rule, sizes: Sizes) -> list[Finding]:
    """Every defect, looked for wherever it can occur; a place is named where there are several.

    Args:
        trail: The search.
        labels: What the surrogate was last trained on.
        rule: The evaluator's constants.
        sizes: What was nominally granted.
    """
    last, heldout = trail.validation.last, [item.row for item in trail.heldout]
    searched = [item.row for item in trail.searched]
    confirmed = [*last.final, *last.stress]
    pools = (
        ("medium fidelity", _medium(trail), sizes.med_fid_traj),
        ("final pool", last.final, sizes.final_traj),
        ("stress pool", last.stress, sizes.stress_traj),
    )
    dropped = [
        *(item.row for item in trail.searched if not item.row.certified),
        *(item.row for item in trail.validation.disqualified if item.row.certified),
    ]
    return [
        defects.surrogate_saturated(
            [said for one in trail.generations for said in one.predictions]
        ),
        defects.one_class_labels(labels),
        *(_at(place, defects.allocation_collapsed(rows, n, rule)) for place, rows, n in pools),
        defects.duplicate_seeds([*searched, *confirmed, *heldout]),
        defects.uncertified_dropped(dropped, len(searched)),
        defects.frozen_at_floor([*searched, *confirmed, *heldout], rule),
        *(
            _at(
                f"generation {one.generation}",
                defects.quotas_unused(one.screened, sizes.med_fid_keep),
            )
            for one in trail.generations
        ),
        defects.reused_draws(searched, confirmed),
        defects.shared_ids(
            (item.candidate.id, item.candidate.text) for item in (*trail.searched, *trail.heldout)
        ),
        defects.invalid_as_zero(heldout),
    ]


def _at(place: str, finding: Finding) -> Finding:
    return replace(finding, text=f"{place}: {finding.text}")


def _medium(trail: Trail) -> list[Row]:
    return [item.row for one in trail.generations for item in one.medium]


@dataclass(frozen=True)
class Flag:
    """A prompt that the paper's proxy flags: a ratio above 1, or none at all.

    Attributes:
        pool: Where.
        item: The prompt and the row that flags it.
    """

    pool: str
    item: Item


@dataclass(frozen=True)
class Flagged:
    """How many prompts of each pool are flagged, and which.

    Attributes:
        pools: Flagged and all prompts, by pool.
        flags: Each prompt once: held-out, final and stress pools first, then the search's own,
            within each the largest ratio first and those without a ratio last.
    """

    pools: dict[str, tuple[int, int]]
    flags: tuple[Flag, ...]


def flagged_of(trail: Trail) -> Flagged:
    """Looks through every pool, all rounds of the validation included."""
    rounds = trail.validation.rounds
    pools: dict[str, Sequence[Item]] = {
        "heldout": trail.heldout,
        "final": _unique([i for one in rounds for i in trail.items(one.final)]),
        "stress": _unique([i for one in rounds for i in trail.items(one.stress)]),
        "init": trail.init,
        "medium": [item for one in trail.generations for item in one.medium],
        "top-up": [item for one in trail.generations for item in one.topped],
        "ablation": [item for one in trail.generations for _, item in one.ablations],
    }
    flags: dict[str, Flag] = {}
    for pool, items in pools.items():
        bad = [item for item in items if not item.row.certified]
        for item in sorted(bad, key=lambda item: -item.row.stored_rho):
            flags.setdefault(item.candidate.id, Flag(pool, item))
    counts = {
        pool: (sum(not item.row.certified for item in items), len(items))
        for pool, items in pools.items()
    }
    return Flagged(counts, tuple(flags.values()))


def _unique(items: Sequence[Item]) -> list[Item]:
    return list({item.candidate.id: item for item in items}.values())
