"""An audit on a terminal: the three answers, numbers, classes, and what is not fine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nafaudit.core.finding import CheckWord, Finding, Kept, Tested
from nafaudit.core.ledger import budget_name, is_baseline
from nafaudit.core.promise import in_words
from nafaudit.core.text import cut, name
from nafaudit.core.trajectory import Arm
from nafaudit.measures.audit import AuditResult
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
from nafaudit.views.search import defects_of
from nafaudit.views.words import AS_PROMISED

BUDGET = Column("budget", "name", "k nats per token", words=True)
NUMBERS = {
    column.head: column
    for column in (
        Column("n", "trajectories", "trajectories"),
        Column("over", "violations", "trajectories that went over their budget"),
        Column("spend", "spend.mean", "mean spend in nats", nats),
        Column("use", "utilisation.mean", "mean spend as a share of its own budget", percent),
        Column("p95", "utilisation.p95", "95 % of trajectories used less of their budget", percent),
        Column(
            "worst", "utilisation.max", "largest share of its own budget that was spent", percent
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
    rows = number_rows(arms, names)
    for row, arm in zip(rows, arms, strict=True):
        share = arm.passages.share
        worth = Verdict(arm.worth, f"({share})" if share else "")
        row |= {"worth": None if arm.baseline else worth}
        if not arm.baseline and arm.tested != Tested.UNKNOWN:
            limited = f"({arm.limited.limited} of {arm.limited.counted})"
            row |= {"tested": Verdict(arm.tested, limited)}
    answers = (
        BUDGET,
        Column("kept?", "kept", write=Verdict, words=True),
        Column("tested?", "tested", words=True),
        Column("worth?", "worth", words=True),
    )
    heads = ("n", "spend", "use", "worst", "forced", "active", "free", "recall")
    lines = []
    if result.missing is not None:
        lines.append(f"incomplete: {result.missing.text}")
    elif (recorded := len(result.rows)) < run.asked:
        lines.append(f"incomplete: {recorded} of {run.asked} trajectories are recorded")
    for arm, shown in zip(arms, names, strict=True):
        if not arm.baseline or arm.overspends_nothing:
            finding = arm.finding("invariant")
            lines.append(f"{shown}: {finding.text}{_where(finding)}")
            if not arm.baseline and arm.tested != Tested.UNKNOWN:
                said = filter(None, (arm.limited.text, arm.copies.text))
                lines.append(f"{shown}: {'; '.join(said)}")
            if arm.worst_use:
                lines.append(f"{shown}: {arm.worst_use[:1].lower()}{arm.worst_use[1:-1]}")
    lines += _remark_lines(arms)
    if result.search is not None and (defects := defects_of(result.search)):
        lines.append("defects of the search's protocol that occurred (none is about the decoder):")
        lines += [f"  {check}: {text}" for check, text in defects]
    lines.append(f"charges are against {run.design['anchor']}")
    lines.append(f"{'run directory' if Path(source).is_dir() else 'read from'}: {source}")
    if page is not None:
        lines.append(f"report: {page}")
    promise = (f"promise: {in_words(held)}",) if (held := result.context.held_to) else ()
    likeness = dict.fromkeys(arm.conforms.text for arm in arms if arm.conforms is not None)
    return Document(
        "nafaudit audit",
        (
            *((Section(lines=(*promise, *likeness)),) if promise else ()),
            Section(
                table=Table.of(answers, rows),
                note="tested: how many answers to prompts with a reference the limit changed; "
                "worth: of how many protected passages the word is true; a budget says nothing "
                "about a passage if K reaches the safe model's surprisal of its first T tokens",
            ),
            Section(
                table=Table.of((BUDGET, *(NUMBERS[head] for head in heads)), rows),
                note="n: trajectories; spend: mean nats; use, worst: mean and largest spend as a "
                "share of its own budget; forced, active, free: share of all steps, pooled, that "
                "served the safe model, a mixture, the risky model; recall: share of the "
                "reference that came back nearly word for word, in runs of 20 words or more"
                + (f"; {AS_PROMISED}" if any(arm.silent for arm in arms) else ""),
            ),
            *class_sections(result.classes),
            Section(lines=tuple(lines)),
        ),
        answer=result.overall,
    )


def number_rows(arms: Sequence[ArmVerdict], names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns verdicts with names; a baseline promises nothing that could be kept.

    Of a refuted arm it is not known how many went over budget.
    """
    rows = [vars(arm) | {"name": shown} for arm, shown in zip(arms, names, strict=True)]
    for row, arm in zip(rows, arms, strict=True):
        if row["baseline"]:
            row["utilisation"] = dict.fromkeys(("mean", "p95", "max"))
        if row["kept"] == Kept.REFUTED:
            row["violations"] = None
        if row["baseline"]:
            shown = ("kept", "violations") if arm.overspends_nothing else ()
            every = ("kept", "tested", "worth", "violations")
            row |= {one: None for one in every if one not in shown}
    return rows


def _remark_lines(arms: Sequence[ArmVerdict]) -> list[str]:
    """Returns a line for every finding that is not fine; a reason for UNKNOWN is said once."""
    suspect: list[str] = []
    unknown: dict[tuple[str, str], list[str]] = {}
    for arm in arms:
        budget = budget_name(arm.k)
        for finding in arm.findings:
            if finding.verdict in (CheckWord.SUSPECT, CheckWord.FAILED):
                said = f"{budget}: {finding.check} {finding.verdict}: {finding.text}"
                suspect.append(said + _where(finding))
            elif finding.verdict == CheckWord.UNKNOWN and not arm.baseline:
                unknown.setdefault((finding.check, finding.text), []).append(budget)
    if len(unknown) > _MOST_REASONS:
        checks = ", ".join(dict.fromkeys(check for check, _ in unknown))
        return [*suspect, f"UNKNOWN: {checks}; --json says why"]
    return suspect + [
        f"{', '.join(names)}: {check} UNKNOWN: {why}" for (check, why), names in unknown.items()
    ]


def _where(finding: Finding) -> str:
    if finding.witness is None:
        return ""
    return f" (prompt {finding.witness.key.prompt!r}, {finding.witness.at})"


def class_sections(table: ClassTable) -> list[Section]:
    """Returns a row per class and budget, which a mean over all prompts hides.

    Nothing if there is only one class; of many, the worst under each budget.
    """
    rows = [row for row in table.rows if not is_baseline(row.k)]
    if len({row.label for row in rows}) < 2:
        return []
    worst = [table.spends_most(arm) for arm in dict.fromkeys(Arm(r.mechanism, r.k) for r in rows)]
    marked = set(map(id, worst))
    listed = rows if len(rows) <= _MOST_CLASS_ROWS else [row for row in worst if row]
    evident = any(found and enough(found.n) for row in listed for found in (row.u_ebb, row.upper))

    def label(row: ClassRow) -> str:
        return cut(name(row.label), _LABEL) + ("*" if id(row) in marked else "")

    def limit(found: Bound | None, passes: bool | None, field: str = "value") -> str:
        if found is None or not enough(found.n):
            return NONE
        return nats(getattr(found, field)) + ("!" if passes is False else "")

    columns = [
        Column("budget", "k", write=budget_name, words=True),
        Column("class", write=label, words=True),
        Column("n", "trajectories"),
        Column("of", "prompts"),
        Column("spend", "mean", write=nats),
    ]
    notes = [
        "n, of: trajectories, prompts; *: spends most; var, R_eff: variance and range of the spends"
    ]
    if len(listed) < len(rows):
        notes.insert(0, f"only the worst of {len(table.labels)} classes each; --json has them all")
    columns += [
        Column("var", "variance", write=nats),
        Column("R_eff", "R_eff", write=nats),
    ]
    if evident:
        columns += [
            Column("U", write=lambda row: limit(row.u_ebb, row.passes)),
            Column("U_eff", write=lambda row: limit(row.u_ebb_eff, row.passes_eff)),
            Column("U width", write=lambda row: limit(row.u_ebb_eff, None, "width")),
            Column("upper", write=lambda row: limit(row.upper, row.certified)),
        ]
        notes += [
            "U, U_eff: the paper's U_EBB of the mean spend with R = T ln|V| and with R_eff, the "
            "range seen, both proxies; U width: U_eff less the mean; upper: a bound that holds, "
            f"with prompts as units and R = K; each at level {table.delta:.2g} for {table.looks} "
            "looks; !: above K",
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
    sections = []
    for mechanism in (mechanisms := sorted({row.mechanism for row in listed})):
        mine = [row for row in listed if row.mechanism == mechanism]
        title = name(mechanism)[:60] if len(mechanisms) > 1 else ""
        last = mechanism == mechanisms[-1]
        sections += [
            Section(title, Table.of(columns, mine), "\n".join(notes) if last else ""),
            Section("", Table.of([*columns[:2], *OVERLAPS], mine), _OVERLAP_NOTE if last else ""),
        ]
    return sections


def class_report(table: ClassTable) -> list[Section]:
    """Returns the class table of a written report: every class, the paper's columns and ours."""

    def value(attribute: str, field: str = "value") -> Callable[[ClassRow], str]:
        def write(row: ClassRow) -> str:
            found = getattr(row, attribute)
            return NONE if found is None else nats(getattr(found, field))

        return write

    rows = [row for row in table.rows if not is_baseline(row.k)]
    who = [
        *([Column("mechanism", "mechanism", write=name, words=True)]
          if len({row.mechanism for row in rows}) > 1 else []),
        Column("budget", "k", write=budget_name, words=True),
        Column("class", "class", write=name, words=True),
    ]  # fmt: skip
    spends = [
        Column("M", "trajectories"),
        Column("prompts", "prompts"),
        Column("mean spend", "mean", write=nats),
        Column("variance", "variance", write=nats),
        Column("R_eff", "R_eff", write=nats),
        Column("U_EBB (R)", write=value("u_ebb")),
        Column("U_EBB (R_eff)", write=value("u_ebb_eff")),
        Column("U width", write=value("u_ebb_eff", "width")),
        Column("K", "K", write=nats),
        Column("upper bound", write=value("upper")),
    ]
    note = (
        "U_EBB is the paper's, a proxy; U width is U_EBB (R_eff) less the mean. The upper bound "
        f"holds: prompts are its units. Each at level {table.delta:.2g}, shared by {table.looks} "
        "cells."
    )
    return [
        Section("Spend by class", Table.of([*who, *spends], rows), note),
        Section("Debt and overlap by class", Table.of([*who, *OVERLAPS], rows), _OVERLAP_NOTE),
    ]


def _share(value: float) -> str:
    return NONE if math.isnan(value) else f"{value:.3f}"


def _overlap(kind: str, metric: str) -> Callable[[ClassRow], str]:
    def write(row: ClassRow) -> str:
        return _share(getattr(row.copying, kind)(metric))

    return write


OVERLAPS = (
    Column("debt", "debt.mean", write=nats),
    Column("median", "debt.median", write=nats),
    Column("max", "debt.max", write=nats),
    Column("ROUGE", write=_overlap("mean", "rouge_l_f1")),
    Column("max", write=_overlap("max", "rouge_l_f1")),
    Column("5-gram", write=_overlap("mean", "jaccard_5gram")),
    Column("max", write=_overlap("max", "jaccard_5gram")),
    Column("recall", write=lambda row: percent(row.copying.mean("near_verbatim_recall"))),
)
"""Columns of debts and of overlap with references, of a class."""

_OVERLAP_NOTE = (
    "debt: mean, median and largest prefix debt in nats; ROUGE: ROUGE-L F1; 5-gram: Jaccard index "
    "of runs of five words; each with the largest of a trajectory; recall: near-verbatim, mean"
)
