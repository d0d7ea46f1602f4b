"""The report as plain data: what report.json holds and what the page's numbers point into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from nafaudit.core.text import as_number
from nafaudit.core.text import plain as as_json
from nafaudit.measures.audit import AuditResult, PromptRow, bound_rows, prompt_rows, result_json
from nafaudit.report.searched import search_json
from nafaudit.views.records import record_name
from nafaudit.views.words import refuted, replay_json, replay_made, summary, verdict_texts


def run_name(report: AuditResult) -> str:
    """A name for the run that does not depend on where its directory is."""
    return f"run-{report.run.design['hash'][:10]}"


def plain(
    report: AuditResult, checklist: Sequence[Mapping[str, Any]] = (), *, redact: bool = False
) -> dict[str, Any]:
    """Every verdict, finding and table of a run; strict JSON.

    Equal wherever the records are, but for `made`.

    Args:
        report: What to write down.
        checklist: Rows of the paper's checklist, which the paper room answers.
        redact: Leave out the text of prompts, which only a search has here.
    """
    searched, design = report.search, report.run.design
    result = result_json(report, run_name(report))
    return result | {
        "summary": summary(report.arms, refuted=refuted(report.verification)),
        "words": [
            {"mechanism": arm.mechanism, "k": as_number(arm.k)}
            | {
                said.question: f"{said.headline}. {said.text}"
                for said in verdict_texts(arm, refuted=refuted(report.verification))
            }
            for arm in report.arms
            if not arm.baseline
        ],
        "bounds": [
            {"mechanism": report.arms[row.arm].mechanism, "k": as_number(report.arms[row.arm].k)}
            | row.to_json()
            for row in bound_rows(report)
        ],
        "prompts": [_row(report, row) for row in prompt_rows(report)],
        "checklist": list(checklist),
        "verification": replay_json(report),
        "decided": {key: design[key] for key in design if key != "extents"},
        # A run without a search does not speak of one.
        **({} if searched is None else {"search": search_json(searched, redact=redact)}),
        "made": {
            "extents": design["extents"],
            "sessions": report.run.sessions,
            "mixed": report.run.mixed,
            "parts": report.run.journal(),
            "verification": replay_made(report),
        },
    }


def _row(report: AuditResult, row: PromptRow) -> dict[str, Any]:
    numbers = {
        field.name: as_json(getattr(row, field.name))
        for field in fields(row)
        if field.name not in ("arm", "worst")
    }
    worst = row.worst
    return numbers | {
        "mechanism": row.arm.mechanism,
        "k": as_number(row.arm.k),
        "worst": {
            "trajectory": worst.key.trajectory,
            "record": record_name(report, worst),
        },
    }
