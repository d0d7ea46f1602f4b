"""An audit: a document for the terminal, one for report.md, and the sections of the page.

Columns are declared once; a number on the page says where report.json has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nafaudit.core import text
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.ledger import budget_name, is_baseline
from nafaudit.core.text import cut, name, visible
from nafaudit.core.trajectory import Arm, Key
from nafaudit.measures.audit import AuditResult, BoundRow, bound_rows, prompt_rows
from nafaudit.measures.classes import ClassRow, ClassTable
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.stats import MIN_EVIDENCE, Bound, enough
from nafaudit.views.document import (
    NONE,
    Column,
    Document,
    Section,
    Table,
    Verdict,
    nats,
    percent,
)
from nafaudit.views.markdown import markdown, plain_text
from nafaudit.views.payload import POINTS, ROWS, colour
from nafaudit.views.records import typed_record
from nafaudit.views.search import search_sections, search_view
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

_BUDGET = Column("budget", "name", "k nats per token", words=True)
_NUMBERS = {
    column.head: column
    for column in (
        Column("n", "trajectories", "executions"),
        Column("over", "violations", "executions that went over their budget"),
        Column("spend", "spend.mean", "mean spend in nats", nats),
        Column("use", "utilisation.mean", "mean spend as a share of the own budget", percent),
        Column("p95", "utilisation.p95", "95 % of executions used less of their budget", percent),
        Column(
            "worst", "utilisation.max", "largest share of the own budget that was spent", percent
        ),
        Column("forced", "regime.forced", "steps that served the safe model", percent),
        Column("active", "regime.active", "steps that served a mixture", percent),
        Column("free", "regime.free", "steps that served the risky model", percent),
        Column("recall", "recall.mean", "mean near-verbatim recall of the reference", percent),
    )
}
# A log that keeps only totals leaves most checks unknown; then their names have to do.
_MOST_REASONS = 3
# Characters of a mechanism's name and of a class that a terminal's tables have room for.
_MECHANISM, _LABEL = 24, 14
_MOST_CLASS_ROWS = 24
_WORST_PROMPTS = 20
_PARTS_LISTED = 400
_CHECKLIST_TONES = {"pass": "good", "fail": "bad", "not applicable": "open"}


def audit_document(result: AuditResult, source: str, page: Path | None = None) -> Document:
    """Returns what a terminal shows of an audit: the three answers, numbers, what is not fine.

    Args:
        result: What came out.
        source: What the user named: the run directory, or a log.
        page: The report, if one was written.
    """
    run, arms = result.run, result.arms
    several = len({arm.mechanism for arm in arms}) > 1
    names = [
        f"{cut(name(arm.mechanism), _MECHANISM)} {budget_name(arm.k)}"
        if several
        else budget_name(arm.k)
        for arm in arms
    ]
    rows = _number_rows(arms, names)
    for row, arm in zip(rows, arms, strict=True):
        share = arm.passages.share
        worth = Verdict(arm.worth, f"({share})" if share else "")
        row |= {"worth": None if arm.baseline else worth}
    answers = (
        _BUDGET,
        Column("kept?", "kept", write=Verdict, words=True),
        Column("tested?", "tested", write=Verdict, words=True),
        Column("worth?", "worth", words=True),
    )
    heads = ("n", "spend", "use", "worst", "forced", "active", "free", "recall")
    lines = []
    if result.gaps is not None:
        lines.append(f"incomplete: {result.gaps.text}")
    elif (recorded := len(result.rows)) < run.asked:
        lines.append(f"incomplete: {recorded} of {run.asked} trajectories are recorded")
    for arm, shown in zip(arms, names, strict=True):
        if not arm.baseline:
            finding = arm.finding("invariant")
            lines.append(f"{shown}: {finding.text}{_where(finding)}")
    lines += _remark_lines(arms)
    lines.append(f"charges are against {run.design['anchor']}")
    lines.append(f"{'run directory' if Path(source).is_dir() else 'read from'}: {source}")
    if page is not None:
        lines.append(f"report: {page}")
    return Document(
        "nafaudit audit",
        (
            Section(
                table=Table.of(answers, rows),
                note="worth: of how many protected passages the word is true; a budget says "
                "nothing about a passage if K = kT reaches the safe model's surprisal of it",
            ),
            Section(
                table=Table.of((_BUDGET, *(_NUMBERS[head] for head in heads)), rows),
                note="n: trajectories; spend: mean nats; use, worst: mean and largest spend as a "
                "share of the own budget; forced, active, free: steps that served the safe model, "
                "a mixture, the risky model; recall: share of the reference that came back nearly "
                "word for word",
            ),
            *class_sections(result.classes),
            Section(lines=tuple(lines)),
        ),
    )


def _number_rows(arms: Sequence[ArmVerdict], names: Sequence[str]) -> list[dict[str, Any]]:
    """Verdicts with names; a baseline promises nothing that could be kept."""
    rows = [vars(arm) | {"name": shown} for arm, shown in zip(arms, names, strict=True)]
    for row in rows:
        if row["baseline"]:
            row |= dict.fromkeys(("kept", "tested", "worth", "violations"))
            row["utilisation"] = dict.fromkeys(("mean", "p95", "max"))
    return rows


def _remark_lines(arms: Sequence[ArmVerdict]) -> list[str]:
    """A line for every finding that is not fine; what is unknown for one reason is said once."""
    suspect: list[str] = []
    unknown: dict[tuple[str, str], list[str]] = {}
    for arm in arms:
        budget = budget_name(arm.k)
        for finding in arm.findings:
            if finding.verdict in (Answer.SUSPECT, Answer.FAILED):
                said = f"{budget}: {finding.check} {finding.verdict}: {finding.text}"
                suspect.append(said + _where(finding))
            elif finding.verdict == Answer.UNKNOWN and not arm.baseline:
                unknown.setdefault((finding.check, finding.text), []).append(budget)
    if len(unknown) > _MOST_REASONS:
        checks = ", ".join(dict.fromkeys(check for check, _ in unknown))
        return [*suspect, f"UNKNOWN for lack of records: {checks}; --json says what each lacks"]
    return suspect + [
        f"{', '.join(names)}: {check} UNKNOWN: {why}" for (check, why), names in unknown.items()
    ]


def _where(finding: Finding) -> str:
    if finding.witness is None:
        return ""
    key = finding.witness.key
    return f" (prompt {key.prompt!r}, trajectory {key.trajectory}, step {finding.witness.step})"


def class_sections(table: ClassTable) -> list[Section]:
    """Returns a row per class and budget, which a mean over all prompts hides.

    Nothing if there is only one class; of many, the worst under each budget.
    """
    rows = [row for row in table.rows if not is_baseline(row.k)]
    if len({row.label for row in rows}) < 2:
        return []
    worst = [table.worst(arm) for arm in dict.fromkeys(Arm(r.mechanism, r.k) for r in rows)]
    marked = set(map(id, worst))
    listed = rows if len(rows) <= _MOST_CLASS_ROWS else [row for row in worst if row]
    evident = any(found and enough(found.n) for row in listed for found in (row.paper, row.upper))

    def label(row: ClassRow) -> str:
        return cut(name(row.label), _LABEL) + ("*" if id(row) in marked else "")

    def limit(found: Bound | None, passes: bool | None) -> str:
        if found is None or not enough(found.n):
            return NONE
        return nats(found.value) + ("!" if passes is False else "")

    columns = [
        Column("budget", "k", write=budget_name, words=True),
        Column("class", write=label, words=True),
        Column("n", "trajectories"),
        Column("of", "prompts"),
        Column("spend", "mean", write=nats),
    ]
    notes = ["n: trajectories, of so many prompts; *: spends most; ROUGE: mean ROUGE-L F1"]
    if len(listed) < len(rows):
        notes.insert(0, f"only the worst of {len(table.labels)} classes each; --json has them all")
    if evident:
        columns += [
            Column("U", write=lambda row: limit(row.paper, row.passes)),
            Column("U_eff", write=lambda row: limit(row.paper_seen, row.passes_seen)),
            Column("upper", write=lambda row: limit(row.upper, row.certified)),
        ]
        notes += [
            "U, U_eff: the paper's U_EBB of the mean spend with R = T ln|V| and with the range "
            "seen, both proxies; upper: a bound that holds, with prompts as units and R = kT; "
            f"each at level {table.delta:.2g} for {table.looks} looks; !: above K = kT",
            f"-: not known, or no evidence on fewer than {MIN_EVIDENCE}",
            *(f"no upper bound: {why}" for why in sorted({r.lacks for r in listed if r.lacks})),
        ]
    else:
        columns += [
            Column("use", "utilisation.mean", write=percent),
            Column("worst", "utilisation.max", write=percent),
        ]
        notes.append(
            f"bounds of means on fewer than {MIN_EVIDENCE} are no evidence; --json has them"
        )
    columns += [
        Column("debt", "debt.mean", write=nats),
        Column("ROUGE", write=lambda row: _share(row.copying.mean("rouge_l_f1"))),
        Column("recall", write=lambda row: percent(row.copying.mean("near_verbatim_recall"))),
    ]
    mechanisms = sorted({row.mechanism for row in listed})
    return [
        Section(
            name(mechanism)[:60] if len(mechanisms) > 1 else "",
            Table.of(columns, [row for row in listed if row.mechanism == mechanism]),
            "\n".join(notes) if mechanism == mechanisms[-1] else "",
        )
        for mechanism in mechanisms
    ]


def _share(value: float) -> str:
    return NONE if math.isnan(value) else f"{value:.3f}"


def report_markdown(report: AuditResult, data: Mapping[str, Any]) -> str:
    """Returns report.md, for a pull request: verdicts, numbers, the worst prompts, findings.

    Args:
        report: What is shown.
        data: The content of report.json.
    """
    written = markdown(_report_document(report, data))
    if "figures" in data:
        written += "\n## Figures\n\n"
    for figure in data.get("figures", ()):
        links = ", ".join(f"[{file}](figures/{file})" for file in figure["files"])
        written += f"- {plain_text(figure['caption'])}: {links or plain_text(figure['lacks'])}\n"
    return written


def _report_document(report: AuditResult, data: Mapping[str, Any]) -> Document:
    replay, contradicted = replay_section(report), refuted(report.verification)
    lines = [f"{replay['word']}: {replay['text']}"]
    lines += [f"{remark['word']}: {remark['text']}" for remark in replay["remarks"]]
    if report.run.mixed:
        lines.insert(0, f"mixed: {report.run.mixed}")
    if report.gaps is not None:
        lines.insert(0, f"incomplete: {report.gaps.text}")
    names = {(arm.mechanism, arm.k): arm_name(arm, report.arms) for arm in report.arms}
    answers = tuple(Column(one, one, words=True) for one in ("kept", "tested", "worth"))
    heads = ("n", "spend", "use", "worst", "active", "recall")
    worst = (
        Column("prompt", "prompt", write=name, words=True),
        Column("class", "label", write=name, words=True),
        Column("budget", "arm", write=names.__getitem__, words=True),
        Column("n", "count"),
        Column("over", "violations"),
        Column("spend", "spend", write=nats),
        Column("worst use", "worst_utilisation", write=percent),
        Column("recall", "recall", write=percent),
        Column("record", "worst", write=partial(typed_record, report), words=True),
    )
    sections = [
        Section(
            names[arm.mechanism, arm.k],
            pairs=tuple(
                (said.question, f"{said.word}: {said.headline}. {said.text}")
                for said in verdict_texts(arm, refuted=contradicted)
            ),
        )
        for arm in report.arms
        if not arm.baseline
    ]
    if "search" in data:
        sections += search_sections(data["search"])
    rows = _number_rows(report.arms, list(names.values()))
    sections += [
        Section("Numbers", Table.of((_BUDGET, *answers, *(_NUMBERS[h] for h in heads)), rows)),
        Section("Worst prompts", Table.of(worst, prompt_rows(report)[:_WORST_PROMPTS])),
        Section(
            "Findings",
            pairs=tuple(
                (f"{names[arm.mechanism, arm.k]}, {f.check}", f"{f.verdict}. {f.text}")
                for arm in report.arms
                for f in arm.findings
            ),
        ),
    ]
    if data["checklist"]:
        checklist = (
            (f"{row['item']}. {row['title']}", f"{row['answer']}. {row['text']}")
            for row in data["checklist"]
        )
        sections.append(Section("Checklist", pairs=tuple(checklist)))
    sections += [
        Section("Decided", pairs=tuple(settings_table(report, redact=False))),
        Section("Again", pairs=COMMANDS),
    ]
    return Document("nafaudit report", tuple(sections), data["summary"], tuple(lines))


def page_sections(
    report: AuditResult, data: Mapping[str, Any], shown: Mapping[Key, int], *, redact: bool
) -> dict[str, Any]:
    """Returns what the template is filled with: words, rows and links, no markup.

    Args:
        report: What is shown.
        data: The content of report.json; numbers say where in it they are.
        shown: Which trajectories the viewer holds, and at which index.
        redact: True if text is left out.
    """

    def href(finding: Finding) -> str:
        """A link to the step that a finding rests on, if the viewer holds it."""
        witness = finding.witness
        if witness is None or witness.key not in shown:
            return ""
        return f"#t{shown[witness.key]}.{witness.step}"

    design, journal, arms = report.run.design, report.run.journal(), report.arms
    names = [name(arm_name(arm, arms)) for arm in arms]
    # The findings of each arm with their numbers in report.json.
    findings: list[list[tuple[int, Finding]]] = []
    start = 0
    for arm in arms:
        findings.append(list(enumerate(arm.findings, start)))
        start += len(arm.findings)
    looks = [
        {"index": i, "name": names[i], "colour": colour(arm, report), "baseline": arm.baseline}
        for i, arm in enumerate(arms)
    ]
    recorded = len(report.rows)
    mechanisms = sorted({arm.mechanism.split(":")[0] for arm in arms})
    kind = "Audit of a log" if design["identity"]["protocol"] == "imported" else "Audit"
    return {
        "title": name(f"{kind}: {', '.join(mechanisms)}") if arms else "Audit of an empty run",
        "summary": data["summary"],
        "basis": basis(report.verification),
        "replay": replay_section(report),
        "recorded": recorded,
        "asked": report.run.asked,
        "gaps": None if report.gaps is None else visible(report.gaps.text),
        "mixed": visible(report.run.mixed),
        "prompt_count": len({one.key.prompt for one in report.rows}),
        "anchor": design["anchor"],
        "hash": design["hash"],
        "cards": [
            look | _card(report, arm, href)
            for look, arm in zip(looks, arms, strict=True)
            if not arm.baseline
        ],
        "numbers": _numbers(report, looks, findings, href),
        "remarks": _remarks(report, data, href),
        "viewer_note": f"All {recorded} executions are here, as recorded."
        if len(shown) == recorded
        else f"{len(shown)} of {recorded} executions are shown in full: those that findings point "
        "at, the worst of every budget, and a sample drawn by prompt and number; each with the "
        "same draws under every other budget. The others are in the run's parts.",
        "points_note": "Every execution is drawn. Click a mark to read it."
        if max((len(report.of_arm(arm)) for arm in arms), default=0) <= POINTS
        else f"Marks: at most {POINTS} executions a budget, the worst quarter of them and a sample "
        "of the rest. Histograms, shares and tails are of all executions. Click a mark to read it.",
        "drawn": data.get("figures", []),
        "bounds": [
            looks[row.arm] | _bound(row, f"bounds[{index}].point")
            for index, row in enumerate(bound_rows(report))
        ],
        "level": report.context.delta,
        "methods": sorted({(row.method, row.assumes) for row in bound_rows(report)}),
        "classes_note": f"Every bound misses with chance at most {report.classes.delta:.2g}: one "
        f"level shared by {report.classes.looks} cells, classes times budgets. Under 20 prompts a "
        "bound is shown for orientation, not as evidence. U(R) and U(R_eff) are the paper's; point "
        "at a heading for what it means."
        if report.classes.rows
        else "",
        "prompts_note": "Sorted by violations, then by the largest use of the own budget, recall "
        "and spend. Click a heading to sort, a number to read the execution behind it."
        + (
            f" The worst {ROWS} of {len(data['prompts'])} rows; report.json has all."
            if len(data["prompts"]) > ROWS
            else ""
        ),
        "checklist": [
            {
                "item": f"{row['item']}. {row['title']}",
                "answer": row["answer"],
                "tone": _CHECKLIST_TONES[row["answer"]],
                "text": visible(row["text"]),
                "todo": row["to_pass"],
            }
            for row in data["checklist"]
        ],
        "check_groups": [
            look | _checks(numbered, href) for look, numbered in zip(looks, findings, strict=True)
        ],
        "decided": settings_table(report, redact=redact),
        "commands": COMMANDS,
        "glossary": GLOSSARY,
        "sessions": [visible(json.dumps(s, sort_keys=True)) for s in report.run.sessions],
        "parts": journal[:_PARTS_LISTED],
        "parts_left": max(0, len(journal) - _PARTS_LISTED),
        "search": search_view(data["search"]) if "search" in data else None,
        "cells": page_cells,
    }


def page_cells(table: Table) -> list[list[dict[str, Any]]]:
    """Returns the rows of a table for the template: texts, and where report.json has them."""
    return [
        [
            {"text": "\u2013", "path": "", "words": column.words}
            if cell == NONE
            else {"text": str(cell), "path": table.place(i, column), "words": column.words}
            for cell, column in zip(row, table.columns, strict=True)
        ]
        for i, row in enumerate(table.cells())
    ]


def _card(report: AuditResult, arm: ArmVerdict, href: Callable[[Finding], str]) -> dict[str, Any]:
    promise = f"the promise: at most {arm.k:g} nats a token"
    if length := report.context.max_new_tokens:
        promise += f", K = {arm.k * length:g} nats over {length} tokens"
    return {
        "promise": promise,
        "said": [
            {
                "question": said.question,
                "word": said.word,
                "tone": said.tone,
                "headline": said.headline,
                "text": visible(said.text),
                "href": href(said.finding),
            }
            for said in verdict_texts(arm, refuted=refuted(report.verification))
        ],
    }


def _numbers(
    report: AuditResult,
    looks: Sequence[Mapping[str, Any]],
    findings: Sequence[Sequence[tuple[int, Finding]]],
    href: Callable[[Finding], str],
) -> dict[str, Any]:
    """The table of numbers; each is a link to the execution that it rests on, or to its arm."""
    rows = _number_rows(report.arms, [look["name"] for look in looks])
    for arm, row, numbered in zip(report.arms, rows, findings, strict=True):
        tails = next(finding for _, finding in numbered if finding.check == "tails")
        above = None if arm.baseline else tails.numbers.get("above_K")
        row["tails"] = {"value": tails.value, "above": above}
    columns = (
        _BUDGET,
        *_NUMBERS.values(),
        Column("L max", "tails.value", "largest log-likelihood ratio of an output", nats),
        Column(
            "L > K",
            "tails.above",
            "outputs whose log-likelihood ratio exceeds K = kT",
            "{:g}".format,
        ),
    )
    table = Table.of(columns, rows, [f"verdicts[{i}]" for i in range(len(rows))])
    made = []
    for look, cells, numbered in zip(looks, page_cells(table), findings, strict=True):
        named = {finding.check: (number, finding) for number, finding in numbered}
        links = {"over": "invariant", "worst": "utilisation", "recall": "copying", "L max": "tails"}
        tails_place = f"findings[{named['tails'][0]}]"
        places = {"L max": f"{tails_place}.value", "L > K": f"{tails_place}.numbers.above_K"}
        for column, cell in zip(columns, cells, strict=True):
            link = href(named[links[column.head]][1]) if column.head in links else ""
            cell["href"] = link or f"#a{look['index']}"
            cell["path"] = cell["path"] and places.get(column.head, cell["path"])
        made.append({**look, "cells": cells[1:]})
    return {"columns": columns, "rows": made}


def _remarks(
    report: AuditResult, data: Mapping[str, Any], href: Callable[[Finding], str]
) -> list[dict[str, str]]:
    """Suspect findings first, then what is unknown, each reason once; then those of an import."""
    groups: dict[tuple[str, str, str], list[tuple[ArmVerdict, Finding]]] = {}
    for arm in report.arms:
        for finding in arm.findings:
            suspect = finding.verdict in (Answer.SUSPECT, Answer.FAILED)
            if suspect or (finding.verdict == Answer.UNKNOWN and not arm.baseline):
                key = (str(finding.verdict), finding.check, finding.text)
                groups.setdefault(key, []).append((arm, finding))
    remarks = [
        {
            "word": word,
            "tone": Verdict(word).tone,
            "check": check,
            "text": visible(why),
            "where": ", ".join(name(arm_name(arm, report.arms)) for arm, _ in group),
            "href": next((link for _, finding in group if (link := href(finding))), ""),
        }
        for (word, check, why), group in sorted(groups.items(), key=lambda item: item[0][0])
    ]
    own = sum(len(arm.findings) for arm in report.arms)
    return remarks + [
        {"word": f["verdict"], "tone": "bad", "check": name(f["check"]), "where": "the log",
         "text": visible(f["text"]), "href": ""}
        for f in data["findings"][own:]
    ]  # fmt: skip


def _bound(row: BoundRow, path: str) -> dict[str, Any]:
    write = text.percent if row.unit == "share" else text.nats
    unit = "" if row.unit == "share" else " nats"
    return {
        "target": row.target,
        "estimate": write(row.point) + unit,
        "interval": f"below {write(row.upper)}{unit}",
        "width": write(row.width) + unit,
        "sample": f"{row.n} {row.units}",
        "method": row.method,
        "evidence": row.evidence,
        "path": path,
    }


def _checks(
    numbered: Sequence[tuple[int, Finding]], href: Callable[[Finding], str]
) -> dict[str, Any]:
    rows = [
        {
            "check": finding.check,
            "word": str(finding.verdict),
            "tone": Verdict(str(finding.verdict)).tone,
            "text": visible(finding.text),
            "href": href(finding),
            "path": f"findings[{number}]",
        }
        for number, finding in numbered
    ]
    return {"count": len(rows), "suspect": sum(row["tone"] == "bad" for row in rows), "rows": rows}
