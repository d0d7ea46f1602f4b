"""The query log of a reconstruction attack: one object per query, totals only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.trajectory import Logged
from nafaudit.store.foreign.entry import Context, Entry, ended_early, k_word, no_steps
from nafaudit.store.foreign.fields import identifier, integer, text
from nafaudit.store.foreign.source import Record
from nafaudit.store.foreign.totals import judged_by

# What tells the queries of one attack apart: each has a prefix, and so a debt, of its own.
_PLACE = ("mode", "L", "window")
_KEPT = frozenset(
    [
        "k",
        "mode",
        "L",
        "prompt_id",
        "window",
        "attempt",
        "Z",
        "B",
        "delta_init",
        "n_tokens",
        "text",
        "mechanism",
        "class",
        "split",
    ]
)


def matches(data: Mapping[str, Any]) -> bool:
    """True for a record of this schema."""
    return {"Z", "B", "prompt_id"} <= data.keys() and bool(
        {"mode", "window", "attempt"} & data.keys()
    )


def read(records: Iterator[Record], context: Context) -> Iterator[Entry]:
    """Yields one entry per query; mode, length and window become part of the prompt's id."""
    for record in records:
        data, where = record.data, record.where
        if not matches(data):
            raise InputError(f"{where}: a query needs 'prompt_id', 'Z', 'B' and a place.")
        context.drop(data, _KEPT)
        place = [
            f"{name}={identifier(data[name], name, where)}"
            for name in _PLACE
            if data.get(name) is not None
        ]
        prompt = identifier(data["prompt_id"], "prompt_id", where)
        if not prompt:
            raise InputError(f"{where}: 'prompt_id' is empty.")
        length = context.numeric(data, ("n_tokens",), where)
        limit = context.options.max_new_tokens
        word = k_word(data.get("k"))
        rule = context.options.mechanism or data.get("mechanism") or word or context.stem
        k = context.budget_or_given(data.get("k"), where)
        debt = context.numeric(data, ("delta_init",), where)
        stated = context.numeric(data, ("B",), where)
        budget, contested = judged_by(stated, k, limit, debt, where, context, bank=True)
        yield Entry(
            where=where,
            prompt=" ".join([prompt, *place]),
            mechanism=identifier(rule, "mechanism", where),
            k=k,
            debt=debt,
            stopped=ended_early(length, limit),
            steps=no_steps(),
            logged=Logged(
                context.numeric(data, ("Z",), where),
                budget,
                length,
                contested=contested,
            ),
            number=integer(data.get("attempt"), "attempt", where),
            label=identifier(data.get("class") or data.get("split") or "query", "class", where),
            max_new_tokens=limit,
            output=text(data.get("text"), "text", where),
        )
