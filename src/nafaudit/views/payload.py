"""What the page's script reads: one JSON object of numbers and shown text.

Where a page has no room for all trajectories in full, those that findings point at come first,
then the worst of every arm, then a sample; each brings the same prompt and number under every
other budget along, since they share their draws. The choice depends on the records alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain, zip_longest
from typing import Any

from nafaudit.core.ledger import RISKY_ONLY, is_baseline
from nafaudit.core.text import SNIPPET, cut, cut_front, name, plain, visible
from nafaudit.core.trajectory import Arm, Key
from nafaudit.measures.audit import AuditResult, known_values, largest
from nafaudit.measures.classes import ClassRow
from nafaudit.measures.measure import Measure, sample_key
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.stats import quantile
from nafaudit.views.records import as_json, encode, read_chosen, typed_record
from nafaudit.views.search import progress_of, ranking_of
from nafaudit.views.words import arm_name

ROWS = 3000
"""Rows of the prompt table at most."""
POINTS = 400
"""Marks per arm in a chart; histograms and tails are of all trajectories."""
BINS = 20
_TAIL_POINTS = 121
_PROMPT_SHOWN = 900
# Bytes that a record takes in the page, for planning only; the page is measured after.
_STEP_BYTES = 27
_RECORD_BYTES = 160
_PROMPT_BYTES = 1400

# Heading, where report.json has it under a class, how it is written, what it means.
CLASS_COLUMNS = (
    ("n", "trajectories", "count", "trajectories (the paper's M)"),
    ("prompts", "prompts", "count", "prompts they are of: the independent units"),
    ("debt", "debt.mean", "nats", "mean prefix debt in nats"),
    ("median", "debt.median", "nats", "median prefix debt in nats"),
    ("largest", "debt.max", "nats", "largest prefix debt in nats"),
    ("spend", "mean", "nats", "mean spend in nats"),
    ("variance", "variance", "nats", "variance of the spends, divisor M - 1"),
    ("R_eff", "R_eff", "nats", "the range of spends that was seen, at least 1 and at most R"),
    ("use", "utilisation.mean", "percent", "mean spend as a share of its own budget"),
    ("worst", "utilisation.max", "percent", "largest share of its own budget that was spent"),
    (
        "bound",
        "upper.value",
        "nats",
        "upper bound of the mean spend: prompts as units, valid at any n",
    ),
    ("its width", "upper.width", "nats", "how far the bound lies above the mean of prompt means"),
    (
        "U(R)",
        "U_EBB.value",
        "nats",
        "the paper's U_EBB with R = T ln|V|; it pools prompts",
    ),
    (
        "U(R_eff)",
        "U_EBB_eff.value",
        "nats",
        "the paper's U_EBB with the range seen: a proxy, not a bound",
    ),
    ("U width", "U_EBB_eff.width", "nats", "U(R_eff) less the mean spend"),
    ("K", "K", "nats", "what the mean spend may be: k times the length limit"),
    (
        "recall",
        "overlap.near_verbatim_recall_mean",
        "percent",
        "mean near-verbatim recall of the reference",
    ),
    ("ROUGE-L", "overlap.rouge_l_f1_mean", "share", "mean ROUGE-L F1 with the reference"),
    ("its max", "overlap.rouge_l_f1_max", "share", "largest ROUGE-L F1 of a trajectory"),
    (
        "5-gram J",
        "overlap.jaccard_5gram_mean",
        "share",
        "mean Jaccard index of runs of five words with the reference",
    ),
    (
        "its max",
        "overlap.jaccard_5gram_max",
        "share",
        "largest 5-gram Jaccard index of a trajectory",
    ),
)
_ROW_NUMBERS = (
    "count", "violations", "debt", "spend", "proxy", "width", "utilisation", "worst_utilisation",
    "ratio", "recall", "active",
)  # fmt: skip


def payload(result: AuditResult, chosen: Sequence[Measure], *, redact: bool) -> dict[str, Any]:
    """Collects everything that the script draws.

    Args:
        result: What is shown.
        chosen: The trajectories that are shown in full.
        redact: Leave all text out.
    """
    shown = {one.key: index for index, one in enumerate(chosen)}
    rows = result.by_prompt[:ROWS]
    drawn = [sample(result.of_arm(arm), POINTS) for arm in result.arms]
    every = [o.key.prompt for o in chosen] + [r.prompt for r in rows]
    every += [o.key.prompt for points in drawn for o in points]
    ids = {prompt: index for index, prompt in enumerate(dict.fromkeys(every))}
    arms = {(arm.mechanism, arm.k): index for index, arm in enumerate(result.arms)}
    parts: dict[str, int] = {}
    pieces: dict[str, int] | None = None if redact else {}
    view = [
        encode(result, one, trajectory, pieces)
        | {
            "p": ids[one.key.prompt],
            "a": arms[one.key.arm],
            "rec": typed_record(result, one),
            "at": [parts.setdefault(one.place.part, len(parts)), one.place.row],
        }
        for one, trajectory in read_chosen(result, chosen)
    ]
    # The viewer opens with an excess, else where most came back under a budget.
    first = max(
        [o for o in chosen if not is_baseline(o.key.k)] or chosen,
        key=lambda o: (o.violated, largest([o.recall, 0.0]), o.sort_key),
        default=None,
    )
    # The darkest shade is the charge below which 99.5 % of charges above 0 lie.
    charges = [c / 1e6 for record in view for c in record["c"] if isinstance(c, int) and c > 0]
    full = {one.key.prompt for one in chosen}
    data = {
        "redacted": redact,
        "arms": [
            _arm_chart(arm, result, points, ids, shown)
            for arm, points in zip(result.arms, drawn, strict=True)
        ],
        "prompts": [_prompt(result, prompt, prompt in full and not redact) for prompt in ids],
        "rows": [
            {field: as_json(getattr(row, field), 8) for field in _ROW_NUMBERS}
            | {
                "p": ids[row.prompt],
                "a": arms[row.arm],
                "v": shown.get(row.shown.key, -1),
                "rec": typed_record(result, row.shown),
                "part": row.shown.place.part,
                "path": f"prompts[{i}]",
            }
            for i, row in enumerate(rows)
        ],
        "classColumns": CLASS_COLUMNS,
        "classes": sorted(
            (_class_row(row, i, arms) for i, row in enumerate(result.classes.rows[:ROWS])),
            key=lambda row: (row["label"], row["a"]),
        ),
        "bounds": [
            {"arm": row.arm_index, "mean": as_json(row.point, 3), "high": as_json(row.upper, 3)}
            for row in result.bounds
            if row.unit == "nats" and row.method == "cluster-t"
        ],
        "view": view,
        "first": chosen.index(first) if first else 0,
        "pieces": list(pieces or ()),
        "parts": list(parts),
        "mostCharge": round(quantile(charges, 0.995), 2) if charges else 1.0,
    }
    if result.search is not None:
        # After every generation of a search what it had cost, and the best so far.
        best = ranking_of(result.search)
        data["search"] = [
            {
                "who": name(one.strategy),
                "seed": one.seed,
                "share": best.share,
                "axis": best.axis,
                "points": [[p.generation, p.spent, as_json(p.best, 4)] for p in one.points],
                "use": [as_json(value, 4) for value in (one.confirmed, one.low, one.high)],
            }
            for one in progress_of(result.search)
        ]
    return data


def colour(arm: ArmVerdict, result: AuditResult) -> str:
    """Names a class of the style sheet: baselines have their own, budgets take turns."""
    if arm.k == 0:
        return "c-safe"
    if arm.k == RISKY_ONLY:
        return "c-risky"
    judged = [other for other in result.arms if not other.baseline]
    return f"c{judged.index(arm) % 6}"


def _prompt(result: AuditResult, prompt: str, in_full: bool) -> dict[str, Any]:
    known = result.prompts.get(prompt)
    shown: dict[str, Any] = {"id": name(prompt), "label": name(known.label) if known else ""}
    if known is None:
        return shown
    if in_full:
        shown["text"] = cut_front(visible(known.text), _PROMPT_SHOWN)
        if known.reference:
            shown["reference"] = cut(visible(known.reference), SNIPPET)
    elif known.reference:
        shown["has"] = 1
    return shown


def _class_row(row: ClassRow, index: int, arms: Mapping[tuple[str, float], int]) -> dict[str, Any]:
    """Returns one class under one budget."""
    data = plain(row)
    shown: dict[str, Any] = {
        "label": name(row.label),
        "a": arms[row.mechanism, row.k],
        "path": f"classes[{index}]",
    }
    for _, path, kind, _ in CLASS_COLUMNS:
        found: Any = data
        for part in path.split("."):
            found = found and found[part]  # no bound: null
        value = math.nan if found is None else float(found)
        shown[path] = as_json(value, 6 if kind == "nats" else 8)
    return shown


def _arm_chart(
    arm: ArmVerdict,
    result: AuditResult,
    points: Sequence[Measure],
    ids: Mapping[str, int],
    shown: Mapping[Key, int],
) -> dict[str, Any]:
    """Returns everything that the charts draw of one arm; `points` have marks of their own."""
    rows, regime = result.of_arm(arm), arm.regime
    alone = risky_spends(result, arm)
    # Values at evenly spaced ranks, the smallest and the largest among them.
    ratios = sorted(known_values([one.log_ratio for one in rows]))
    if (last := len(ratios) - 1) >= _TAIL_POINTS:
        ratios = [ratios[round(i * last / (_TAIL_POINTS - 1))] for i in range(_TAIL_POINTS)]
    return {
        "name": arm_name(arm, result.arms),
        "mechanism": arm.mechanism,
        "colour": colour(arm, result),
        "baseline": arm.baseline,
        "k": as_json(arm.k),
        "K": as_json(result.context.compared_with(arm.k)),
        "regime": [as_json(share, 6) for share in (regime.forced, regime.active, regime.free)],
        "hist": histogram([one.utilisation for one in rows]),
        "ghost": histogram(budget_shares(rows, alone)),
        "tail": [as_json(value, 2) for value in ratios],
        "points": [
            {
                "p": ids[one.key.prompt],
                "n": one.key.trajectory,
                "z": as_json(one.spend, 3),
                "b": as_json(one.budget, 3),
                "c": as_json(one.recall, 3),
                "r": as_json(alone.get(one.key, math.nan), 2),
                "v": shown.get(one.key, -1),
            }
            for one in points
        ],
    }


def risky_spends(result: AuditResult, arm: ArmVerdict) -> dict[Key, float]:
    """Returns what the risky model alone spent on the prompt and draws of each trajectory."""
    risky = {
        _unit(one): one.spend for one in result.rows.arms.get(Arm(arm.mechanism, RISKY_ONLY), [])
    }
    return {one.key: risky[_unit(one)] for one in result.of_arm(arm) if _unit(one) in risky}


def budget_shares(rows: Sequence[Measure], spends: Mapping[Key, float]) -> list[float]:
    """Divides other spends by the budgets of trajectories, where both are known and limited."""
    return [
        spends[one.key] / one.budget
        for one in rows
        if one.key in spends and 0 < one.budget < math.inf
    ]


def histogram(values: Sequence[float]) -> list[int]:
    """Counts twentieths of the budget; the last count is of values above 1."""
    counts = [0] * (BINS + 1)
    for value in known_values(values):
        # Exactly all of the budget belongs to the last twentieth; rounding in sums is no excess.
        over = value > 1 + 1e-6
        counts[BINS if over else min(BINS - 1, int(max(0.0, value) * BINS))] += 1
    return counts


def sample(rows: Sequence[Measure], most: int) -> list[Measure]:
    """Takes the worst quarter of `most` and a sample of the rest, in the order of their keys."""
    lots = {one.key: one.sample_key for one in rows}
    ordered = sorted(rows, key=lambda one: (one.sort_key, lots[one.key]), reverse=True)
    worst, rest = ordered[: most // 4], ordered[most // 4 :]
    if len(ordered) > most:
        rest = sorted(rest, key=lambda one: lots[one.key])[: most - len(worst)]
    return sorted([*worst, *rest], key=lambda one: one.key)


def choose(result: AuditResult, room: int) -> list[Measure]:
    """Chooses trajectories to show in full, in the order of their keys, in about `room` bytes."""
    units: dict[tuple[str, int], list[Measure]] = {}
    for one in result.rows:
        if one.length:
            units.setdefault(_unit(one), []).append(one)
    pointed_at = (
        (finding.witness.key.prompt, finding.witness.key.trajectory)
        for arm in result.arms
        for finding in arm.findings
        if finding.witness is not None
    )
    by_lot = sorted(units, key=lambda unit: sample_key(*unit))
    chosen: dict[tuple[str, int], list[Measure]] = {}
    for unit in chain(pointed_at, _worst(result), by_lot):
        if unit in chosen or unit not in units:
            continue
        room -= _PROMPT_BYTES + sum(_RECORD_BYTES + _STEP_BYTES * o.length for o in units[unit])
        if room < 0 and chosen:
            break
        chosen[unit] = units[unit]
    return sorted((one for group in chosen.values() for one in group), key=lambda one: one.key)


def _worst(result: AuditResult) -> Iterator[tuple[str, int]]:
    """Returns the worst few of each arm, in turn."""
    ranked = [
        nlargest(20, result.of_arm(arm), key=lambda one: one.sort_key)
        for arm in result.arms
        if not arm.baseline
    ]
    for turn in zip_longest(*ranked):
        yield from (_unit(one) for one in turn if one is not None)


def _unit(one: Measure) -> tuple[str, int]:
    return one.key.prompt, one.key.trajectory
