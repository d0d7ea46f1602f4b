"""The paper's Stage 2 log: one object per candidate prompt, lists over its executions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Logged
from nafaudit.store.foreign.entry import Context, Entry, no_steps
from nafaudit.store.foreign.fields import identifier, integer, numbers, sequence, text
from nafaudit.store.foreign.source import Record
from nafaudit.store.foreign.totals import judged_by

_KEPT = frozenset(
    [
        "candidate_id",
        "N",
        "spends",
        "final_budgets",
        "delta_inits",
        "prompt_text",
        "k",
        "split",
    ]
)


def matches(data: Mapping[str, Any]) -> bool:
    """True for a record of this schema."""
    return "spends" in data and "candidate_id" in data


def read(records: Iterator[Record], context: Context) -> Iterator[Entry]:
    """Yields one entry per execution."""
    for record in records:
        yield from _entries(record, context)


def _entries(record: Record, context: Context) -> Iterator[Entry]:
    data, where = record.data, record.where
    if not matches(data):
        raise InputError(f"{where}: a Stage 2 record needs 'candidate_id' and 'spends'.")
    context.drop(data, _KEPT)
    spends = numbers(sequence(data["spends"], "spends", where), "spends", where)
    count = integer(data.get("N"), "N", where)
    if count not in (None, spends.size):
        raise InputError(f"{where}: N = {count}, but 'spends' has {spends.size} entries.")
    columns = {}
    for name in ("final_budgets", "delta_inits"):
        values = numbers(sequence(data.get(name), name, where), name, where)
        if not values.size and spends.size:
            context.hygiene.add("missing", where, name)
            values = numbers([None] * spends.size, name, where)
        if values.size != spends.size:
            raise InputError(
                f"{where}: {name!r} has {values.size} entries, but 'spends' has {spends.size}."
            )
        columns[name] = values
    prompt = identifier(data["candidate_id"], "candidate_id", where)
    if not prompt:
        raise InputError(f"{where}: 'candidate_id' is empty.")
    k = context.budget_or_given(data.get("k"), where)
    label = identifier(data.get("split") or "candidate", "split", where)
    before = text(data.get("prompt_text"), "prompt_text", where)
    limit = context.options.max_new_tokens
    for position, spend in enumerate(spends):
        debt, budget = (float(columns[name][position]) for name in ("delta_inits", "final_budgets"))
        budget, contested = judged_by(budget, k, limit, debt, where, context, bank=True)
        yield Entry(
            where=where,
            prompt=prompt,
            mechanism=context.options.mechanism or "anchored",
            k=k,
            debt=debt,
            stopped=False,
            steps=no_steps(),
            logged=Logged(float(spend), budget, math.nan, contested=contested),
            # A candidate may be evaluated again, with more executions: numbers go on then.
            number=None,
            label=label,
            prompt_text=before,
            max_new_tokens=limit,
        )
