"""What the page's script reads: one JSON object of numbers and shown text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nafaudit.checks.check import quantile
from nafaudit.core.ledger import is_baseline
from nafaudit.core.text import SNIPPET, cut, cut_front, name, visible
from nafaudit.core.trajectory import Key
from nafaudit.report.bounds import bound_rows
from nafaudit.report.charts import arm_chart, points
from nafaudit.report.classes import CLASS_COLUMNS, CLASS_PATHS, class_row
from nafaudit.report.data import Report
from nafaudit.report.outline import Outline
from nafaudit.report.record import typed_record
from nafaudit.report.records import Table, as_json, encode, read_chosen
from nafaudit.report.searched import measure_of, progress_of
from nafaudit.report.tables import PromptRow, largest, prompt_rows

_PROMPT_SHOWN = 900
ROWS = 3000
"""Rows of the prompt table at most."""


def payload(report: Report, chosen: Sequence[Outline], *, redact: bool) -> dict[str, Any]:
    """Everything the script draws.

    Args:
        report: What is shown.
        chosen: The trajectories that are shown in full.
        redact: Leave all text out.
    """
    shown = {one.key: index for index, one in enumerate(chosen)}
    rows = prompt_rows(report)[:ROWS]
    drawn = [one for arm in report.arms for one in points(report.of(arm))]
    ids = _numbered([*(o.key.prompt for o in chosen), *(r.prompt for r in rows),
                     *(o.key.prompt for o in drawn)])  # fmt: skip
    arms = {(arm.mechanism, arm.k): index for index, arm in enumerate(report.arms)}
    parts, pieces = Table(), None if redact else Table()
    view = [
        encode(report, one, trajectory, pieces)
        | {
            "p": ids[one.key.prompt],
            "a": arms[one.key.arm],
            "rec": typed_record(report, one),
            "at": [parts.number(one.place.part), one.place.row],
        }
        for one, trajectory in read_chosen(report, chosen)
    ]
    full = {one.key.prompt for one in chosen}
    return {
        "redacted": redact,
        "arms": [arm_chart(arm, report, ids, shown) for arm in report.arms],
        "prompts": [_prompt(report, prompt, prompt in full and not redact) for prompt in ids],
        "rows": [_row(report, row, i, ids, arms, shown) for i, row in enumerate(rows)],
        "classColumns": CLASS_COLUMNS,
        "classPaths": CLASS_PATHS,
        "classes": sorted(
            (class_row(row, i, arms) for i, row in enumerate(report.classes.rows[:ROWS])),
            key=lambda row: (row["label"], row["a"]),
        ),
        "bounds": [
            {"arm": row.arm, "mean": as_json(row.point, 3), "high": as_json(row.upper, 3)}
            for row in bound_rows(report)
            if row.unit == "nats" and row.method == "cluster-t"
        ],
        "view": view,
        "first": _first(chosen),
        "pieces": pieces.strings if pieces else [],
        "parts": parts.strings,
        "mostCharge": _most_charge(view),
        **({} if report.search is None else {"search": _progress(report.search)}),
    }


def _progress(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How a search went: after every generation what it had cost, and the best so far."""
    best = measure_of(found)
    return [
        {
            "who": name(one.strategy),
            "seed": one.seed,
            "share": best.share,
            "axis": best.axis,
            "points": [[p.generation, p.spent, as_json(p.best, 4)] for p in one.points],
            "use": [as_json(value, 4) for value in (one.confirmed, one.low, one.high)],
        }
        for one in progress_of(found)
    ]


def _numbered(names: Sequence[str]) -> dict[str, int]:
    return {prompt: index for index, prompt in enumerate(dict.fromkeys(names))}


def _prompt(report: Report, prompt: str, in_full: bool) -> dict[str, Any]:
    known = report.prompts.get(prompt)
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


def _row(
    report: Report,
    row: PromptRow,
    index: int,
    ids: Mapping[str, int],
    arms: Mapping[tuple[str, float], int],
    shown: Mapping[Key, int],
) -> dict[str, Any]:
    numbers = {
        field: as_json(getattr(row, field), 8)
        for field in (
            "count", "violations", "debt", "spend", "utilisation", "worst_utilisation", "ratio",
            "recall", "active",
        )
    }  # fmt: skip
    return numbers | {
        "p": ids[row.prompt],
        "a": arms[row.arm],
        "v": shown.get(row.worst.key, -1),
        "rec": typed_record(report, row.worst),
        "part": row.worst.place.part,
        "path": f"prompts[{index}]",
    }


def _first(chosen: Sequence[Outline]) -> int:
    """What the viewer opens with: an excess, else where most came back under a budget."""
    judged = [o for o in chosen if not is_baseline(o.key.k)] or list(chosen)
    worst = max(
        judged, key=lambda o: (o.violated, largest([o.recall, 0.0]), o.badness), default=None
    )
    return chosen.index(worst) if worst else 0


def _most_charge(view: Sequence[Mapping[str, Any]]) -> float:
    """The charge that gets the darkest shade: 99.5 % of charges above 0 are below it."""
    charges = [c / 1e6 for record in view for c in record["c"] if isinstance(c, int) and c > 0]
    return round(quantile(charges, 0.995), 2) if charges else 1.0
