"""RUN/report: a page that loads nothing and fits in 5 MB, Markdown and JSON, written whole.

All three are pure functions of the run. The page runs nothing but its own script.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined, Template

from nafaudit import __version__
from nafaudit.core import text
from nafaudit.core.finding import CheckWord, Finding
from nafaudit.core.text import as_number, name, plain, script_json, visible
from nafaudit.core.trajectory import Key
from nafaudit.measures.audit import AuditResult, BoundRow, result_json
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.store.files import make_directory, write_whole
from nafaudit.store.run import Run
from nafaudit.views.about import GLOSSARY, VERDICTS, audit, mechanism_parts, subject, terms
from nafaudit.views.audit import BUDGET, NUMBERS, class_report, number_rows
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
from nafaudit.views.html import asset, policy
from nafaudit.views.markdown import escaped_line, markdown
from nafaudit.views.payload import POINTS, ROWS, choose, colour, payload
from nafaudit.views.records import record_name, typed_record
from nafaudit.views.search import reported_search, search_sections, search_view
from nafaudit.views.words import (
    AS_PROMISED,
    arm_name,
    commands,
    refuted,
    replay_section,
    settings_table,
    source_word,
    summary,
    verdict_texts,
)

if TYPE_CHECKING:
    from nafaudit.views.figures import RunFigure

LARGEST = 5_000_000
"""Bytes a page may have."""

_ROOM = 3_000_000
_WORST_PROMPTS = 20
_PARTS_LISTED = 400
_CHECKLIST_TONES = {"pass": "good", "fail": "bad", "not applicable": "open"}
# Findings of a replay, which have a part of the page of their own.
_REPLAYED = ("sampler: ", "replay: ", "budget: ", "sampling: ", "bookkeeping: ")
_SCRIPTS = ("dom.js", "charts.js", "tables.js", "viewer.js", "main.js")


@dataclass(frozen=True)
class Extra:
    """What packages above the views add to a report.

    Attributes:
        checklist: Answers the paper's checklist, as rows of report.json.
        figures: Returns more figures; called only when figures are drawn.
    """

    checklist: Callable[[AuditResult], Sequence[Mapping[str, Any]]] = lambda result: ()
    figures: Callable[[], Sequence[RunFigure]] = lambda: ()


def write_report(
    run: Run, extra: Extra | None = None, *, redact: bool = False, figures: bool = False
) -> tuple[AuditResult, list[Path]]:
    """Writes RUN/report/index.html, report.md and report.json; returns what they show.

    Args:
        run: What to report on; only read.
        extra: What the paper's room adds; nothing if left out.
        redact: Leave the text of prompts, outputs and references out.
        figures: Draw figures/*.svg and *.pdf too, which takes some seconds.
    """
    result = AuditResult.for_report(run)
    return result, save_report(result, extra, redact=redact, figures=figures)


def hides_text(page: Path) -> bool:
    """Returns True if a page that was written before hides text; False if there is none."""
    return page.is_file() and b"all text is hidden (--redact)" in page.read_bytes()


def save_report(
    result: AuditResult,
    extra: Extra | None = None,
    *,
    redact: bool = False,
    figures: bool = False,
    out: Path | None = None,
) -> list[Path]:
    """Writes the files of a report that was collected; options as for `write_report`.

    Args:
        result: What they show.
        extra: What the paper's room adds; nothing if left out.
        redact: Leave the text of prompts, outputs and references out.
        figures: Draw figures too.
        out: Where to; RUN/report if left out.
    """
    extra = extra or Extra()
    data = report_json(result, extra.checklist(result), redact=redact)
    directory = out or result.run.path / "report"
    make_directory(directory)
    drawn: list[Path] = []
    if figures:
        # Imported late: loading the drawing library takes a second.
        from nafaudit.views.figures import draw_figures

        found = draw_figures(result, directory / "figures", extra.figures())
        data["figures"] = [asdict(one) for one in found]
        drawn = [directory / "figures" / file for one in found for file in one.files]
    contents = {
        "index.html": render(result, data, redact=redact),
        "report.md": report_markdown(result, data),
        "report.json": json.dumps(data, indent=1, ensure_ascii=False) + "\n",
    }
    for file, content in contents.items():
        write_whole(directory / file, content.encode())
    return [*(directory / file for file in contents), *drawn]


def report_json(
    result: AuditResult, checklist: Sequence[Mapping[str, Any]] = (), *, redact: bool = False
) -> dict[str, Any]:
    """Returns every verdict, finding and table of a run; strict JSON.

    Equal wherever the records are, but for `made`.

    Args:
        result: What to write down.
        checklist: Rows of the paper's checklist.
        redact: Leave out the text of prompts, which only a search has here.
    """
    design, replay = result.run.design, result.verification
    contradicted = refuted(result)
    # How much was replayed is true on every machine; what a machine saw is not.
    extent = ("recorded", "replayed", "tokens", "current", "outdated")
    data = result_json(result, f"run-{design['hash'][:10]}") | {
        "summary": summary(result.overall, result.arms, source_word(result)),
        "words": [
            {"mechanism": arm.mechanism, "k": as_number(arm.k)}
            | {
                said.question: f"{said.headline}. {said.text}"
                for said in verdict_texts(arm, source_word(result))
            }
            for arm in result.arms
            if not arm.baseline
        ],
        "bounds": [
            {
                "mechanism": result.arms[row.arm_index].mechanism,
                "k": as_number(result.arms[row.arm_index].k),
            }
            | plain(row)
            for row in result.bounds
        ],
        "prompts": [
            {
                field.name: plain(getattr(row, field.name))
                for field in fields(row)
                if field.name not in ("arm", "shown")
            }
            | {
                "mechanism": row.arm.mechanism,
                "k": as_number(row.arm.k),
                "worst": {
                    "trajectory": row.shown.key.trajectory,
                    "record": record_name(result, row.shown),
                },
            }
            for row in result.by_prompt
        ],
        "checklist": list(checklist),
        "verification": replay and {key: replay[key] for key in extent} | {"refuted": contradicted},
        "decided": {key: design[key] for key in design if key != "extents"},
    }
    # A run without a search does not speak of one.
    if result.search is not None:
        data["search"] = reported_search(result.search, redact=redact)
    data["made"] = {
        "extents": design["extents"],
        "sessions": result.run.sessions,
        "mixed": result.run.mixed,
        "parts": result.run.journal(),
        "verification": replay
        and {key: replay[key] for key in replay if key not in (*extent, "run", "seconds")},
    }
    return data


@cache
def _template() -> Template:
    """Compiles the page's template, once in a process: that takes longer than filling it."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(asset("page.html.j2"))


def render(result: AuditResult, data: dict[str, Any], *, redact: bool = False) -> str:
    """Writes the page of a run, with fewer trajectories in full if it would be too large.

    Args:
        result: What is shown.
        data: The content of report.json; numbers name their place there.
        redact: Leave out the text of prompts, outputs and references.
    """
    searched = result.search is not None
    css = asset("page.css") + (asset("search.css") if searched else "")
    names = (*_SCRIPTS, "search.js") if searched else _SCRIPTS
    js = '"use strict";\n(() => {\n' + "\n".join(map(asset, names)) + "\n})();\n"
    template = _template()
    room = _ROOM
    while True:
        chosen = choose(result, room)
        shown = {one.key: index for index, one in enumerate(chosen)}
        page = template.render(
            _page_sections(result, data, shown, redact=redact),
            css=css,
            js=js,
            data=script_json(payload(result, chosen, redact=redact)),
            policy=policy(css, js),
            version=__version__,
            redacted=redact,
        )
        if len(page.encode()) < LARGEST or room < 10_000:
            return page
        room //= 2


def report_markdown(result: AuditResult, data: Mapping[str, Any]) -> str:
    """Returns report.md, for a pull request: verdicts, numbers, the worst prompts, findings.

    Args:
        result: What is shown.
        data: The content of report.json.
    """
    written = markdown(_report_document(result, data))
    if "figures" in data:
        written += "\n## Figures\n\n"
    for figure in data.get("figures", ()):
        links = ", ".join(f"[{file}](figures/{file})" for file in figure["files"])
        written += (
            f"- {escaped_line(figure['caption'])}: {links or escaped_line(figure['lacks'])}\n"
        )
    return written


def _report_document(result: AuditResult, data: Mapping[str, Any]) -> Document:
    replay = replay_section(result)
    lines = [f"{replay['word']}: {replay['text']}"]
    lines += [f"{remark['word']}: {remark['text']}" for remark in replay["remarks"]]
    if result.run.mixed:
        lines.insert(0, f"mixed: {result.run.mixed}")
    if result.missing is not None:
        lines.insert(0, f"incomplete: {result.missing.text}")
    names = {(arm.mechanism, arm.k): arm_name(arm, result.arms) for arm in result.arms}
    answers = tuple(Column(one, one, words=True) for one in ("kept", "tested", "worth"))
    heads = ("n", "spend", "use", "worst", "active", "recall")
    worst = (
        Column("prompt", "prompt", write=name, words=True),
        Column("class", "label", write=name, words=True),
        Column("budget", "arm", write=names.__getitem__, words=True),
        Column("n", "count"),
        Column("over", "violations"),
        Column("spend", "spend", write=nats),
        Column("U_EBB", "proxy", write=nats),
        Column("width", "width", write=nats),
        Column("worst use", "worst_utilisation", write=percent),
        Column("recall", "recall", write=percent),
        Column("record", "shown", write=partial(typed_record, result), words=True),
    )
    facts = (*subject(result), *audit(result))
    head_rows = tuple((one.term, f"{one.text} {one.digest}".rstrip()) for one in facts)
    sections = [Section("What was audited", pairs=head_rows)]
    sections += [
        Section(
            names[arm.mechanism, arm.k],
            pairs=tuple(
                (said.question, f"{said.word}: {said.headline}. {said.text}")
                for said in verdict_texts(arm, source_word(result))
            ),
        )
        for arm in result.arms
        if not arm.baseline
    ]
    if "search" in data:
        sections += search_sections(data["search"])
    rows = number_rows(result.arms, list(names.values()))
    sections += [
        Section("Numbers", Table.of((BUDGET, *answers, *(NUMBERS[h] for h in heads)), rows)),
        *class_report(result.classes),
        Section("Worst prompts", Table.of(worst, result.by_prompt[:_WORST_PROMPTS])),
        Section(
            "Findings",
            pairs=tuple(
                (f"{names[arm.mechanism, arm.k]}, {f.check}", f"{f.verdict}. {f.text}")
                for arm in result.arms
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
        Section("Decided", pairs=tuple(settings_table(result, redact=False))),
        Section("Again", pairs=commands(result)),
    ]
    head = f"{result.overall.verdict}: {data['summary']}"
    return Document("nafaudit report", tuple(sections), head, tuple(lines))


def _page_sections(
    result: AuditResult, data: Mapping[str, Any], shown: Mapping[Key, int], *, redact: bool
) -> dict[str, Any]:
    """Returns what the template is filled with: words, rows and links, no markup.

    Args:
        result: What is shown.
        data: The content of report.json; numbers say where in it they are.
        shown: Which trajectories the viewer holds, and at which index.
        redact: True if text is left out.
    """

    def href(finding: Finding) -> str:
        """Returns a link to the step that a finding rests on, if the viewer has it."""
        witness = finding.witness
        if witness is None or witness.key not in shown:
            return ""
        return f"#t{shown[witness.key]}.{witness.step or 0}"

    design, journal, arms = result.run.design, result.run.journal(), result.arms
    names = [name(arm_name(arm, arms)) for arm in arms]
    # The findings of each arm with their numbers in report.json.
    findings: list[list[tuple[int, Finding]]] = []
    start = 0
    for arm in arms:
        findings.append(list(enumerate(arm.findings, start)))
        start += len(arm.findings)
    looks = [
        {"index": i, "name": names[i], "colour": colour(arm, result), "baseline": arm.baseline}
        for i, arm in enumerate(arms)
    ]
    recorded = len(result.rows)
    # A class is named by its file's name; where that is stands below.
    judged = sorted(
        {mechanism_parts(one.mechanism)[0].rpartition("/")[2] for one in arms if not one.baseline}
    )
    kind = {"attack": "Trajectories of an attack", "confirm": "Fresh draws of a search"}.get(
        design["identity"]["purpose"], "Audit"
    )
    if result.search is not None:
        kind = "Search for prompts that break the budget"
    elif design["identity"]["protocol"] == "imported":
        kind = "Audit of a log"
    return {
        "title": name(f"{kind}: {', '.join(judged) or 'no budget'}") if arms else "An empty run",
        "verdict": result.overall.verdict,
        "tone": Verdict(result.overall.verdict).tone,
        "summary": data["summary"],
        "about": (("What was audited", subject(result)), ("By what, and how far", audit(result))),
        "terms": terms(result),
        "replay": replay_section(result),
        "mixed": visible(result.run.mixed),
        "cards": [
            look | _card(result, arm, href)
            for look, arm in zip(looks, arms, strict=True)
            if not arm.baseline
        ],
        "numbers": _numbers(result, looks, findings, href),
        "remarks": _remarks(result, data, href),
        "as_promised": f"{AS_PROMISED[:1].upper()}{AS_PROMISED[1:]}"
        if any(arm.silent for arm in arms)
        else "",
        "viewer_note": f"All {recorded} trajectories are here, as recorded."
        if len(shown) == recorded
        else f"{len(shown)} of {recorded} trajectories are shown in full: those that findings "
        "point at, the worst of every budget, and a sample drawn by prompt and number; each with "
        f"the same {'prompt and number' if result.context.foreign else 'draws'} under every other "
        "budget. The others are in the run's parts.",
        "points_note": "Every trajectory is drawn. Click a mark to read it."
        if max((len(result.of_arm(arm)) for arm in arms), default=0) <= POINTS
        else f"Marks: at most {POINTS} trajectories a budget, the worst quarter of them and a "
        "sample of the rest. Histograms, shares and tails are of all of them. Click a mark to read "
        "it.",
        "drawn": data.get("figures", []),
        "bounds": [
            looks[row.arm_index] | _bound(row, f"bounds[{index}].point")
            for index, row in enumerate(result.bounds)
        ],
        "level": result.context.delta,
        "methods": sorted({(row.method, row.assumes) for row in result.bounds}),
        "classes_note": f"Every bound misses with chance at most {result.classes.delta:.2g}: one "
        f"level shared by {result.classes.looks} cells, classes times budgets. Under 20 prompts a "
        "bound is shown for orientation, not as evidence. U(R) and U(R_eff) are the paper's."
        if result.classes.rows
        else "",
        "prompts_note": "Sorted by violations, then by the largest use of its own budget, recall "
        "and spend. Click a heading to sort, a number to read the trajectory behind it."
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
        "decided": settings_table(result, redact=redact),
        "commands": commands(result),
        "glossary": GLOSSARY + tuple((word, meaning) for _, word, meaning in VERDICTS),
        "sessions": [visible(json.dumps(s, sort_keys=True)) for s in result.run.sessions],
        "parts": journal[:_PARTS_LISTED],
        "parts_left": max(0, len(journal) - _PARTS_LISTED),
        "search": search_view(data["search"]) if "search" in data else None,
        "cells": _page_cells,
    }


def _page_cells(table: Table) -> list[list[dict[str, Any]]]:
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


def _card(result: AuditResult, arm: ArmVerdict, href: Callable[[Finding], str]) -> dict[str, Any]:
    promise = f"the promise: at most {arm.k:g} nats a token"
    if length := result.context.max_new_tokens:
        promise += f", K = {result.context.compared_with(arm.k):g} nats over {length} tokens"
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
            for said in verdict_texts(arm, source_word(result))
        ],
    }


def _numbers(
    result: AuditResult,
    looks: Sequence[Mapping[str, Any]],
    findings: Sequence[Sequence[tuple[int, Finding]]],
    href: Callable[[Finding], str],
) -> dict[str, Any]:
    """Returns the table of numbers, with links to the trajectories that they rest on."""
    rows = number_rows(result.arms, [look["name"] for look in looks])
    for arm, row, numbered in zip(result.arms, rows, findings, strict=True):
        tails = next(finding for _, finding in numbered if finding.check == "tails")
        above = None if arm.baseline else tails.numbers.get("above_K")
        row["tails"] = {"value": tails.value, "above": above}
    columns = (
        BUDGET,
        *NUMBERS.values(),
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
    for look, cells, numbered in zip(looks, _page_cells(table), findings, strict=True):
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
    result: AuditResult, data: Mapping[str, Any], href: Callable[[Finding], str]
) -> list[dict[str, str]]:
    """Returns suspect findings, then unknown ones, a check once, then an import's.

    Findings of a replay are left out, as another part of the page has them.
    """
    groups: dict[tuple[str, str], list[tuple[ArmVerdict, Finding]]] = {}
    for arm in result.arms:
        for finding in arm.findings:
            suspect = finding.verdict in (CheckWord.SUSPECT, CheckWord.FAILED)
            replayed = result.verification and finding.check.startswith(_REPLAYED)
            unknown = finding.verdict == CheckWord.UNKNOWN and not arm.baseline
            if (suspect or unknown) and not replayed:
                key = (str(finding.verdict), finding.check)
                groups.setdefault(key, []).append((arm, finding))
    remarks = []
    for (word, check), group in sorted(groups.items()):
        names = [name(arm_name(arm, result.arms)) for arm, _ in group]
        said = list(dict.fromkeys(finding.text for _, finding in group))
        more = f" (said of {names[0]}; the others are below, under Checks)" if said[1:] else ""
        remarks.append(
            {
                "word": word,
                "tone": Verdict(word).tone,
                "check": check,
                "text": visible(said[0]) + more,
                "where": ", ".join(names),
                "href": next((link for _, finding in group if (link := href(finding))), ""),
            }
        )
    own = sum(len(arm.findings) for arm in result.arms)
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
