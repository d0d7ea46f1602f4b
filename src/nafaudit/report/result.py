"""What an audit says, as plain data: the one form behind `--json` and report.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from nafaudit.checks.classes import ClassRow, ClassTable, Spread
from nafaudit.checks.verdict import ArmResult, classes_of, gaps_of
from nafaudit.core.finding import Answer, Witness
from nafaudit.core.trajectory import Arm, Key
from nafaudit.stats import Bound
from nafaudit.store.importers import import_report
from nafaudit.store.run import Run


def result_json(run: Run, arms: Sequence[ArmResult], name: str) -> dict[str, Any]:
    """Every verdict and finding of a run; strict JSON, NaN and infinity as strings."""
    return {
        "run": name,
        "design": run.design["hash"],
        "asked": run.asked,
        "missing": None if (gaps := gaps_of(run, arms)) is None else gaps.to_json(),
        "verdicts": [verdict_json(arm) for arm in arms],
        "classes": classes_json(classes_of(arms)),
        "findings": [
            {
                "mechanism": arm.mechanism,
                "k": as_number(arm.k),
                "check": finding.check,
                "verdict": str(finding.verdict),
                "value": as_number(finding.value),
                "numbers": {name: as_number(x) for name, x in finding.numbers.items()},
                "witness": witness_json(finding.witness),
                "text": finding.text,
            }
            for arm in arms
            for finding in arm.findings
        ]
        + _import_findings(run),
    }


def classes_json(table: ClassTable) -> list[dict[str, Any]]:
    """Every class under every budget; `worst` marks the one that spends most."""
    worst = {id(table.worst(Arm(row.mechanism, row.k))) for row in table.rows}
    return [class_json(row) | {"worst": id(row) in worst} for row in table.rows]


def class_json(row: ClassRow) -> dict[str, Any]:
    """One class under one budget; `null` where there is no bound, and `lacks` says why."""
    return {
        "mechanism": row.mechanism,
        "k": as_number(row.k),
        "class": row.label,
        "trajectories": row.trajectories,
        "prompts": row.prompts,
        "unknown": row.unknown,
        "K": as_number(row.budget),
        "mean": as_number(row.mean),
        "variance": as_number(row.variance),
        "R": as_number(row.reach),
        "R_eff": as_number(row.reach_seen),
        "U_EBB": _bound(row.paper),
        "passes": row.passes,
        "U_EBB_eff": _bound(row.paper_seen),
        "passes_eff": row.passes_seen,
        "upper": _bound(row.upper),
        "certified": row.certified,
        "lacks": row.lacks,
        "debt": _spread(row.debt),
        "utilisation": _spread(row.utilisation),
        "overlap": {name: as_number(x) for name, x in row.copying.numbers.items()},
    }


def _bound(found: Bound | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "name": found.name,
        "value": as_number(found.value),
        "width": as_number(found.width),
        "n": found.n,
        "delta": found.delta,
        "holds": found.holds,
        "evidence": found.evidence,
        "assumes": [str(assumption) for assumption in found.assumes],
        "note": found.note,
    }


def _spread(found: Spread) -> dict[str, float | str]:
    return {name: as_number(value) for name, value in asdict(found).items()}


def _import_findings(run: Run) -> list[dict[str, Any]]:
    """What an import dropped, reinterpreted or noticed, as findings about the whole log."""
    report = import_report(run)
    return [
        {
            "mechanism": None,
            "k": None,
            "check": f"import: {note['kind']}",
            "verdict": str(Answer.SUSPECT),
            "value": note["count"],
            "numbers": {},
            "witness": None,
            # Without the directory: the same log says the same wherever it lies.
            "text": f"{note['text']} (first: {PurePath(note['first']).name})",
        }
        for note in (report["notes"] if report else [])
    ]


def verdict_json(arm: ArmResult) -> dict[str, Any]:
    """Returns the verdicts and main numbers of one arm."""
    regime, use = arm.regime, arm.utilisation
    return {
        "mechanism": arm.mechanism,
        "k": as_number(arm.k),
        "baseline": arm.is_baseline,
        "kept": str(arm.kept),
        "tested": str(arm.tested),
        "worth": str(arm.worth),
        "passages": {
            "total": len(arm.worth_check.surprisals),
            "vacuous": arm.worth_check.vacuous,
            "K": as_number(arm.worth_check.promised),
        },
        "trajectories": arm.invariant.trajectories,
        "violations": arm.invariant.violations,
        "spend": {"mean": as_number(use.mean_spend)},
        "utilisation": {
            "mean": as_number(use.mean),
            "p95": as_number(use.quantile(0.95)),
            "max": as_number(use.finding().value),
        },
        "recall": {"mean": as_number(arm.copying.mean), "scored": len(arm.copying.recalls)},
        "regime": {
            "forced": as_number(regime.share(regime.forced)),
            "active": as_number(regime.share(regime.active)),
            "free": as_number(regime.share(regime.free)),
        },
        "trajectories_active": as_number(regime.acted_share),
    }


def witness_json(witness: Witness | None) -> dict[str, Any] | None:
    """The execution and step that a finding rests on, by the key of its record."""
    return None if witness is None else key_json(witness.key) | {"step": witness.step}


def key_json(key: Key) -> dict[str, Any]:
    """What identifies an execution within a run, wherever its record is."""
    return {
        "prompt": key.prompt,
        "mechanism": key.mechanism,
        "k": as_number(key.k),
        "trajectory": key.trajectory,
    }


def as_number(value: float) -> float | str:
    """Strict JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)
