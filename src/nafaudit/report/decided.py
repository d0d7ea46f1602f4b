"""What was decided before and during a run, and what the words of a report mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nafaudit.core.finding import ACTIVE_SHARE, ALARM_LEVEL, MIN_TRAJECTORIES
from nafaudit.core.text import visible
from nafaudit.report.data import Report

COMMANDS = (
    ("nafaudit check .", "every check again from the records alone; no models"),
    ("nafaudit verify .", "every logged number again from the models, every token from the draws"),
    ("nafaudit report . --json", "every number of this page, with its place"),
    ("nafaudit report . --record PROMPT@K#TRAJECTORY", "one record as it is on disk"),
    ("nafaudit report .", "this page again, byte by byte"),
    ("nafaudit report . --figures", "figures as SVG and PDF files beside it, the paper's too"),
)

GLOSSARY = (
    ("nat", "unit of divergence; 1 nat is about 1.44 bits"),
    ("budget k", "nats that each token adds to what may be spent; K = k times the length limit T"),
    ("spend Z", "sum of the charges: by how much the served law diverged from the safe model's"),
    ("debt", "taken off the budget first, because the prompt itself favours the risky model"),
    ("forced, active, free", "the safe model's law was served; a mixture; the risky model's law"),
    ("log-ratio L", "how much more likely the output was as served than under the safe model"),
    ("recall", "share of the reference's words that came back in nearly verbatim runs of 20"),
    ("WITHIN, VIOLATED", "no execution over its budget; at least one over it"),
    ("ACTIVE, IDLE", f"the limit acted in at least {ACTIVE_SHARE:.0%} of steps; in fewer"),
)  # fmt: skip


def decided(report: Report, *, redact: bool) -> list[tuple[str, str]]:
    """Term and value of everything that the numbers depend on."""
    design = report.run.design
    identity: Mapping[str, Any] = design["identity"]
    decoding = identity["decoding"]
    rows = [
        ("protocol", str(identity["protocol"])),
        ("mechanism", str(identity["mechanism"])),
        ("ledger", str(identity["ledger"])),
        ("seed", f"{identity['seed']}, draws for the purpose {identity['purpose']!r}"),
        ("length limit T", str(decoding["max_new_tokens"] or "not known")),
        ("temperature", f"{decoding['temperature']:g} (on both models, before the solve)"),
        ("repetition penalty", f"{decoding['repetition_penalty']:g}"),
        ("charged against", str(design["anchor"])),
        ("design", str(design["hash"])),
        ("workload", str(identity["workload"])),
        *((f"pair: {key}", _shown(value)) for key, value in sorted(identity["pair"].items())),
        *((f"layout: {key}", str(value)) for key, value in sorted(identity["layout"].items())),
        ("asked for", _extents(design["extents"])),
        ("verdict needs", f"at least {MIN_TRAJECTORIES} executions, none unjudged"),
        ("tests of chance", f"alarm level {ALARM_LEVEL:g} each; limits on rates at 95% each"),
        ("means", f"all limits on mean spend together at level {report.facts.level:g}"),
        ("units", "executions of one prompt are not independent; limits are for prompts as well"),
        ("versions", _versions(report)),
    ]  # fmt: skip
    if redact:
        rows.append(("text", "left out of this page (--redact)"))
    return [(visible(term), visible(value)) for term, value in rows]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _extents(extents: list[Mapping[str, Any]]) -> str:
    return "; then ".join(
        f"{len(e['prompts'])} prompts, {e['trajectories']} executions each, k = "
        + ", ".join(map(str, e["budgets"]))
        for e in extents
    )


def _versions(report: Report) -> str:
    keys = ("nafaudit", "torch", "transformers", "processor", "device", "threads", "batch")
    seen = [
        ", ".join(f"{key} {session[key]}" for key in keys if key in session)
        for session in report.run.sessions
    ]
    return "; ".join(dict.fromkeys(seen)) or "not recorded"
