"""A run in the format of Every Eval Ever, a shared collection of evaluation results.

Aggregates only: one result per budget and metric. No prompt, output or path is in it. A number that
is not known is left out, as the format has none; the verdict word says why.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from nafaudit import __version__
from nafaudit.core.finding import Kept
from nafaudit.core.ledger import RISKY_ONLY, budget_name
from nafaudit.measures.audit import RATE_LEVEL, AuditResult
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.stats import clopper_pearson

SCHEMA_VERSION = "0.3.0"
"""Version of their eval.schema.json that this is."""

_LEVELS = (Kept.VIOLATED, Kept.REFUTED, Kept.INCONCLUSIVE, Kept.WITHIN)


def every_eval_ever(result: AuditResult, organization: str = "unknown") -> dict[str, Any]:
    """Returns the record of a run.

    Args:
        result: The run, judged.
        organization: Who made the evaluation.
    """
    design, sessions = result.run.design, result.run.sessions
    identity, first = design["identity"], sessions[0] if sessions else {}
    imported = identity["protocol"] == "imported"
    given, pair = first.get("risky"), identity["pair"]
    # A directory of the user's is no model id; the fingerprint names the weights.
    named = given if given and not str(given).startswith(("/", ".", "~")) else first.get("pair")
    model = "unknown/unknown" if imported else f"{named or 'unknown'}"
    model = model if "/" in model else f"nafaudit/{model}"
    now = f"{time.time():.0f}"
    details = {
        "mechanism": identity["mechanism"],
        "ledger": str(identity["ledger"]),
        "protocol": identity["protocol"],
        "deployment_type": "unknown" if imported else "self_deployed",
        "model_availability": "unknown",
        **{f"{role}_weights_sha256": str(pair[role]) for role in ("safe", "risky") if role in pair},
    }
    started = {"evaluation_timestamp": str(first["started"])} if "started" in first else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"nafaudit/{model}/{now}",
        **started,
        "retrieved_timestamp": now,
        "source_metadata": {
            "source_name": "nafaudit",
            "source_type": "documentation" if imported else "evaluation_run",
            "source_organization_name": organization,
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": "nafaudit",
            "version": __version__,
            "additional_details": {"design": design["hash"]},
        },
        "model_info": {"name": model, "id": model, "additional_details": details},
        "evaluation_results": [
            one for arm in result.arms for one in _results(arm, identity, imported)
        ],
    }


def _results(arm: ArmVerdict, identity: dict[str, Any], imported: bool) -> Iterator[dict[str, Any]]:
    """Yields the results of one budget; of a model alone, how much of the references came back."""
    n, where = arm.trajectories, budget_name(arm.k)
    parameters = {"k": "Infinity" if arm.k == RISKY_ONLY else arm.k, "mechanism": arm.mechanism}
    source = {
        "dataset_name": f"workload {identity['workload'][:10]}" if not imported else "imported log",
        "source_type": "other",
        "additional_details": {"prompts": str(arm.prompts), "executions": str(n)},
    }
    length = identity["decoding"].get("max_new_tokens")
    generation = {
        key: value
        for key, value in (
            ("temperature", identity["decoding"].get("temperature")),
            ("max_tokens", length),
        )
        if value
    }

    def row(metric: str, about: str, score: dict[str, Any], **config: Any) -> dict[str, Any]:
        made = {
            "evaluation_result_id": f"{metric}:{arm.mechanism}:{arm.k:g}",
            "evaluation_name": f"nafaudit, {where}",
            "source_data": source,
            "metric_config": {
                "evaluation_description": about,
                "metric_id": f"nafaudit.{metric}",
                "metric_name": metric.replace("_", " "),
                "metric_parameters": parameters,
                **config,
            },
            "score_details": score,
        }
        return made | ({"generation_config": {"generation_args": generation}} if generation else {})

    share = {"score_type": "continuous", "min_score": 0, "metric_unit": "proportion"}
    if not arm.baseline:
        words = {"kept": arm.kept, "tested": arm.tested, "worth": arm.worth}
        yield row(
            "kept",
            "Whether every trajectory stays within its budget of k nats per token",
            {"score": _LEVELS.index(arm.kept), "details": {k: str(v) for k, v in words.items()}},
            lower_is_better=False,
            score_type="levels",
            level_names=[str(word) for word in _LEVELS],
            has_unknown_level=False,
        )
    if not arm.baseline and arm.kept != Kept.REFUTED and n:
        violations = arm.violations or 0
        low, high = clopper_pearson(violations, n, RATE_LEVEL)
        interval = {"lower": low, "upper": high, "confidence_level": 1 - RATE_LEVEL}
        yield row(
            "violation_rate",
            "Share of trajectories that spent more than their budget",
            {
                "score": violations / n,
                "uncertainty": {
                    "confidence_interval": interval | {"method": "Clopper-Pearson"},
                    "num_samples": n,
                },
            },
            lower_is_better=True,
            max_score=1,
            **share,
        )
    numbers = (
        ("spend", "Mean divergence from the safe model, charged step by step", arm.spend.mean),
        ("utilisation", "Mean share of its own budget that was spent", arm.utilisation.mean),
        ("active_share", "Share of steps that served neither model unchanged", arm.regime.active),
    )
    for metric, about, value in () if arm.baseline else numbers:
        if math.isfinite(value):
            unit = {"metric_unit": "nats"} if metric == "spend" else {}
            top = 1 if metric == "active_share" else "Infinity"
            yield row(
                metric,
                about,
                {"score": value},
                lower_is_better=metric == "spend",
                **share | unit | {"max_score": top},
            )
    if arm.recall.scored:
        yield row(
            "near_verbatim_recall",
            "Mean share of the protected reference that came back nearly word for word",
            {"score": arm.recall.mean, "uncertainty": {"num_samples": arm.recall.scored}},
            lower_is_better=True,
            max_score=1,
            **share,
        )
