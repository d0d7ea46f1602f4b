"""The recomputation as a document for the terminal, as the page docs/paper.md, and as JSON."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from nafaudit.core.finding import Outcome, Overall
from nafaudit.core.text import plain
from nafaudit.paper.checklist_paper import of_paper
from nafaudit.paper.claims import Claim, ClaimVerdict, Unchecked
from nafaudit.paper.recompute import (
    DEPENDS,
    Disagreement,
    Grid,
    Recomputation,
    counterfactuals,
    merged,
    recompute,
)
from nafaudit.views.document import Column, Document, Section, Table
from nafaudit.views.markdown import escaped_line, section_lines, table_lines

# A point with more cells than this is shown by its first ones.
_SHOWN = 3
_GROUPS = {
    "misprint": "Misprints and loose words",
    "contradicted": "Claims that its own tables contradict",
    DEPENDS: "Claims that depend on the reading, not counted",
}
_HEAD = """# The paper, recomputed

"The paper" is *An Empirical Audit of k-NAF Budget Accounting for Anchored Decoding*. What it
prints was computed again from the numbers it prints, and from files that its authors released, then
or later, in the repository that its title page links
(<https://github.com/Vijayavallabh/DA5001_Project>; its experiments are commit 60a3568, where its
appendix "Released artifacts" names them). The numbers taken from them are copied beside its tables.
They are summaries, by class, prompt or generation: the released logs of single trajectories are
pointers to files that are not there.

1. {cells} of {tables} checks of its table cells and equations agree; a cell can have several. The
   others are 24 cells of one table, 0.2 % too small.
2. Its main findings follow from its tables: at k = 3 and 5 every class mean is below K/3 and every
   U_EBB below K; ratios above 1 occur at N = 4 only, where the range term alone is 71 to 97 % of
   the budget; projected to N = 20, all three prompts pass.
3. {points} points disagree: {misprint} misprints or loose words, which change no conclusion, and
   {contradicted} claims that its own tables contradict. {depends} more depend on the reading:
   they are shown, and not counted.
4. Half of the stress rows repeat the final pool, so that they are no fresh evidence. That the
   search did not raise the maximum at k = 3 the paper says itself.
5. Two parts of the method are not as printed: B_j is not the remaining budget, and Algorithm 1
   cannot give six prompts of eight N = 20.
6. The collapse to [0.26, 0.40] joins a larger N with a larger budget, as introduction, text and
   captions say; that the abstract leaves k = 5 out is not counted. Against the budget of k = 3 the
   same bounds give 0.43 to 0.58. The diagnosis, a small-sample artifact, stands.
7. The transfer gap counts the invalid row as 0, which its definition does not say. Without that row
   it is -0.107 at k = 3, not 0.003, which supports the paper's explanation of it.
8. Of the four checklist steps that it claims to pass, at least in part, step 5 is not passed; 2, 3
   and 6 depend on the reading.
9. {unchecked} checks cannot be made, most for lack of single spends and of texts: {no_tables} of
   table cells, {no_equations} of equations, {no_text} of the text.
10. Rounding, omissions, and words that a fair reading makes right, are not counted as disagreement.
    So mean spends change "only marginally": by 2 % on average over the eight prompts and 7.5 % over
    the three, though by -17 to +15 % one by one. The search "elevates" the ratio to 0.988 at k = 3
    by choosing among its first prompts; at k = 5 "the optimizer improves" it, though by a template
    that it falls back on (g3_fallback_7); its model's best has 0.695, the best seed 0.648. N = 20
    counts trajectories that were run; one of them repeats another ([search.md](search.md)).

Written by `nafaudit paper --markdown`; a test keeps it up to date.

**The rule.** Each printed input stands for every value that rounds to it, and the computation is
carried through with these intervals; `U_EBB` is [`stats.ebb`](../src/nafaudit/stats/moments.py). A
printed result agrees if some value in the computed interval rounds to it. "Approximately" allows
half a unit of the last digit that is not 0, or 1 %. A ratio "in [0.26, 0.40]" is right if it lies
there. Words such as "doubling" are read as the numbers given beside them: that reading is ours, and
where another is as fair, the claim depends on the reading. Settings such as δ are exact. *Released*
marks what rests on the released files and not on the paper alone; those come from the same authors,
and two (regimes, equal spends) are from their later analysis of the same logs, in the same
repository after that commit. In the tables beside the claims they are the files `released_*.csv`.

Claims and points are data: [`quotes.csv`](../src/nafaudit/paper/data/quotes.csv),
[`points.csv`](../src/nafaudit/paper/data/points.csv) and the tables beside them.
"""
_FIGURES = """## Figures

Drawn from the printed numbers; `nafaudit paper --out DIR` writes them as SVG and PDF. Single spends
are not released, so the second figure shows where they must lie.

![Held-out ratio against N](paper/heldout.svg)
![Where the spends of flagged and other prompts must lie](paper/spend.svg)
![Deterministic term against N, formula and printed values](paper/bernstein.svg)
![U_EBB under R and R_eff](paper/effective-range.svg)
"""


def paper_document(
    result: Recomputation,
    grids: Sequence[Grid],
    files: tuple[str, ...] = (),
    *,
    every: bool = False,
) -> Document:
    """Returns the recomputation as a document: counts first, disagreements last.

    Args:
        result: The recomputation.
        grids: The counterfactuals.
        files: What was written.
        every: Shows every check.
    """
    sections = [_areas(result)]
    if every:
        shown = tuple(
            f"{cell.verdict}  {cell.where}: "
            + (cell.text if isinstance(cell, Claim) else f"{cell.printed}: {cell.why}")
            for cell in result.cells
        )
        sections.append(Section("every check", lines=shown))
    sections += [_grid(grid) for grid in grids]
    reasons = Counter(cell.why for cell in result.not_checkable).most_common()
    lines = [f"{count:4}  {why}" for why, count in reasons if count > 1]
    single = sum(count == 1 for _, count in reasons)
    lines.append(f"{single:4}  for a reason of its own each (--all, --json)")
    sections.append(Section("not checkable, by reason", lines=tuple(lines)))
    for group, points in _grouped(result).items():
        lines = []
        for number, point in points:
            lines.append(f"{number}. {point.name}")
            found = merged(point.claims)
            most = len(found) if every or len(found) <= _SHOWN + 1 else _SHOWN
            lines += [f"   {where}: {claim.text}" for where, claim in found[:most]]
            if most < len(found):
                lines.append(f"   and {len(found) - most} more cells (--all shows them)")
            if every and point.sentence:
                lines.append(f"   {point.sentence}")
            lines += [f"   What changes: {point.change}"] if point.change else []
        words = _GROUPS[group].lower()
        title = words if group == DEPENDS else f"disagreements found: {words}"
        sections.append(Section(title, lines=tuple(lines)))
    return Document("nafaudit paper", tuple(sections), files=files, answer=paper_overall(result))


def paper_overall(result: Recomputation) -> Overall:
    """Returns the counts; the paper is not a decoder under audit, so that there is no verdict."""
    return Overall(Outcome.RECOMPUTED, summary(result), 0)


def summary(result: Recomputation) -> str:
    """Returns one sentence of counts."""
    return (
        f"{len(result.cells)} checks: {len(result.agree)} agree, "
        f"{len(result.disagree)} disagree in {len(result.points)} points, "
        f"{len(result.depends)} depend on the reading, {len(result.not_checkable)} not checkable"
    )


def page(result: Recomputation | None = None) -> str:
    """Returns the page docs/paper.md."""
    found = result or recompute()
    groups = _grouped(found)
    printed = [c for c in (*found.agree, *found.disagree) if _area(c) != _TEXT]
    agree = [c for c in printed if c.verdict == ClaimVerdict.AGREE]
    counts = {group: len(groups.get(group, ())) for group in _GROUPS}
    kinds = Counter(_area(cell).split()[0] for cell in found.not_checkable)
    head = _HEAD.format(
        cells=len(agree),
        tables=len(printed),
        points=len(found.points),
        unchecked=len(found.not_checkable),
        no_tables=kinds["Table"],
        no_equations=kinds["Equation"],
        no_text=kinds[_TEXT.split()[0]],
        **counts,
    )
    lines = [head]
    for group, points in groups.items():
        lines += [f"## {_GROUPS[group]}", ""]
        for number, point in points:
            lines += [*_point_lines(number, point), ""]
    several = "A cell has as many checks as there are numbers to hold it against."
    lines += ["## Counts", "", f"{summary(found)}. {several}", ""]
    lines += [*section_lines(_areas(found, title="")), "## Counterfactuals", ""]
    for grid in counterfactuals():
        lines += [*section_lines(_grid(grid), level=3), ""]
    items = of_paper()
    heads = ("item", "claimed", "found", "claim holds", "why")
    held = {True: "yes", False: "no", None: "depends on the reading"}
    rows = tuple(
        (f"{i.number}. {i.title}", i.claimed, str(i.answer), held[i.holds], i.text) for i in items
    )
    own = Table(tuple(Column(head, words=True) for head in heads), rows)
    commands = "`nafaudit checklist --paper`; of a run: `nafaudit checklist RUN`."
    lines += [_FIGURES, "## Its own checklist", "", commands, "", *table_lines(own), ""]
    reasons = Counter(cell.why for cell in found.not_checkable).most_common()
    why = Table((Column("checks"), Column("why", words=True)), tuple((n, w) for w, n in reasons))
    lines += [f"## Not checkable: {len(found.not_checkable)}", "", *table_lines(why)]
    return "\n".join(lines) + "\n"


def _point_lines(number: int, point: Disagreement) -> Iterator[str]:
    yield from (f"### {number}. {escaped_line(point.name)}", "")
    if point.sentence:
        yield from (f"> {escaped_line(point.sentence)}", "")
    found = merged(point.claims)
    rows = [
        (
            where,
            claim.printed + (f", read as {claim.reading}" if claim.reading else ""),
            f"{claim.computed}, {claim.says}" + (" (released)" if claim.released else ""),
        )
        for where, claim in found
    ]
    if len(rows) > _SHOWN + 1:
        rows = [*rows[:_SHOWN], (f"and {len(rows) - _SHOWN} more cells", "", "")]
    columns = tuple(Column(head, words=True) for head in ("where", "printed", "computed"))
    yield from table_lines(Table(columns, tuple(rows)))
    if point.change:
        yield from ("", f"What changes: {escaped_line(point.change)}")


def _grouped(result: Recomputation) -> dict[str, list[tuple[int, Disagreement]]]:
    """Returns the points by group, numbered; a group without points is left out."""
    both = [*result.points.values(), *result.readings.values()]
    points = sorted(both, key=lambda point: list(_GROUPS).index(point.group))
    found: dict[str, list[tuple[int, Disagreement]]] = {}
    for number, point in enumerate(points, start=1):
        found.setdefault(point.group, []).append((number, point))
    return found


_TEXT = "Running text and captions"


def _area(cell: Claim | Unchecked) -> str:
    head = cell.where.split(",")[0]
    return head if head.startswith(("Table ", "Equation ")) else _TEXT


def _areas(result: Recomputation, title: str = "by table") -> Section:
    """Returns how many checks of each table agree, disagree, depend, cannot be made."""
    found: dict[str, Counter[str]] = {}
    for cell in result.cells:
        found.setdefault(_area(cell), Counter())[cell.verdict] += 1
    columns = (Column("where", words=True), *(Column(v.partition(" on ")[0]) for v in ClaimVerdict))
    rows = [(name, *(found[name][v] for v in ClaimVerdict)) for name in sorted(found)]
    return Section(title, Table(columns, tuple(rows)))


def _grid(grid: Grid) -> Section:
    words = [cell[0].isalpha() for cell in grid.rows[0]]
    columns = tuple(Column(h, words=w) for h, w in zip(grid.header, words, strict=True))
    return Section(grid.title, Table(columns, grid.rows), grid.note)


def as_json(result: Recomputation, grids: Sequence[Grid], files: list[str]) -> dict[str, Any]:
    """Returns counts, disagreements with numbers, what cannot be checked with the reason."""
    return {
        **plain(paper_overall(result)),
        "cells": len(result.cells),
        "agree": len(result.agree),
        "points": len(result.points),
        "disagree": [_claim(claim, result.points[claim.point]) for claim in result.disagree],
        "depends": [_claim(claim, result.readings[claim.point]) for claim in result.depends],
        "agreeing": [_claim(claim) for claim in result.agree],
        "not_checkable": [
            {"where": cell.where, "printed": cell.printed, "why": cell.why}
            for cell in result.not_checkable
        ],
        "counterfactuals": {
            grid.name: [dict(zip(grid.header, row, strict=True)) for row in grid.rows]
            for grid in grids
        },
        "figures": files,
    }


def _claim(claim: Claim, point: Disagreement | None = None) -> dict[str, Any]:
    ends = {"computed": claim.computed.middle, "low": claim.computed.low}
    ends["high"] = claim.computed.high
    found: dict[str, Any] = {
        "point": claim.point,
        "where": claim.where,
        "printed": claim.printed,
        "reading": claim.reading,
        **{name: end if math.isfinite(end) else str(end) for name, end in ends.items()},
        "released": claim.released,
        "text": claim.text,
    }
    if point is not None:
        found |= {"group": point.group, "sentence": point.sentence, "what_changes": point.change}
    return found


MAP_KINDS = {
    "section": "Sections",
    "table": "Tables",
    "figure": "Figures",
    "equation": "Equations",
    "algorithm": "Algorithm",
    "detail": "Details of the protocol",
    "recommendation": "Recommendations",
    "checklist item": "Checklist",
    "future work": "Future work",
    "artefact": "Released artefacts",
    "listing": "Its commands",
    "option of h1.py": "Options of h1.py",
    "option of h2.py": "Options of h2.py",
}
"""Kinds of parts of the paper, as data/map.csv names them, in the order of the map's page."""


def map_rows() -> list[dict[str, str]]:
    """Returns every part of the paper with the command, place and test that belong to it."""
    text = (files("nafaudit.paper") / "data" / "map.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def map_page() -> str:
    """Returns docs/paper-map.md: where everything in the paper is done, and what holds it."""

    def code(text: str) -> str:
        return f"`{text}`" if text else "\u2013"

    lines = [
        "# A map of the paper",
        "",
        "Where each part of *An Empirical Audit of k-NAF Budget Accounting for Anchored Decoding*",
        "is done here: the command, its result, and the test that holds it. All of it at once:",
        "",
        "    nafaudit paper run --out OUT    # OUT/index.html has every table, in its order",
        "",
        "RUN is a run directory; OUT/stage1 and OUT/stage2-k* are such. Written by",
        "`nafaudit paper --map` from",
        "[`map.csv`](../src/nafaudit/paper/data/map.csv), which a test compares with the paper.",
    ]
    for kind, title in MAP_KINDS.items():
        lines += ["", f"## {title}", "", "| in the paper | command | where | test |"]
        lines.append("|---|---|---|---|")
        for row in map_rows():
            if row["kind"] != kind:
                continue
            what = row["what"].replace("``", "\u201c").replace("''", "\u201d").replace("~", " ")
            what = what.replace("_", r"\_").replace("<", r"\<")
            label = f" (`{row['label']}`)" if row["label"] else ""
            file, _, test = row["test"].partition("::")
            name = file.rpartition("/test_")[2].removesuffix(".py").replace("_", " ")
            held = f"[{name}](../{file})" if test else "\u2013"
            where = row["where"].replace("*", r"\*").replace("_", r"\_") or "\u2013"
            note = f"; {row['note']}" if row["note"] else ""
            lines.append(f"| {what}{label} | {code(row['command'])} | {where}{note} | {held} |")
    return "\n".join(lines) + "\n"
