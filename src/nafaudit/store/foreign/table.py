"""A plain table of per-sequence numbers: CSV, or JSON with one flat object per sequence."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import rate_behind
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
from nafaudit.store.foreign.totals import DEBT_NAMES, debt_of, judged_by, over, rounding
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


def _spend(
    data: Mapping[str, Any],
    column: str,
    spend: float,
    limits: tuple[float, ...],
    where: str,
    context: Context,
) -> float:
    """The spend: as in its column if the user named it, else the largest of all that could be it.

    Raises where the choice decides how the row is judged.
    """

    def judged(value: float) -> tuple[bool, ...]:
        return (value >= 0, *(over(value, limit) for limit in limits))

    largest = spend
    for name, other in _rivals(data, "spend", column):
        if abs(spend - other) > rounding(data[column], data[name]):
            is_named = "spend" in context.options.columns
            if not is_named and judged(spend) != judged(other):
                raise _ambiguous("spend", column, spend, name, other, where)
            context.hygiene.add("spend-differs", where, name)
            largest = spend if is_named else max(largest, other)
    return largest


def _limits(
    logged: tuple[float, float], k: float, debt: float, lengths: tuple[float, ...], rule: str | None
) -> tuple[float, ...]:
    """What a spend is judged by; a limit that is not known is NaN.

    Args:
        logged: The budget, and what k and T grant if that is contested.
        k: The rate.
        debt: As logged or derived.
        lengths: T and the row's own; 0 or NaN if not known.
        rule: As the user gave it (`--ledger`).
    """
    budget, contested = logged
    if math.isinf(k):
        return ()
    if rule != "banking":
        return budget, contested
    owed = max(0.0, debt) if math.isfinite(debt) else 0.0
    rate = rate_behind(k, budget, owed, lengths)
    granted = [rate * length - owed for length in lengths if length > 0]
    return (min([budget, *granted] if not math.isnan(budget) else granted, default=math.nan),)


def _settle_budget(
    data: Mapping[str, Any],
    columns: Mapping[str, str],
    spend: float,
    budget: float,
    where: str,
    context: Context,
) -> None:
    """Raises where two columns could be the budget, and the choice decides."""
    if "budget" not in columns or "budget" in context.options.columns:
        return
    column = columns["budget"]
    for name, other in _rivals(data, "budget", column):
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
    if limit and length > limit:
        context.hygiene.add("too-long", where)
    debt = value("debt", noted=False)
    if not math.isnan(debt) and columns["debt"] == "init_budget_tensor":
        debt = -debt
    if math.isnan(debt):
        debt = debt_of({}, k, limit, budget, where, context)
    # As it is written, because its digits say how exact it is.
    rate = told("k") if math.isfinite(k) and told("k") not in (None, "") else k
    most, contested = judged_by(told("budget"), rate, limit, debt, where, context)
    limits = _limits((most, contested), k, debt, (limit, length), context.options.ledger)
    spend = _spend(data, columns["spend"], spend, limits, where, context)
    _settle_budget(data, columns, spend, budget, where, context)
    compare_utilisation(value("utilisation", noted=False), spend, budget, where, context.hygiene)
    rule = context.options.mechanism or told("mechanism") or k_word(told("k")) or context.stem
    return Entry(
        where=where,
        prompt=name,
        mechanism=identifier(rule, "mechanism", where),
        k=k,
        debt=debt,
        stopped=ended_early(length, limit),
        steps=no_steps(),
        logged=Logged(spend, most, length, contested=contested),
        number=integer(told("trajectory"), "trajectory", where),
        label=identifier(told("class") or "prompt", "class", where),
        max_new_tokens=limit,
        ledger=UNKNOWN_LEDGER,
        seed=integer(told("seed"), "seed", where, largest=2**63 - 1),
        output=text(told("text"), "text", where),
    )
