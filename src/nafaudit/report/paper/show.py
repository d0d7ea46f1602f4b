"""The recomputation on a terminal of 80 columns, or as one object for machines."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from typing import Any

from nafaudit.report.paper.claim import Claim, Unchecked, Verdict
from nafaudit.report.paper.counterfactual import Grid
from nafaudit.report.paper.recompute import Cell, Recomputation, merged

_WIDTH = 79
# A point with more cells than this is shown by its first ones.
_SHOWN = 3


def as_text(result: Recomputation, grids: tuple[Grid, ...], *, every: bool = False) -> str:
    """Summary first, then counterfactuals and what cannot be checked; disagreements last.

    Args:
        result: What was judged.
        grids: The counterfactuals.
        every: Prints every cell.
    """
    parts = [summary(result), areas(result)]
    if every:
        parts.append("every cell\n" + "\n".join(_cell(cell) for cell in result.cells))
    parts += [_grid(grid) for grid in grids]
    parts += [_reasons(result), _points(result, every=every)]
    return "\n\n".join(parts)


def summary(result: Recomputation) -> str:
    """One line of counts."""
    return (
        f"{len(result.cells)} cells and claims: {len(result.agree)} agree, "
        f"{len(result.disagree)} disagree in {len(result.points)} points,\n"
        f"{len(result.not_checkable)} not checkable"
    )


def area(cell: Cell) -> str:
    """The table or equation that a cell belongs to."""
    head = cell.where.split(",")[0]
    return head if head.startswith(("Table ", "Equation ")) else "Running text and captions"


def counts_by_area(result: Recomputation) -> dict[str, Counter[str]]:
    """How many cells of each table agree, disagree, cannot be checked."""
    found: dict[str, Counter[str]] = {}
    for cell in result.cells:
        found.setdefault(area(cell), Counter())[cell.verdict] += 1
    return dict(sorted(found.items()))


def areas(result: Recomputation) -> str:
    """The counts as a table."""
    lines = [f"{'where':31}{'agree':>8}{'disagree':>11}{'not checkable':>16}"]
    for name, counts in counts_by_area(result).items():
        numbers = (counts[Verdict.AGREE], counts[Verdict.DISAGREE], counts[Verdict.NOT_CHECKABLE])
        lines.append(f"{name:31}{numbers[0]:8}{numbers[1]:11}{numbers[2]:16}")
    return "\n".join(lines)


def reasons(result: Recomputation) -> Counter[str]:
    """Why cells cannot be checked, and how many each."""
    return Counter(cell.why for cell in result.not_checkable)


def _reasons(result: Recomputation) -> str:
    found = reasons(result).most_common()
    lines = [_fill(f"{count:4}  {why}", 6) for why, count in found if count > 1]
    single = sum(count == 1 for _, count in found)
    lines.append(f"{single:4}  for a reason of its own each (--all, --json)")
    return "not checkable, by reason\n" + "\n".join(lines)


def _points(result: Recomputation, *, every: bool) -> str:
    lines = ["disagreements found"]
    for number, (point, claims) in enumerate(result.points.items(), start=1):
        lines.append(f"{number:3}. {point}")
        groups = merged(claims)
        shown = groups if every or len(groups) <= _SHOWN + 1 else groups[:_SHOWN]
        lines += [_fill(f"     {where}: {claim.text}", 7) for where, claim in shown]
        if len(shown) < len(groups):
            lines.append(f"     and {len(groups) - len(shown)} more cells (--all shows them)")
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    if isinstance(cell, Unchecked):
        text = f"not checkable  {cell.where}: {cell.printed}: {cell.why}"
    else:
        text = f"{cell.verdict:13}  {cell.where}: {cell.text}"
    return _fill(text, 15)


def _grid(grid: Grid) -> str:
    columns = list(zip(grid.header, *grid.rows, strict=True))
    spare = _WIDTH - sum(_widest(column[1:]) + 2 for column in columns)
    limit = max(8, spare // len(columns) + 8)
    widths = [max(_widest(column[1:]), min(len(column[0]), limit)) for column in columns]
    heads = [textwrap.wrap(name, width) for name, width in zip(grid.header, widths, strict=True)]
    height = max(map(len, heads))
    top = zip(*([""] * (height - len(head)) + head for head in heads), strict=True)
    # Names stand on the left, numbers on the right.
    words = [column[1][0].isalpha() for column in columns]
    layout = list(zip(widths, words, strict=True))
    lines = [_line(line, layout) for line in (*top, *grid.rows)]
    parts = (_fill(grid.title, 0), "\n".join(lines), _fill(grid.note, 0))
    return "\n".join(part for part in parts if part)


def _line(cells: tuple[str, ...], layout: list[tuple[int, bool]]) -> str:
    pairs = zip(cells, layout, strict=True)
    shown = (c.ljust(width) if word else c.rjust(width) for c, (width, word) in pairs)
    return "  ".join(shown).rstrip()


def _widest(cells: tuple[str, ...]) -> int:
    return max(map(len, cells))


def _fill(text: str, indent: int) -> str:
    return textwrap.fill(
        text, _WIDTH, subsequent_indent=" " * indent, drop_whitespace=True, break_on_hyphens=False
    )


def as_json(result: Recomputation, grids: tuple[Grid, ...], files: list[str]) -> dict[str, Any]:
    """Counts, disagreements with numbers, what cannot be checked with the reason."""
    return {
        "cells": len(result.cells),
        "agree": len(result.agree),
        "points": len(result.points),
        "disagree": [_claim(claim) for claim in result.disagree],
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


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "point": claim.point,
        "where": claim.where,
        "printed": claim.printed,
        "reading": claim.reading,
        "computed": _number(claim.computed.middle),
        "low": _number(claim.computed.low),
        "high": _number(claim.computed.high),
        "released": claim.released,
        "text": claim.text,
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
