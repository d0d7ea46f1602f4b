"""The checklist on a terminal, for machines, and as rows of report.json."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nafaudit.core.text import as_number, visible
from nafaudit.report.checklist.items import Answer, Item
from nafaudit.report.checklist.ratios import Ratio

_WIDTH = 79


def as_text(items: Sequence[Item]) -> str:
    """Counts, then every item in a few lines of at most 80 columns."""
    counts = ", ".join(f"{sum(i.answer == a for i in items)} {a}" for a in Answer)
    claimed = [item for item in items if item.holds is not None]
    lines = [counts]
    if claimed:
        held = [str(item.number) for item in claimed if item.holds]
        broken = [str(item.number) for item in claimed if not item.holds]
        lines.append(f"claims about itself that hold: {', '.join(held) or 'none'}; ")
        lines[-1] += f"that do not: {', '.join(broken) or 'none'}"
    return "\n".join([*lines, *(_item(item) for item in items)])


def _item(item: Item) -> str:
    head = f"{item.number}. {item.answer.upper():15}{item.title}"
    if item.claimed:
        head += f" (claims: {item.claimed})"
    lines = [head, _fill(visible(item.text), "")]
    if item.todo:
        lines.append(_fill(item.todo, "to pass: "))
    return "\n".join(lines)


def _fill(text: str, label: str) -> str:
    return textwrap.fill(
        label + " ".join(text.split()),
        _WIDTH,
        initial_indent=" " * 3,
        subsequent_indent=" " * (3 + len(label)),
        break_on_hyphens=False,
    )


def as_json(items: Sequence[Item], prompts: Sequence[Ratio] = ()) -> dict[str, Any]:
    """Items and, for a run, every per-prompt estimate with its width."""
    return {
        "items": item_rows(items),
        "prompts": [
            {name: as_number(v) if isinstance(v, float) else v for name, v in asdict(row).items()}
            for row in prompts
        ],
    }


def item_rows(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as plain data."""
    return [_row(item) for item in items]


def _row(item: Item) -> dict[str, Any]:
    found: dict[str, Any] = {
        "item": item.number,
        "title": item.title,
        "answer": str(item.answer),
        "value": as_number(item.value),
        "text": item.text,
        "to_pass": item.todo,
    }
    if item.claimed:
        found |= {"claimed": item.claimed, "holds": item.holds}
    return found
