"""What a search's outputs repeat of protected passages, and which prompts are shown to use much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nafaudit.core.text import name, percent
from nafaudit.report.searched.parts import number, part, text, texts
from nafaudit.report.searched.tables import NONE, Cell, Table, count

_CONFIRMED = "search.overlap.confirmed"
_NUMBERS: Mapping[str, Callable[[float], str]] = {
    "trajectories": count,
    "repeating": count,
    "words": count,
    "near_verbatim_recall": percent,
}


def repeated(found: Mapping[str, Any]) -> Table | None:
    """The most that is repeated, over everything drawn and by each confirmed prompt."""
    said = part(found, "overlap")
    chosen = part(said, "confirmed")
    rows = [("everything drawn", "search.overlap.everything", part(said, "everything"))]
    # A prompt's id may have dots in it, so its numbers point to where all ids are.
    rows += [(key, "", part(chosen, key)) for key in chosen]
    made = [
        (
            Cell(name(who)),
            Cell(name(text(row, "passage")) if text(row, "passage") else NONE),
            *(
                Cell(write(number(row, key)), f"{where}.{key}" if where else _CONFIRMED)
                for key, write in _NUMBERS.items()
            ),
        )
        for who, where, row in rows
        if row
    ]
    heads = (
        ("outputs of", "all, or one confirmed prompt on fresh draws"),
        ("passage", "the one with the longest shared run"),
        ("outputs", "that were compared"),
        ("repeating", "outputs with at least five words in a row of a passage"),
        ("words", "longest shared run; 0 stands for fewer than five"),
        ("recall", "largest near-verbatim recall of a passage"),
    )
    note = f"Compared with {count(number(said, 'passages'))} protected passages."
    return Table("Protected text repeated", heads, tuple(made), note, words=2) if made else None


def named(found: Mapping[str, Any]) -> list[str]:
    """How many confirmed prompts are shown to use more than a share of their budget."""
    said = part(found, "named")
    if "above" not in said:
        return []
    sure, likely = (len(texts(said, key)) for key in ("shared", "discovered"))
    asked, above = count(number(said, "asked")), percent(number(said, "above"))
    return [
        f"Of {asked} confirmed prompts {sure} are shown to use more than {above} of their budget, "
        f"none of them wrongly but for the level; {likely} if that share of wrong ones is allowed "
        "(e-BH)."
    ]
