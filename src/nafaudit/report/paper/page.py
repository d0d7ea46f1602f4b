"""The recomputation as a page of Markdown; every number on it is computed when it is written."""

from __future__ import annotations

from collections.abc import Sequence

from nafaudit.report.checklist.of_paper import of_paper
from nafaudit.report.paper.claim import Claim, Verdict
from nafaudit.report.paper.counterfactual import Grid, counterfactuals
from nafaudit.report.paper.recompute import Recomputation, merged, recompute
from nafaudit.report.paper.show import counts_by_area, reasons, summary
from nafaudit.views.markdown import plain_text

_SHOWN = 5
_HEAD = """# The paper, recomputed

Written by `nafaudit paper --markdown`; a test keeps it up to date. "The paper" is *An Empirical
Audit of k-NAF Budget Accounting for Anchored Decoding*, with the numbers that it prints and those
that were released beside it.

{summary}.

**The rule.** Each printed input stands for every value that rounds to it, and the computation is
carried through with these intervals; `U_EBB` is [`stats.ebb`](../src/nafaudit/stats/moments.py). A
printed result agrees if some value in the computed interval rounds to it. "Approximately" allows
half a unit of the last digit that is not 0, or 1 %. Words such as "doubles" are read as the numbers
given beside them: that reading is ours. *Released* marks what rests on the released files and not
on the paper alone; those come from the same authors.

The claims are data: [`quotes.csv`](../src/nafaudit/report/paper/data/quotes.csv) and the tables
beside it.
"""
_FIGURES = """## Figures

Drawn from the printed numbers; `nafaudit paper --out DIR` writes them as SVG and PDF. Single spends
are not released, so the second figure shows where they must lie.

![Held-out ratio against N](paper/heldout.svg)
![Where the spends of flagged and other prompts must lie](paper/spend.svg)
![Deterministic term against N, formula and printed values](paper/bernstein.svg)
![U_EBB under R and R_eff](paper/effective-range.svg)
"""


def page(result: Recomputation | None = None) -> str:
    """The whole page."""
    found = result or recompute()
    parts = [
        _HEAD.format(summary=summary(found).replace("\n", " ")),
        _areas(found),
        _disagreements(found),
        "## Counterfactuals\n",
        *(_grid(grid) for grid in counterfactuals()),
        _FIGURES,
        _checklist(),
        _unchecked(found),
    ]
    return "\n".join(parts)


def _areas(result: Recomputation) -> str:
    rows = [
        (plain_text(name), *(str(counts[verdict]) for verdict in Verdict))
        for name, counts in counts_by_area(result).items()
    ]
    return _table(("where", *(str(verdict) for verdict in Verdict)), rows)


def _disagreements(result: Recomputation) -> str:
    rows: list[tuple[str, ...]] = []
    for number, (point, claims) in enumerate(result.points.items(), start=1):
        groups = merged(claims)
        for place, (where, claim) in enumerate(groups[:_SHOWN]):
            name = f"{number}. {plain_text(point)}" if place == 0 else ""
            rows.append((name, plain_text(where), *_cells(claim)))
        if len(groups) > _SHOWN:
            rows.append(("", f"and {len(groups) - _SHOWN} more cells", "", ""))
    title = f"## Disagreements: {len(result.points)} points, {len(result.disagree)} cells\n\n"
    return title + _table(("point", "where", "printed", "computed"), rows)


def _cells(claim: Claim) -> tuple[str, str]:
    reading = f", read as {claim.reading}" if claim.reading else ""
    basis = " (*released*)" if claim.released else ""
    computed = f"**{plain_text(str(claim.computed))}**, {plain_text(claim.says)}{basis}"
    return plain_text(claim.printed + reading), computed


def _grid(grid: Grid) -> str:
    note = f"\n{plain_text(grid.note)}\n" if grid.note else ""
    rows = [[plain_text(cell) for cell in row] for row in (grid.header, *grid.rows)]
    return f"**{plain_text(grid.title)}**\n\n{_table(rows[0], rows[1:])}{note}"


def _checklist() -> str:
    rows = [
        (
            f"{item.number}. {plain_text(item.title)}",
            plain_text(item.claimed),
            str(item.answer),
            "yes" if item.holds else "**no**",
            plain_text(item.text),
        )
        for item in of_paper()
    ]
    commands = "`nafaudit checklist --paper`; of a run: `nafaudit checklist RUN`."
    return f"## Its own checklist\n\n{commands}\n\n" + _table(
        ("item", "claimed", "found", "claim holds", "why"), rows
    )


def _unchecked(result: Recomputation) -> str:
    rows = [(str(count), plain_text(why)) for why, count in reasons(result).most_common()]
    title = f"## Not checkable: {len(result.not_checkable)}\n\n"
    return title + _table(("cells", "why"), rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return "\n".join([line(header), line(("---",) * len(header)), *map(line, rows)]) + "\n"
