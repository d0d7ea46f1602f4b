"""The page's sections as the template needs them: words, rows and links, no markup."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from nafaudit.core.finding import Answer, Finding, Kept, Tested, Worth
from nafaudit.core.text import name, nats, percent, visible
from nafaudit.core.trajectory import Key
from nafaudit.measures.audit import AuditResult, bound_rows
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.report.classes import classes_note
from nafaudit.report.searched import search_view
from nafaudit.views.payload import POINTS, ROWS, colour
from nafaudit.views.words import (
    COMMANDS,
    GLOSSARY,
    arm_name,
    basis,
    refuted,
    replay_section,
    settings_table,
    verdict_texts,
)

_TONES = {
    Kept.WITHIN: "good",
    Kept.VIOLATED: "bad",
    Kept.INCONCLUSIVE: "open",
    Tested.ACTIVE: "good",
    Tested.IDLE: "open",
    Worth.INFORMATIVE: "good",
    Worth.VACUOUS: "bad",
    Answer.FINE: "good",
    Answer.SUSPECT: "bad",
    Answer.FAILED: "bad",
    Answer.UNKNOWN: "open",
}
_HEADS = (
    ("budget", "k nats per token"),
    ("n", "executions"),
    ("over", "executions that went over their budget"),
    ("spend", "mean spend in nats"),
    ("use", "mean spend as a share of the own budget"),
    ("p95", "95 % of executions used less of their budget"),
    ("worst", "largest share of the own budget that was spent"),
    ("forced", "steps that served the safe model"),
    ("active", "steps that served a mixture"),
    ("free", "steps that served the risky model"),
    ("recall", "mean near-verbatim recall of the reference"),
    ("L max", "largest log-likelihood ratio of an output"),
    ("L > K", "outputs whose log-likelihood ratio exceeds K = kT"),
)
_CHECKLIST_TONES = {"pass": "good", "fail": "bad", "not applicable": "open"}
_PARTS_LISTED = 400

Shown = Mapping[Key, int]


def sections(
    report: AuditResult, plain: Mapping[str, Any], shown: Shown, *, redact: bool
) -> dict[str, Any]:
    """What the template is filled with.

    Args:
        report: What is shown.
        plain: The content of report.json; numbers say where in it they are.
        shown: Which trajectories the viewer holds, and at which index.
        redact: True if text is left out.
    """
    design = report.run.design
    journal = report.run.journal()
    findings = _indexed(report)
    return {
        "title": _title(report),
        "summary": plain["summary"],
        "basis": basis(report.verification),
        "replay": replay_section(report),
        "recorded": len(report.rows),
        "asked": report.run.asked,
        "gaps": None if report.gaps is None else visible(report.gaps.text),
        "mixed": visible(report.run.mixed),
        "prompt_count": len({one.key.prompt for one in report.rows}),
        "anchor": design["anchor"],
        "hash": design["hash"],
        "cards": [_card(report, i, shown) for i, arm in enumerate(report.arms) if not arm.baseline],
        "number_heads": [{"name": head, "meaning": meaning} for head, meaning in _HEADS],
        "number_rows": [
            _numbers(report, i, plain, findings, shown) for i in range(len(report.arms))
        ],
        "remarks": _remarks(report, plain, shown),
        "viewer_note": _viewer_note(report, len(shown)),
        "points_note": _points_note(report),
        "drawn": plain.get("figures", []),
        "bounds": _bounds(report),
        "level": report.context.delta,
        "methods": sorted({(row.method, row.assumes) for row in bound_rows(report)}),
        "classes_note": classes_note(report.classes),
        "prompts_note": _prompts_note(len(plain["prompts"])),
        "checklist": [
            {
                "item": f"{row['item']}. {row['title']}",
                "answer": row["answer"],
                "tone": _CHECKLIST_TONES[row["answer"]],
                "text": visible(row["text"]),
                "todo": row["to_pass"],
            }
            for row in plain["checklist"]
        ],
        "check_groups": [_checks(report, i, findings, shown) for i in range(len(report.arms))],
        "decided": settings_table(report, redact=redact),
        "commands": COMMANDS,
        "glossary": GLOSSARY,
        "sessions": [visible(json.dumps(s, sort_keys=True)) for s in report.run.sessions],
        "parts": journal[:_PARTS_LISTED],
        "parts_left": max(0, len(journal) - _PARTS_LISTED),
        "search": search_view(plain["search"]) if "search" in plain else None,
    }


def _title(report: AuditResult) -> str:
    names = sorted({arm.mechanism.split(":")[0] for arm in report.arms})
    if not names:
        return "Audit of an empty run"
    imported = report.run.design["identity"]["protocol"] == "imported"
    return name(f"{'Audit of a log' if imported else 'Audit'}: {', '.join(names)}")


def _card(report: AuditResult, index: int, shown: Shown) -> dict[str, Any]:
    arm = report.arms[index]
    length = report.context.max_new_tokens
    promise = f"the promise: at most {arm.k:g} nats a token"
    if length:
        promise += f", K = {arm.k * length:g} nats over {length} tokens"
    return {
        "index": index,
        "name": name(arm_name(arm, report.arms)),
        "colour": colour(arm, report),
        "promise": promise,
        "said": [
            {
                "question": said.question,
                "word": said.word,
                "tone": said.tone,
                "headline": said.headline,
                "text": visible(said.text),
                "href": href(said.finding, shown),
            }
            for said in verdict_texts(arm, refuted=refuted(report.verification))
        ],
    }


def href(finding: Finding | None, shown: Shown) -> str:
    """A link to the step that a finding rests on, if the viewer holds it."""
    if finding is None or finding.witness is None or finding.witness.key not in shown:
        return ""
    return f"#t{shown[finding.witness.key]}.{finding.witness.step}"


def _indexed(report: AuditResult) -> list[list[tuple[int, Finding]]]:
    """The findings of each arm with their numbers in report.json."""
    found, start = [], 0
    for arm in report.arms:
        findings = arm.findings
        found.append(list(enumerate(findings, start)))
        start += len(findings)
    return found


def _numbers(
    report: AuditResult,
    index: int,
    plain: Mapping[str, Any],
    findings: list[list[tuple[int, Finding]]],
    shown: Shown,
) -> dict[str, Any]:
    arm, verdict = report.arms[index], plain["verdicts"][index]
    named = {finding.check: (number, finding) for number, finding in findings[index]}
    path, here = f"verdicts[{index}]", f"#a{index}"
    worst = href(named["utilisation"][1], shown) or here
    number, tails = named["tails"]
    over = tails.numbers.get("above_K", math.nan)

    def cell(text: str, where: str, link: str = here) -> dict[str, str]:
        absent = text == "\u2013"
        return {"text": text, "path": "" if absent else where, "href": link}

    use = verdict["utilisation"]
    cells = [
        cell(str(verdict["trajectories"]), f"{path}.trajectories"),
        cell(
            "\u2013" if arm.baseline else str(verdict["violations"]),
            f"{path}.violations",
            href(named["invariant"][1], shown) or here,
        ),
        cell(nats(float(verdict["spend"]["mean"])), f"{path}.spend.mean"),
        *(
            cell("\u2013" if arm.baseline else percent(float(use[key])),
                 f"{path}.utilisation.{key}", worst if key == "max" else here)
            for key in ("mean", "p95", "max")
        ),
        *(cell(percent(float(verdict["regime"][key])), f"{path}.regime.{key}")
          for key in ("forced", "active", "free")),
        cell(percent(float(verdict["recall"]["mean"])), f"{path}.recall.mean",
             href(named["copying"][1], shown) or here),
        cell(nats(tails.value), f"findings[{number}].value", href(tails, shown) or here),
        cell("\u2013" if math.isnan(over) or arm.baseline else f"{over:g}",
             f"findings[{number}].numbers.above_K"),
    ]  # fmt: skip
    return {
        "name": name(arm_name(arm, report.arms)),
        "colour": colour(arm, report),
        "baseline": arm.baseline,
        "cells": cells,
    }


def _remarks(report: AuditResult, plain: Mapping[str, Any], shown: Shown) -> list[dict[str, str]]:
    """Suspect findings first, then what is unknown, each reason once."""
    groups: dict[tuple[str, str, str], list[tuple[ArmVerdict, Finding]]] = {}
    for arm in report.arms:
        for finding in arm.findings:
            suspect = finding.verdict in (Answer.SUSPECT, Answer.FAILED)
            if suspect or (finding.verdict == Answer.UNKNOWN and not arm.baseline):
                key = (str(finding.verdict), finding.check, finding.text)
                groups.setdefault(key, []).append((arm, finding))
    ordered = sorted(groups.items(), key=lambda item: item[0][0])
    remarks = [
        {
            "word": word,
            "tone": _TONES[Answer(word)],
            "check": check,
            "text": visible(text),
            "where": ", ".join(name(arm_name(arm, report.arms)) for arm, _ in group),
            "href": next((link for _, f in group if (link := href(f, shown))), ""),
        }
        for (word, check, text), group in ordered
    ]
    own = sum(len(arm.findings) for arm in report.arms)
    return remarks + [
        {"word": f["verdict"], "tone": "bad", "check": name(f["check"]), "where": "the log",
         "text": visible(f["text"]), "href": ""}
        for f in plain["findings"][own:]
    ]  # fmt: skip


def _bounds(report: AuditResult) -> list[dict[str, Any]]:
    shown = []
    for index, row in enumerate(bound_rows(report)):
        arm = report.arms[row.arm]
        write = percent if row.unit == "share" else nats
        unit = "" if row.unit == "share" else " nats"
        shown.append(
            {
                "arm": row.arm,
                "name": name(arm_name(arm, report.arms)),
                "colour": colour(arm, report),
                "baseline": arm.baseline,
                "target": row.target,
                "estimate": write(row.point) + unit,
                "interval": f"below {write(row.upper)}{unit}",
                "width": write(row.width) + unit,
                "sample": f"{row.n} {row.units}",
                "method": row.method,
                "evidence": row.evidence,
                "path": f"bounds[{index}].point",
            }
        )
    return shown


def _checks(
    report: AuditResult, index: int, findings: list[list[tuple[int, Finding]]], shown: Shown
) -> dict[str, Any]:
    arm = report.arms[index]
    rows = [
        {
            "check": finding.check,
            "word": str(finding.verdict),
            "tone": _TONES.get(finding.verdict, ""),  # type: ignore[call-overload]
            "text": visible(finding.text),
            "href": href(finding, shown),
            "path": f"findings[{number}]",
        }
        for number, finding in findings[index]
    ]
    return {
        "index": index,
        "name": name(arm_name(arm, report.arms)),
        "colour": colour(arm, report),
        "count": len(rows),
        "suspect": sum(row["tone"] == "bad" for row in rows),
        "rows": rows,
    }


def _viewer_note(report: AuditResult, shown: int) -> str:
    recorded = len(report.rows)
    if shown == recorded:
        return f"All {recorded} executions are here, as recorded."
    return (
        f"{shown} of {recorded} executions are shown in full: those that findings point at, the "
        "worst of every budget, and a sample drawn by prompt and number; each with the same draws "
        "under every other budget. The others are in the run's parts."
    )


def _points_note(report: AuditResult) -> str:
    most = max((len(report.of_arm(arm)) for arm in report.arms), default=0)
    if most <= POINTS:
        return "Every execution is drawn. Click a mark to read it."
    return (
        f"Marks: at most {POINTS} executions a budget, the worst quarter of them and a sample of "
        "the rest. Histograms, shares and tails are of all executions. Click a mark to read it."
    )


def _prompts_note(rows: int) -> str:
    text = (
        "Sorted by violations, then by the largest use of the own budget, recall and spend. "
        "Click a heading to sort, a number to read the execution behind it."
    )
    return text if rows <= ROWS else f"{text} The worst {ROWS} of {rows} rows; report.json has all."
