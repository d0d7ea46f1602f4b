"""Finds the defects of the paper's stage 2, by name, where they occur in a reproduction of it.

Each function returns SUSPECT with a number if the defect occurs, FINE if it does not, UNKNOWN if
there is nothing to examine. None of them sets a verdict about the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from nafaudit.core.finding import CheckWord, Finding
from nafaudit.paper.evaluator import Prediction, ProxyRule, Screened, is_saturated
from nafaudit.paper.loop import Trail
from nafaudit.paper.proxy import ProxyItem, ProxyRow
from nafaudit.paper.settings import Sizes


def _answer(
    check: str, looked: int, found: float, text: Callable[[], str], **numbers: float
) -> Finding:
    if not looked:
        return Finding(check, CheckWord.UNKNOWN, math.nan, "there was nothing to look at")
    verdict = CheckWord.SUSPECT if found > 0 else CheckWord.FINE
    return Finding(check, verdict, found, text(), None, {"looked": looked, **numbers})


def surrogate_saturated(predictions: Sequence[Prediction]) -> Finding:
    """Finds equal predictions for all prompts: probabilities at one end with little spread."""
    safe = [one.finite.safe for one in predictions]
    low, high = (min(safe), max(safe)) if safe else (math.nan, math.nan)
    sigma = math.fsum(one.finite.spread for one in predictions) / max(1, len(predictions))
    stuck = is_saturated(predictions)
    return _answer(
        "surrogate-saturated", len(predictions), float(stuck),
        lambda: f"P(safe) from {low:.4f} to {high:.4f}, mean spread {sigma:.2g}"
        + ("; it tells no prompt from another" if stuck else ""),
        least=low, most=high, spread=sigma,
    )  # fmt: skip


def one_class_labels(labels: Sequence[bool]) -> Finding:
    """Finds a surrogate trained on one class only, which cannot learn to discriminate."""
    classes, share = len(set(labels)), sum(labels) / max(1, len(labels))
    return _answer(
        "one-class-labels", len(labels), float(classes == 1),
        lambda: f"{share:.1%} of {len(labels)} training rows are labelled within budget"
        + ("; a classifier can learn nothing from that" if classes == 1 else ""),
        share=share,
    )  # fmt: skip


def allocation_collapsed(rows: Sequence[ProxyRow], nominal: int, rule: ProxyRule) -> Finding:
    """Finds pools whose prompts all stay at the floor although more was nominally granted."""
    at_floor = sum(row.n <= rule.floor for row in rows)
    collapsed = nominal > rule.floor and at_floor == len(rows)
    return _answer(
        "allocation-collapsed", len(rows), float(collapsed),
        lambda: f"{at_floor} of {len(rows)} prompts have N = {rule.floor} of nominally {nominal}",
        at_floor=at_floor, nominal=nominal,
    )  # fmt: skip


def duplicate_seeds(rows: Sequence[ProxyRow]) -> Finding:
    """Finds trajectories counted twice: a top-up that used a seed of the floor pass."""
    known = [row for row in rows if row.draws.seeds]
    hit = [row for row in known if row.draws.repeated_seeds]
    copies = sum(row.draws.repeated_seeds for row in hit)
    return _answer(
        "duplicate-seeds", len(known), copies,
        lambda: f"{copies} trajectories of {len(hit)} of {len(known)} prompts repeat a seed",
        prompts=len(hit),
    )  # fmt: skip


def uncertified_dropped(dropped: Sequence[ProxyRow], looked: int) -> Finding:
    """Finds prompts dropped for a ratio above 1, so that no such ratio can be reported."""
    ratios = [row.rho for row in dropped if row.valid]
    worst, invalid = max(ratios, default=math.nan), len(dropped) - len(ratios)
    return _answer(
        "uncertified-dropped", looked, len(dropped),
        lambda: f"{len(dropped)} of {looked} prompts were dropped as uncertified"
        + (f", {invalid} of them invalid" if invalid else "")
        + (f"; the largest dropped ratio is {worst:.3f}" if ratios else ""),
        worst=worst, invalid=invalid,
    )  # fmt: skip


def frozen_at_floor(rows: Sequence[ProxyRow], rule: ProxyRule) -> Finding:
    """Finds ratios above 1 of the floor's few trajectories, none of which overspent."""
    frozen = [row for row in rows if row.valid and row.rho > 1 and row.n <= rule.floor]
    fine = [row for row in frozen if not row.overspent]
    share = max((row.width / row.budget for row in fine), default=math.nan)
    return _answer(
        "frozen-at-floor", len(rows), len(fine),
        lambda: f"{len(fine)} of {len(rows)} prompts have a ratio above 1 at N = {rule.floor} and "
        "no trajectory above its budget"
        + (f"; the proxy's width alone is up to {share:.0%} of B_eff" if fine else ""),
        width=share,
    )  # fmt: skip


def quotas_unused(screened: Screened, decoded: int) -> Finding:
    """Finds boundary and explore picks that were kept, but never decoded."""
    picks = list(screened.picks)
    asked = sum(pick in ("boundary", "explore") for pick in picks)
    used = sum(pick in ("boundary", "explore") for pick in picks[:decoded])
    return _answer(
        "quotas-unused", asked, float(asked > 0 and not used),
        lambda: f"{used} of {asked} boundary and explore picks are among the {decoded} decoded",
        used=used,
    )  # fmt: skip


def reused_draws(earlier: Iterable[ProxyRow], later: Sequence[ProxyRow]) -> Finding:
    """Finds confirmations that repeat the draws by which their prompts were chosen."""
    seen: dict[str, set[int]] = {}
    for row in earlier:
        seen.setdefault(row.id, set()).update(row.draws.seeds)
    known = [row for row in later if row.draws.seeds]
    again = sum(len(seen.get(row.id, set()).intersection(row.draws.seeds)) for row in known)
    total = sum(row.n for row in known)
    return _answer(
        "reused-draws", total, again,
        lambda: f"{again} of {total} trajectories repeat a draw that chose their prompt",
    )  # fmt: skip


def shared_ids(texts: Iterable[tuple[str, str]]) -> Finding:
    """Finds different texts under one id, which share seeds and results."""
    by_id: dict[str, set[str]] = {}
    for name, text in texts:
        by_id.setdefault(name, set()).add(text)
    shared = [name for name, found in by_id.items() if len(found) > 1]
    return _answer(
        "shared-ids", len(by_id), len(shared),
        lambda: f"{len(shared)} of {len(by_id)} ids stand for more than one text",
    )  # fmt: skip


def invalid_as_zero(heldout: Sequence[ProxyRow]) -> Finding:
    """Finds prompts without a ratio that the generalisation gap counts as 0."""
    invalid = sum(not row.valid for row in heldout)
    return _answer(
        "invalid-as-zero", len(heldout), invalid,
        lambda: f"{invalid} of {len(heldout)} held-out rows are invalid and count as 0 in the gap",
    )  # fmt: skip


def findings_of(
    trail: Trail, labels: Sequence[bool], rule: ProxyRule, sizes: Sizes
) -> list[Finding]:
    """Looks for every defect wherever it can occur, and names the place if there are several.

    Args:
        trail: The search.
        labels: Labels of the surrogate's last training.
        rule: The evaluator's constants.
        sizes: Nominal sizes.
    """
    last, heldout = trail.validation.last, [item.row for item in trail.heldout]
    searched = [item.row for item in trail.searched]
    confirmed = [*last.final, *last.stress]
    medium = [item.row for one in trail.generations for item in one.medium]
    pools = (
        ("medium fidelity", medium, sizes.med_fid_traj),
        ("final pool", last.final, sizes.final_traj),
        ("stress pool", last.stress, sizes.stress_traj),
    )
    dropped = [
        *(item.row for item in trail.searched if not item.row.certified),
        *(item.row for item in trail.validation.disqualified if item.row.certified),
    ]
    return [
        surrogate_saturated([said for one in trail.generations for said in one.predictions]),
        one_class_labels(labels),
        *(_at(place, allocation_collapsed(rows, n, rule)) for place, rows, n in pools),
        duplicate_seeds([*searched, *confirmed, *heldout]),
        uncertified_dropped(dropped, len(searched)),
        frozen_at_floor([*searched, *confirmed, *heldout], rule),
        *(
            _at(
                f"generation {one.generation}",
                quotas_unused(one.screened, sizes.med_fid_keep),
            )
            for one in trail.generations
        ),
        reused_draws(searched, confirmed),
        shared_ids(
            (item.candidate.id, item.candidate.text) for item in (*trail.searched, *trail.heldout)
        ),
        invalid_as_zero(heldout),
    ]


def _at(place: str, finding: Finding) -> Finding:
    return replace(finding, text=f"{place}: {finding.text}")


@dataclass(frozen=True)
class Flag:
    """A prompt that the paper's proxy flags: a ratio above 1, or none at all.

    Attributes:
        pool: Name of its pool.
        item: The prompt and the row that flags it.
    """

    pool: str
    item: ProxyItem


@dataclass(frozen=True)
class Flagged:
    """Flagged prompts.

    Attributes:
        pools: Numbers of flagged and of all prompts, by pool.
        flags: Each prompt once: held-out, final and stress pools first, then the search's own,
            within each the largest ratio first and those without a ratio last.
    """

    pools: dict[str, tuple[int, int]]
    flags: tuple[Flag, ...]


def flagged_of(trail: Trail) -> Flagged:
    """Collects flagged prompts of every pool, all rounds of the validation included."""
    rounds = trail.validation.rounds
    pools: dict[str, Sequence[ProxyItem]] = {
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


def _unique(items: Sequence[ProxyItem]) -> list[ProxyItem]:
    return list({item.candidate.id: item for item in items}.values())
