"""The class table as the page shows it: the paper's columns and the bound that holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nafaudit.checks.classes import ClassRow, ClassTable
from nafaudit.core.text import name
from nafaudit.report.records import as_json

# Heading, key, how it is written, what it means; the keys are those of the rows below.
CLASS_COLUMNS = (
    ("n", "trajectories", "count", "executions (the paper's M)"),
    ("prompts", "prompts", "count", "prompts they are of: the independent units"),
    ("debt", "debt", "nats", "mean prefix debt in nats"),
    ("spend", "mean", "nats", "mean spend in nats"),
    ("use", "use", "percent", "mean spend as a share of the own budget"),
    ("worst", "worst", "percent", "largest share of the own budget that was spent"),
    ("bound", "upper", "nats", "upper bound of the mean spend: prompts as units, valid at any n"),
    ("width", "width", "nats", "how far the bound lies above the mean of prompt means"),
    ("U(R)", "paper", "nats", "the paper's U_EBB with R = T ln|V|; it pools a prompt's executions"),
    ("U(R_eff)", "seen", "nats", "the paper's U_EBB with the range seen: a proxy, not a bound"),
    ("K", "K", "nats", "what the mean spend may be: k times the length limit"),
    ("recall", "recall", "percent", "mean near-verbatim recall of the reference"),
    ("ROUGE-L", "rouge", "nats", "mean ROUGE-L F1 with the reference"),
)

# Where report.json has what a column shows.
_PATHS = {
    "debt": "debt.mean",
    "use": "utilisation.mean",
    "worst": "utilisation.max",
    "upper": "upper.value",
    "width": "upper.width",
    "paper": "U_EBB.value",
    "seen": "U_EBB_eff.value",
    "recall": "overlap.near_verbatim_recall_mean",
    "rouge": "overlap.rouge_l_f1_mean",
}


CLASS_PATHS = {key: _PATHS.get(key, key) for _, key, *_ in CLASS_COLUMNS}


def class_row(row: ClassRow, index: int, arms: Mapping[tuple[str, float], int]) -> dict[str, Any]:
    """One class under one budget, for the script."""

    def value(found: Any, attribute: str = "value") -> float | str | None:
        return as_json(math.nan if found is None else getattr(found, attribute), 6)

    return {
        "label": name(row.label),
        "a": arms[row.mechanism, row.k],
        "trajectories": row.trajectories,
        "prompts": row.prompts,
        "debt": as_json(row.debt.mean, 6),
        "mean": as_json(row.mean, 6),
        "use": as_json(row.utilisation.mean, 8),
        "worst": as_json(row.utilisation.max, 8),
        "upper": value(row.upper),
        "width": value(row.upper, "width"),
        "paper": value(row.paper),
        "seen": value(row.paper_seen),
        "K": as_json(row.budget, 6),
        "recall": as_json(row.copying.mean("near_verbatim_recall"), 8),
        "rouge": as_json(row.copying.mean("rouge_l_f1"), 8),
        "path": f"classes[{index}]",
    }


def classes_note(table: ClassTable) -> str:
    """What has to be known to read the table; empty if there is none."""
    if not table.rows:
        return ""
    return (
        f"Every bound misses with chance at most {table.delta:.2g}: one level shared by "
        f"{table.looks} cells, classes times budgets. Under 20 prompts a bound is shown for "
        "orientation, not as evidence. U(R) and U(R_eff) are the paper's; point at a heading for "
        "what it means."
    )
