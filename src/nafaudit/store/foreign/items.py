"""The published decoder's item files: one object per prompt, totals as `..._per_seq`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Logged
from nafaudit.store.foreign.entry import (
    UNKNOWN_LEDGER,
    Context,
    Entry,
    ended_early,
    no_steps,
    rule_in_name,
)
from nafaudit.store.foreign.fields import identifier, number, text
from nafaudit.store.foreign.source import Record
from nafaudit.store.foreign.totals import debt_of, judged_by, larger_total, rounding
from nafaudit.store.foreign.units import compare_utilisation

_TOTALS = ("final_cum_kl_spent", "final_budget", "budget_utilization", "total_kl_to_safe")
_KEPT = frozenset(f"{name}{end}" for name in _TOTALS[:3] for end in ("", "_per_seq")) | frozenset(
    [
        "id",
        "k",
        "input",
        "output",
        "prefix_debt",
        "delta_init",
        "class",
        "split",
    ]
)


def matches(data: Mapping[str, Any]) -> bool:
    """True for a record of this schema."""
    return any(f"{name}_per_seq" in data for name in _TOTALS) or (
        "final_cum_kl_spent" in data and ("output" in data or "input" in data)
    )


def read(records: Iterator[Record], context: Context) -> Iterator[Entry]:
    """Yields one entry per sequence of each item."""
    for place, record in enumerate(records):
        yield from _entries(record, place, context)


def _entries(record: Record, place: int, context: Context) -> Iterator[Entry]:
    data, where = record.data, record.where
    if not matches(data):
        raise InputError(f"{where}: an item needs 'final_cum_kl_spent_per_seq' and the like.")
    context.drop(data, _KEPT)
    name = identifier(data.get("id"), "id", where)
    if not name:
        context.hygiene.add("no-id", where)
        name = f"{context.stem}:{place}"
    totals = {total: _list(data, total) for total in _TOTALS}
    size = max(map(len, totals.values()))
    for total, values in totals.items():
        if len(values) not in (0, size):
            raise InputError(f"{where}: {total!r} has {len(values)} entries, others have {size}.")
    outputs = data.get("output")
    outputs = outputs if isinstance(outputs, list) else [outputs]
    if len(outputs) not in (1, size):
        raise InputError(f"{where}: 'output' has {len(outputs)} entries, the totals {size}.")
    k = context.budget_or_given(data.get("k"), where)
    for row in range(size):
        spend, budget, use, other = (
            number(values[row], total, where) if values else math.nan
            for total, values in totals.items()
        )
        if math.isnan(spend):
            context.hygiene.add("missing", where, "final_cum_kl_spent")
        limit = context.options.max_new_tokens
        debt = debt_of(data, k, limit, budget, where, context)
        most, contested = judged_by(budget, k, limit, debt, where, context)
        spend = larger_total(spend, other, most, rounding(spend, other), where, context)
        compare_utilisation(use, spend, budget, where, context.hygiene)
        yield Entry(
            where=where,
            prompt=name,
            mechanism=context.options.mechanism or rule_in_name(context.stem),
            k=k,
            debt=debt,
            stopped=ended_early(math.nan, limit),
            steps=no_steps(),
            logged=Logged(spend, most, math.nan, contested=contested),
            label=identifier(data.get("class") or data.get("split") or "prompt", "class", where),
            prompt_text=text(data.get("input"), "input", where),
            max_new_tokens=limit,
            ledger=UNKNOWN_LEDGER,
            output=text(outputs[min(row, len(outputs) - 1)], "output", where),
        )


def _list(data: Mapping[str, Any], name: str) -> list[Any]:
    value = data.get(f"{name}_per_seq", data.get(name))
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
