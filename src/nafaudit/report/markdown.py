"""The report for a pull request or a terminal: verdicts, numbers, the worst prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nafaudit.core.text import name, nats, percent
from nafaudit.measures.audit import AuditResult, prompt_rows
from nafaudit.report.searched import search_view
from nafaudit.views.markdown import plain_text
from nafaudit.views.records import typed_record
from nafaudit.views.words import (
    COMMANDS,
    arm_name,
    refuted,
    replay_section,
    settings_table,
    verdict_texts,
)

_WORST = 20


def markdown(report: AuditResult, plain: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    replay = replay_section(report)
    lines = ["# nafaudit report", "", plain_text(plain["summary"]), ""]
    if report.gaps is not None:
        lines += [f"**incomplete**: {plain_text(report.gaps.text)}", ""]
    if report.run.mixed:
        lines += [f"**mixed**: {plain_text(report.run.mixed)}", ""]
    lines += [f"**{plain_text(replay['word'])}**: {plain_text(replay['text'])}", ""]
    lines += [
        f"- {plain_text(remark['word'])}: {plain_text(remark['text'])}"
        for remark in replay["remarks"]
    ]
    for arm in report.arms:
        if not arm.baseline:
            lines += [f"## {plain_text(arm_name(arm, report.arms))}", ""]
            lines += [
                f"- **{said.question}** {said.word}: {plain_text(said.headline)}. "
                f"{plain_text(said.text)}"
                for said in verdict_texts(arm, refuted=refuted(report.verification))
            ]
            lines.append("")
    lines += _search(plain)
    lines += ["## Numbers", "", *_numbers(report, plain), "", "## Worst prompts", ""]
    lines += [*_worst(report), "", "## Findings", ""]
    lines += [
        f"- {plain_text(arm_name(arm, report.arms))}, {plain_text(f.check)}: {f.verdict}. "
        f"{plain_text(f.text)}"
        for arm in report.arms
        for f in arm.findings
    ]
    lines += ["", "## Checklist", ""] if plain["checklist"] else []
    lines += [
        f"- {row['item']}. {plain_text(row['title'])}: **{row['answer']}**. "
        f"{plain_text(row['text'])}"
        for row in plain["checklist"]
    ]
    if "figures" in plain:
        lines += ["", "## Figures", "", *map(_figure, plain["figures"])]
    lines += ["", "## Decided", ""]
    lines += [
        f"- {plain_text(term)}: {plain_text(value)}"
        for term, value in settings_table(report, redact=False)
    ]
    lines += ["", "## Again", ""]
    lines += [f"- `{command}`: {meaning}" for command, meaning in COMMANDS]
    return "\n".join(lines) + "\n"


def _search(plain: Mapping[str, Any]) -> list[str]:
    """What a search found; nothing if there was none."""
    if "search" not in plain:
        return []
    view = search_view(plain["search"])
    lines = ["## Search", "", f"**{plain_text(view.word)}**: {plain_text(view.text)}", ""]
    lines += [f"- {plain_text(remark)}" for remark in view.remarks]
    lines += [f"- counterexample: nafaudit verify {plain_text(path)}" for path in view.bundles]
    for one in view.tables:
        lines += ["", f"### {plain_text(one.title)}", ""]
        heads = [plain_text(head) for head, _ in one.heads]
        lines += table(heads, ([plain_text(cell.text) for cell in row] for row in one.rows))
        lines += ["", plain_text(one.note)] if one.note else []
    lines += ["", "### The finalists", ""] if view.prompts else []
    for prompt in view.prompts:
        words = f": \u201c{plain_text(prompt.text)}\u201d" if prompt.text else ""
        lines.append(f"- {plain_text(prompt.title)}, {plain_text(prompt.descent)}{words}")
    return [*lines, ""]


def _figure(figure: Mapping[str, Any]) -> str:
    links = ", ".join(f"[{name}](figures/{name})" for name in figure["files"])
    return f"- {plain_text(figure['caption'])}: {links or plain_text(figure['lacks'])}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; the first column is text, the others numbers."""
    rule = "|".join(["---", *["---:"] * (len(heads) - 1)])
    return [f"| {' | '.join(heads)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def _numbers(report: AuditResult, plain: Mapping[str, Any]) -> list[str]:
    heads = ["budget", "kept", "tested", "worth", "n", "spend", "use", "worst", "active", "recall"]
    rows = []
    for arm, verdict in zip(report.arms, plain["verdicts"], strict=True):
        words = ["\u2013"] * 3 if arm.baseline else [arm.kept, arm.tested, arm.worth]
        use = verdict["utilisation"]
        shares = [use["mean"], use["max"]] if not arm.baseline else ["nan", "nan"]
        shares += [verdict["regime"]["active"], verdict["recall"]["mean"]]
        rows.append(
            [
                plain_text(arm_name(arm, report.arms)),
                *words,
                str(verdict["trajectories"]),
                nats(float(verdict["spend"]["mean"])),
                *(percent(float(share)) for share in shares),
            ]
        )
    return table(heads, rows)


def _worst(report: AuditResult) -> list[str]:
    heads = ["prompt", "class", "budget", "n", "over", "spend", "worst use", "recall", "record"]
    arms = {(arm.mechanism, arm.k): arm_name(arm, report.arms) for arm in report.arms}
    rows = [
        [
            plain_text(name(row.prompt)),
            plain_text(name(row.label)),
            plain_text(arms[row.arm]),
            str(row.count),
            str(row.violations),
            nats(row.spend),
            percent(row.worst_utilisation),
            percent(row.recall),
            plain_text(typed_record(report, row.worst)),
        ]
        for row in prompt_rows(report)[:_WORST]
    ]
    return table(heads, rows)
