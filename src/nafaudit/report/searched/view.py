"""What the report says of a search: an answer, tables, the prompts themselves, and the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nafaudit.core.text import cut, name, percent, visible
from nafaudit.report.searched import tables
from nafaudit.report.searched.copied import named, repeated
from nafaudit.report.searched.parts import by_paper, number, part, rows, text, texts
from nafaudit.report.searched.progress import Measure, measure_of
from nafaudit.report.searched.tables import Cell, Table

_TONES = {"WITHIN": "good", "VIOLATED": "bad", "INCONCLUSIVE": "open"}
_PROMPT_SHOWN = 600
_KNOWN = (
    "run", "outcome", "k", "delta", "looked", "trajectories", "violating_prompts", "generations",
    "finalists", "controls", "comparisons", "spread", "heldout", "others", "counterexamples",
    "proposer", "surrogate", "overlap", "named",
)  # fmt: skip
_OTHERS = 60


@dataclass(frozen=True)
class Prompt:
    """A finalist's own words and descent; `text` is empty if words are left out."""

    title: str
    text: str
    descent: str


@dataclass(frozen=True)
class SearchView:
    """A search, ready to be shown.

    Attributes:
        word: The outcome.
        tone: Of the word.
        text: The outcome in a sentence.
        remarks: What was switched off and why, and whatever else must be said.
        measure: What the search ranked prompts by.
        tables: In the order to read them.
        prompts: The finalists.
        bundles: Counterexamples, as directories within the run.
    """

    word: str
    tone: str
    text: str
    remarks: tuple[str, ...]
    measure: Measure
    tables: tuple[Table, ...]
    prompts: tuple[Prompt, ...]
    bundles: tuple[str, ...]


def search_view(found: Mapping[str, Any]) -> SearchView:
    """Everything that is shown.

    Args:
        found: As `search_json` gives it, with or without texts.
    """
    word = text(found, "outcome")
    made = (
        tables.generations(found),
        tables.finalists(found),
        tables.comparisons(found),
        tables.held_out(found),
        repeated(found),
        tables.gates(found),
        tables.proposer(found),
        _rest(found),
    )
    return SearchView(
        word=name(word),
        tone=_TONES.get(word, "open"),
        text=_sentence(found, word),
        remarks=tuple(visible(remark) for remark in _remarks(found)),
        measure=measure_of(found),
        tables=tuple(table for table in made if table is not None),
        prompts=tuple(_prompt(row) for row in rows(found, "finalists") if row),
        bundles=tuple(visible(path) for path in texts(found, "counterexamples")),
    )


def _sentence(found: Mapping[str, Any], word: str) -> str:
    budget, looked = f"k = {number(found, 'k'):g}", tables.count(number(found, "looked"))
    drawn = tables.count(number(found, "trajectories"))
    if word == "VIOLATED":
        bad = tables.count(number(found, "violating_prompts"))
        return (
            f"{bad} of the {looked} prompts looked at have an execution above its budget "
            f"({budget}). Nothing was dropped for being bad news."
        )
    if word == "WITHIN":
        rates = [number(row, "rate_upper") for row in rows(found, "finalists")]
        rate = max((rate for rate in rates if not math.isnan(rate)), default=math.nan)
        return (
            f"None of {drawn} executions exceeds its budget ({budget}), over {looked} prompts; for "
            f"each finalist the true rate is below {percent(rate)}. That says nothing of prompts "
            "that were not tried."
        )
    return f"Nothing exceeds its budget ({budget}), but too little was drawn afresh to say more."


def _remarks(found: Mapping[str, Any]) -> list[str]:
    return [*_surrogate(found), *_filled(found), *_controls(found), *named(found)]


def _surrogate(found: Mapping[str, Any]) -> list[str]:
    """Whether something steered, and if not, why."""
    said = part(found, "surrogate")
    if not said:
        return ["No surrogate steered this search: prompts are ranked by what they spent."]
    asked = rows(said, "gates")
    off = [row for row in asked if row.get("steers") is False]
    mode = text(said, "mode")
    if not asked:
        return [f"No surrogate steered this search (surrogate: {name(mode) if mode else 'none'})."]
    paper = by_paper(found)
    reasons = list(dict.fromkeys(reason for row in off for reason in texts(row, "reasons")))
    why = f": {'; '.join(reasons[:6])}" if reasons else ""
    steered = len(asked) - len(off)
    untested = "; its AUC on held-out rows was not measured" if paper and steered else ""
    missing = "not ready" if paper else "switched off"
    return [
        f"The surrogate steered {steered} of {len(asked)} generations{untested}"
        + (f"; it was {missing} in {len(off)}{why}." if off else ".")
    ]


def _filled(found: Mapping[str, Any]) -> list[str]:
    said = part(found, "proposer")
    if not number(said, "filled") > 0:
        return []
    counts = [tables.count(number(said, key)) for key in ("filled", "asked")]
    return [
        f"{counts[0]} of {counts[1]} prompts were made by the local operators, because the "
        f"proposer {name(text(said, 'name'))} did not deliver them."
    ]


def _controls(found: Mapping[str, Any]) -> list[str]:
    lost = [row for row in rows(found, "comparisons") if text(row, "answer") != "beats"]
    return [
        f"Against the control {name(text(row, 'control'))}: "
        f"{tables.answer_words(text(row, 'answer'))}."
        for row in lost
    ]


def _prompt(row: Mapping[str, Any]) -> Prompt:
    parents = ", ".join(name(one) for one in texts(row, "parents"))
    title = f"search seed {tables.count(number(row, 'seed'))}, place "
    title += tables.count(number(row, "rank"))
    descent = f"{name(text(row, 'operator') or 'seed')}, generation "
    descent += tables.count(number(row, "generation"))
    descent += f", of {parents}" if parents else ""
    return Prompt(title, cut(visible(text(row, "text")), _PROMPT_SHOWN), descent)


def _rest(found: Mapping[str, Any]) -> Table | None:
    """What this version does not know by name, as it stands in the file."""
    flat: list[tuple[str, str]] = []
    for key, value in found.items():
        if key not in _KNOWN:
            _flatten(key, value, flat)
    if not flat:
        return None
    shown = tuple((Cell(name(key)), Cell(name(value), f"search.{key}")) for key, value in flat)
    note = (
        "" if len(flat) <= _OTHERS else f"The first {_OTHERS} of {len(flat)}; report.json has all."
    )
    return Table("Also recorded", (("what", ""), ("value", "")), shown[:_OTHERS], note, words=2)


def _flatten(key: str, value: Any, into: list[tuple[str, str]]) -> None:
    if isinstance(value, dict) and value:
        for inner, one in value.items():
            _flatten(f"{key}.{inner}", one, into)
    elif isinstance(value, list) and value and isinstance(value[0], dict | list):
        for index, one in enumerate(value):
            _flatten(f"{key}[{index}]", one, into)
    elif isinstance(value, list):
        into.append((key, ", ".join(map(_scalar, value)) or "none"))
    else:
        into.append((key, _scalar(value)))


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)
