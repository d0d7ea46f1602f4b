"""What an audit says, as plain data: the one form behind `--json` and report.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nafaudit.checks.verdict import ArmResult
from nafaudit.core.finding import Answer, Finding
from nafaudit.store.foreign import import_report
from nafaudit.store.run import Run


def result_json(run: Run, arms: Sequence[ArmResult], name: str) -> dict[str, Any]:
    """Every verdict and finding of a run; strict JSON, NaN and infinity as strings."""
    return {
        "run": name,
        "design": run.design["hash"],
        "asked": run.asked,
        "verdicts": [_verdict(arm) for arm in arms],
        "findings": [
            {
                "mechanism": arm.mechanism,
                "k": as_number(arm.k),
                "check": finding.check,
                "verdict": str(finding.verdict),
                "value": as_number(finding.value),
                "numbers": {name: as_number(x) for name, x in finding.numbers.items()},
                "witness": _witness(finding),
                "text": finding.text,
            }
            for arm in arms
            for finding in arm.findings
        ]
        + _import_findings(run),
    }


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
            "text": f"{note['text']} (first: {note['first']})",
        }
        for note in (report["notes"] if report else [])
    ]


def _verdict(arm: ArmResult) -> dict[str, Any]:
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


def _witness(finding: Finding) -> dict[str, Any] | None:
    if finding.witness is None:
        return None
    key = finding.witness.key
    return {"prompt": key.prompt, "trajectory": key.trajectory, "step": finding.witness.step}


def as_number(value: float) -> float | str:
    """Strict JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)
