"""Logs of totals: the paper's held-out log, item files, query logs, tables."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import rate_behind
from nafaudit.core.trajectory import Logged
from nafaudit.store.importers.entry import (
    DEBT_NAMES,
    SCORES,
    UNKNOWN_LEDGER,
    Context,
    LogEntry,
    claimed,
    compare_utilisation,
    debt_of,
    ended_early,
    judged_by,
    k_word,
    larger_total,
    no_steps,
    over,
    rounding,
    rule_in_name,
    written_text,
)
from nafaudit.store.importers.fields import (
    identifier,
    integer,
    mapping,
    number,
    numbers,
    sequence,
    text,
)
from nafaudit.store.importers.source import LogRecord

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
    "reference": ("reference", "reference_text"),
    "rouge_l": ("rouge_l",),
    "minhash_5gram": ("minhash_5gram",),
}


def is_table(data: Mapping[str, Any]) -> bool:
    """Returns True if some column is a spend."""
    column = resolve(data, {}, "").get("spend")
    return column is not None and not isinstance(data[column], (dict, list))


def resolve(data: Mapping[str, Any], given: Mapping[str, str], where: str) -> dict[str, str]:
    """Maps our names to the columns of a table."""
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
    """Maps our names to all columns that could be meant, the clearest first."""
    by_lower = {name.lower(): name for name in reversed(columns) if len(name) > 1}
    found = {
        ours: [name if name in columns else by_lower.get(name.lower()) for name in names]
        for ours, names in SYNONYMS.items()
    }
    return {ours: [name for name in names if name] for ours, names in found.items()}


def _rivals(data: Mapping[str, Any], ours: str, chosen: str) -> Iterator[tuple[str, float]]:
    """Returns the numbers of further columns that could be the same quantity."""
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
    """Returns the spend of the named column, else the largest of all that could be it.

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
            context.notes.add("spend-differs", where, name)
            largest = spend if is_named else max(largest, other)
    return largest


def _limits(
    logged: tuple[float, float], k: float, debt: float, lengths: tuple[float, ...], rule: str | None
) -> tuple[float, ...]:
    """Returns the limits that a spend is judged by; NaN where one is not known.

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


_STEPS = ("step", "t", "step_index", "token_index", "position")
"""Columns that number the steps of an answer."""


def read_table(records: Iterator[LogRecord], context: Context) -> Iterator[LogEntry]:
    """Yields one entry per row.

    Raises:
        InputError: A row is a step of an answer, and not an answer.
    """
    last: tuple[object, float] | None = None
    for record in records:
        step = next((name for name in _STEPS if name in record.data), None)
        if step is not None and step not in context.options.columns.values():
            # Two rows of one answer, one step apart: judged as answers, all would seem to keep it.
            entry = _entry(record, context)
            at = number(record.data[step], step, record.where)
            if last == ((entry.prompt, entry.k, entry.mechanism, entry.number), at - 1):
                raise InputError(
                    f"{record.where}: rows are steps (column {step!r} counts them within an "
                    "answer), and a table has one row per answer. Sum the charges of each answer "
                    "into one row, or write them as a list of steps (docs/foreign-logs.md)."
                )
            last = ((entry.prompt, entry.k, entry.mechanism, entry.number), at)
            yield entry
        else:
            yield _entry(record, context)


def _entry(record: LogRecord, context: Context) -> LogEntry:
    data, where = record.data, record.where
    columns = resolve(data, context.options.columns, where)
    if "spend" not in columns:
        raise InputError(
            f"{where}: no column for the spend; name it with --column spend=NAME. There is "
            f"{', '.join(list(data)[:30])}."
        )
    context.drop(data, frozenset(columns.values()))

    def cell(name: str) -> object:
        return data.get(columns.get(name, ""))

    def value(name: str, *, noted: bool = True) -> float:
        if noted and cell(name) in (None, ""):
            context.notes.add("missing", where, name)
        return number(cell(name), columns.get(name, name), where)

    name = identifier(cell("id"), "id", where)
    if not name:
        context.notes.add("no-id", where)
        name = f"{context.stem}:{where.rpartition(':')[2]}"
    k = context.budget_or_given(cell("k"), where)
    limit = integer(cell("limit"), "T", where) or context.options.max_new_tokens
    spend, budget, length = value("spend"), value("budget"), value("length", noted=False)
    if limit and length > limit:
        context.notes.add("too-long", where)
    debt = value("debt", noted=False)
    if not math.isnan(debt) and columns["debt"] == "init_budget_tensor":
        debt = -debt
    if math.isnan(debt):
        debt = debt_of({}, k, limit, budget, where, context)
    # As it is written, because its digits say how exact it is.
    rate = cell("k") if math.isfinite(k) and cell("k") not in (None, "") else k
    most, contested = judged_by(cell("budget"), rate, limit, debt, where, context)
    limits = _limits((most, contested), k, debt, (limit, length), context.options.ledger)
    spend = _spend(data, columns["spend"], spend, limits, where, context)
    _settle_budget(data, columns, spend, budget, where, context)
    compare_utilisation(value("utilisation", noted=False), spend, budget, where, context.notes)
    rule = context.options.mechanism or cell("mechanism") or k_word(cell("k")) or context.stem
    return LogEntry(
        where=where,
        prompt=name,
        mechanism=identifier(rule, "mechanism", where),
        k=k,
        debt=debt,
        stopped=ended_early(length, limit),
        steps=no_steps(),
        logged=Logged(spend, most, length, contested=contested),
        number=integer(cell("trajectory"), "trajectory", where),
        label=identifier(cell("class") or "prompt", "class", where),
        max_new_tokens=limit,
        ledger=UNKNOWN_LEDGER,
        reference=text(cell("reference"), "reference", where),
        seed=integer(cell("seed"), "seed", where, largest=2**63 - 1),
        output=written_text({"text": cell("text")}, "text", where),
        claims=claimed({name: cell(name) for name in SCORES}, SCORES, where),
    )


STAGE2 = ("mean_spend", "var_spend", "U_EBB", "effective_budget_min", "rho", "certified")
"""Numbers of a Stage 2 record that follow from its spends and budgets."""

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
        *STAGE2,
    ]
)


def is_heldout(data: Mapping[str, Any]) -> bool:
    """Returns True for a record of this schema."""
    return "spends" in data and "candidate_id" in data


def read_heldout(records: Iterator[LogRecord], context: Context) -> Iterator[LogEntry]:
    """Yields one entry per trajectory."""
    for record in records:
        data, where = record.data, record.where
        if not is_heldout(data):
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
                context.notes.add("missing", where, name)
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
        told = claimed(data, STAGE2, where)
        if told:
            told["N"] = float(spends.size)
            ours = mapping(data.get("nafaudit"), "nafaudit", where)
            told |= claimed(ours, ("delta",), where)
        for position, spend in enumerate(spends):
            debt = float(columns["delta_inits"][position])
            budget = float(columns["final_budgets"][position])
            budget, contested = judged_by(budget, k, limit, debt, where, context, bank=True)
            yield LogEntry(
                where=where,
                prompt=prompt,
                mechanism=context.options.mechanism or "anchored",
                k=k,
                debt=debt,
                stopped=False,
                steps=no_steps(),
                logged=Logged(float(spend), budget, math.nan, contested=contested),
                # A candidate may be evaluated again, with more trajectories: numbers go on then.
                number=None,
                label=label,
                prompt_text=before,
                max_new_tokens=limit,
                claims=told if position == 0 else {},
            )


_TOTALS = ("final_cum_kl_spent", "final_budget", "budget_utilization", "total_kl_to_safe")
_ITEMS_KEPT = frozenset(
    f"{name}{end}" for name in _TOTALS[:3] for end in ("", "_per_seq")
) | frozenset(
    [
        "id",
        "k",
        "input",
        "output",
        "reference",
        *SCORES,
        "prefix_debt",
        "delta_init",
        "class",
        "split",
    ]
)


def is_items(data: Mapping[str, Any]) -> bool:
    """Returns True for a record of this schema."""
    return any(f"{name}_per_seq" in data for name in _TOTALS) or (
        "final_cum_kl_spent" in data and ("output" in data or "input" in data)
    )


def read_items(records: Iterator[LogRecord], context: Context) -> Iterator[LogEntry]:
    """Yields one entry per sequence of each item."""
    for place, record in enumerate(records):
        data, where = record.data, record.where
        if not is_items(data):
            raise InputError(f"{where}: an item needs 'final_cum_kl_spent_per_seq' and the like.")
        context.drop(data, _ITEMS_KEPT)
        name = identifier(data.get("id"), "id", where)
        if not name:
            context.notes.add("no-id", where)
            name = f"{context.stem}:{place}"
        totals = {}
        for total in _TOTALS:
            value = data.get(f"{total}_per_seq", data.get(total))
            totals[total] = value if isinstance(value, list) else [] if value is None else [value]
        size = max(map(len, totals.values()))
        for total, values in totals.items():
            if len(values) not in (0, size):
                raise InputError(
                    f"{where}: {total!r} has {len(values)} entries, others have {size}."
                )
        label = identifier(data.get("class") or data.get("split") or "prompt", "class", where)
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
                context.notes.add("missing", where, "final_cum_kl_spent")
            limit = context.options.max_new_tokens
            debt = debt_of(data, k, limit, budget, where, context)
            most, contested = judged_by(budget, k, limit, debt, where, context)
            spend = larger_total(spend, other, most, rounding(spend, other), where, context)
            compare_utilisation(use, spend, budget, where, context.notes)
            yield LogEntry(
                where=where,
                prompt=name,
                mechanism=context.options.mechanism or rule_in_name(context.stem),
                k=k,
                debt=debt,
                stopped=ended_early(math.nan, limit),
                steps=no_steps(),
                logged=Logged(spend, most, math.nan, contested=contested),
                label=label,
                prompt_text=text(data.get("input"), "input", where),
                max_new_tokens=limit,
                ledger=UNKNOWN_LEDGER,
                reference=text(data.get("reference"), "reference", where),
                output=written_text(
                    {"output": outputs[min(row, len(outputs) - 1)]}, "output", where
                ),
                claims=claimed(data, SCORES, where) if size == 1 else {},
            )


# What tells the queries of one attack apart: each has a prefix, and so a debt, of its own.
_PLACE = ("mode", "L", "window")
_QUERIES_KEPT = frozenset(
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


def is_queries(data: Mapping[str, Any]) -> bool:
    """Returns True for a record of this schema."""
    return {"Z", "B", "prompt_id"} <= data.keys() and bool(
        {"mode", "window", "attempt"} & data.keys()
    )


def read_queries(records: Iterator[LogRecord], context: Context) -> Iterator[LogEntry]:
    """Yields one entry per query; mode, length and window become part of the prompt's id."""
    for record in records:
        data, where = record.data, record.where
        if not is_queries(data):
            raise InputError(f"{where}: a query needs 'prompt_id', 'Z', 'B' and a place.")
        context.drop(data, _QUERIES_KEPT)
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
        yield LogEntry(
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
            output=written_text(data, "text", where),
        )
