"""A plain table of per-sequence numbers: CSV, or JSON with one flat object per sequence."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.trajectory import Logged
from nafaudit.store.foreign.entry import (
    UNKNOWN_LEDGER,
    Context,
    Entry,
    ended_early,
    k_word,
    no_steps,
)
from nafaudit.store.foreign.fields import identifier, integer, number, text
from nafaudit.store.foreign.source import Record
from nafaudit.store.foreign.totals import DEBT_NAMES, believed, debt_of, rounding
from nafaudit.store.foreign.units import compare_utilisation

# Our name of a number to what others call it, the most telling first. Case counts only for
# single letters: k is a rate and K a total.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "id": ("id", "prompt_id", "prompt", "item_id", "sequence_id", "candidate_id", "name"),
    "k": ("k", "k_radius", "budget_per_token"),
    "spend": (
        "spend",
        "final_cum_kl_spent",
        "final_cum_kl_spent_per_seq",
        "total_spend",
        "cum_kl_spent",
        "kl_spent",
        "spent",
        "Z",
        "total_kl",
        "total_kl_to_safe",
        "total_charge",
        "charge",
    ),
    "budget": (
        "budget",
        "final_budget",
        "final_budget_per_seq",
        "granted",
        "B",
        "total_budget",
        "K",
    ),
    "debt": (*DEBT_NAMES, "delta", "init_budget_tensor"),
    "length": (
        "length",
        "n_tokens",
        "generation_length_tokens",
        "tokens",
        "gen_len",
        "output_tokens",
    ),
    "limit": ("T_max", "max_new_tokens", "T"),
    "trajectory": ("trajectory", "trajectory_id", "attempt", "sample"),
    "class": ("class", "split", "domain", "label"),
    "mechanism": ("mechanism", "rule", "decoder", "method"),
    "utilisation": (
        "utilisation",
        "utilization",
        "budget_utilization",
        "budget_utilisation",
        "budget_utilization_percent",
        "budget_utilization_per_seq",
    ),
    "seed": ("seed",),
    "text": ("text", "output", "generation"),
}


def matches(data: Mapping[str, Any]) -> bool:
    """True if some column is a spend."""
    column = resolve(data, {}, "").get("spend")
    return column is not None and not isinstance(data[column], (dict, list))


def resolve(data: Mapping[str, Any], given: Mapping[str, str], where: str) -> dict[str, str]:
    """Our names to the columns of a table."""
    for ours, column in given.items():
        if ours not in SYNONYMS:
            raise InputError(
                f"--column {ours}={column}: unknown name {ours!r}{nearest(ours, SYNONYMS)} "
                f"Allowed: {', '.join(SYNONYMS)}."
            )
        if column not in data:
            raise InputError(
                f"{where}: no column {column!r}{nearest(column, data)} There is "
                f"{', '.join(list(data)[:30])}."
            )
    known = _known(tuple(data))
    return {
        ours: given.get(ours) or known[ours][0] for ours in SYNONYMS if ours in given or known[ours]
    }


@lru_cache(maxsize=64)
def _known(columns: tuple[str, ...]) -> dict[str, list[str]]:
    """Our names to all columns that could be it, the most telling first."""
    by_lower = {name.lower(): name for name in reversed(columns) if len(name) > 1}
    found = {
        ours: [name if name in columns else by_lower.get(name.lower()) for name in names]
        for ours, names in SYNONYMS.items()
    }
    return {ours: [name for name in names if name] for ours, names in found.items()}


def _rivals(data: Mapping[str, Any], ours: str, chosen: str) -> Iterator[tuple[str, float]]:
    """Further columns that could be the same number, where they say one."""
    for name in dict.fromkeys(_known(tuple(data))[ours]):
        # K = k T is a total before the debt, so it differs from a final budget.
        if name not in (chosen, "K"):
            with contextlib.suppress(InputError):
                if not math.isnan(found := number(data[name], name, "")):
                    yield name, found


def _settle(
    data: Mapping[str, Any],
    columns: Mapping[str, str],
    spend: float,
    budget: float,
    where: str,
    context: Context,
) -> None:
    """Raises where two columns could be a number, differ, and nobody said which it is."""
    column = columns["spend"]
    for name, other in _rivals(data, "spend", column):
        if abs(spend - other) > rounding(data[column], data[name]):
            if "spend" not in context.options.columns:
                raise _ambiguous("spend", column, spend, name, other, where)
            context.hygiene.add("spend-differs", where, name)
    if "budget" not in columns or "budget" in context.options.columns:
        return
    column = columns["budget"]
    for name, other in _rivals(data, "budget", column):
        # Which one it is matters only if it decides.
        slack = rounding(data[column], data[name])
        if (spend > max(0.0, budget) + slack) != (spend > max(0.0, other) + slack):
            raise _ambiguous("budget", column, budget, name, other, where)


def _ambiguous(
    ours: str, one: str, value: float, another: str, other: float, where: str
) -> InputError:
    return InputError(
        f"{where}: two columns could be the {ours} and contradict each other: {one!r} says "
        f"{value:.10g}, {another!r} says {other:.10g}. Say which it is: --column {ours}={one} or "
        f"--column {ours}={another}."
    )


def read(records: Iterator[Record], context: Context) -> Iterator[Entry]:
    """Yields one entry per row."""
    for record in records:
        yield _entry(record, context)


def _entry(record: Record, context: Context) -> Entry:
    data, where = record.data, record.where
    columns = resolve(data, context.options.columns, where)
    if "spend" not in columns:
        raise InputError(
            f"{where}: no column for the spend; name it with --column spend=NAME. There is "
            f"{', '.join(list(data)[:30])}."
        )
    context.drop(data, frozenset(columns.values()))

    def told(name: str) -> object:
        return data.get(columns.get(name, ""))

    def value(name: str, *, noted: bool = True) -> float:
        if noted and told(name) in (None, ""):
            context.hygiene.add("missing", where, name)
        return number(told(name), columns.get(name, name), where)

    name = identifier(told("id"), "id", where)
    if not name:
        context.hygiene.add("no-id", where)
        name = f"{context.stem}:{where.rpartition(':')[2]}"
    k = context.budget_or_given(told("k"), where)
    limit = integer(told("limit"), "T", where) or context.options.max_new_tokens
    spend, budget, length = value("spend"), value("budget"), value("length", noted=False)
    _settle(data, columns, spend, budget, where, context)
    compare_utilisation(value("utilisation", noted=False), spend, budget, where, context.hygiene)
    if limit and length > limit:
        context.hygiene.add("too-long", where)
    debt = value("debt", noted=False)
    if not math.isnan(debt) and columns["debt"] == "init_budget_tensor":
        debt = -debt
    if math.isnan(debt):
        debt = debt_of({}, k, limit, budget, where, context)
    # As it is written, because its digits say how exact it is.
    rate = told("k") if math.isfinite(k) and told("k") not in (None, "") else k
    rule = context.options.mechanism or told("mechanism") or k_word(told("k")) or context.stem
    return Entry(
        where=where,
        prompt=name,
        mechanism=identifier(rule, "mechanism", where),
        k=k,
        debt=debt,
        stopped=ended_early(length, limit),
        steps=no_steps(),
        logged=Logged(spend, believed(told("budget"), rate, limit, debt, where, context), length),
        number=integer(told("trajectory"), "trajectory", where),
        label=identifier(told("class") or "prompt", "class", where),
        max_new_tokens=limit,
        ledger=UNKNOWN_LEDGER,
        seed=integer(told("seed"), "seed", where, largest=2**63 - 1),
        output=text(told("text"), "text", where),
    )
